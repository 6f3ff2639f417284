"""What clients and apps measured, by their own names: the newest values, and curves over rounds.

Whether a large value is good is the client's matter, so both ends are named.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.report.summary_schema import ClientMetricSummary
from fairbed.coordinator.store.tables import METRIC_PHASES, ClientMetricRow

MAX_LINES = 16
"""Most metrics in a summary in text."""

_METRIC = attrgetter("phase", "name")


def _order(row: ClientMetricRow) -> tuple[int, str, int, str]:
    phases: tuple[str, ...] = METRIC_PHASES
    return phases.index(row.phase), row.name, row.round, row.device


def summaries(rows: Sequence[ClientMetricRow]) -> list[ClientMetricSummary]:
    """Return one object per metric, from the rows of its newest round, by phase and name."""
    found = []
    for (phase, name), each in groupby(sorted(rows, key=_order), key=_METRIC):
        of_devices = list(each)
        lowest = min(of_devices, key=lambda row: (row.value, row.device))
        highest = min(of_devices, key=lambda row: (-row.value, row.device))
        found.append(
            ClientMetricSummary(
                name=name,
                phase=phase,
                round=of_devices[0].round,
                devices=sum(bool(row.device) for row in of_devices),
                mean=weighted_mean(of_devices),
                lowest=lowest.value,
                lowest_device=lowest.device,
                highest=highest.value,
                highest_device=highest.device,
            )
        )
    return found


def weighted_mean(rows: Sequence[ClientMetricRow]) -> float:
    """Return the mean over devices, weighted by their examples; unweighted if none has any."""
    values = np.array([row.value for row in rows], dtype=np.float64)
    n = np.array([row.n for row in rows], dtype=np.float64)
    return float(values @ n / n.sum()) if n.any() else float(values.mean())


def lines(found: Sequence[ClientMetricSummary]) -> list[str]:
    """Return one line per metric, and one for those that are left out."""
    shown = [_line(one) for one in found[:MAX_LINES]]
    more = len(found) - MAX_LINES
    return [*shown, *([f"and {more} more, in the table client_metric"] if more > 0 else [])]


def _line(one: ClientMetricSummary) -> str:
    head = f"{one.name} ({one.phase}) {one.mean:.4g}"
    if not one.devices:
        return f"{head}, of the strategy of the app after round {one.round}"
    if one.devices == 1:
        return f"{head} of {one.lowest_device}, the only device after round {one.round}"
    ends = "the same on each"
    if one.lowest < one.highest:
        ends = (
            f"lowest {one.lowest:.4g} {one.lowest_device}, highest {one.highest:.4g} "
            f"{one.highest_device}"
        )
    return f"{head}, mean of {one.devices} devices after round {one.round}; {ends}"


def curves(rows: Sequence[ClientMetricRow]) -> Mapping[tuple[str, str], Floats]:
    """Return round, weighted mean, lowest and highest value of each metric, shape (4, T).

    By phase and name, in the order of `METRIC_PHASES`.
    """
    shown = [row for row in rows if row.device or row.better is None]  # pooled ones have a table
    found = dict[tuple[str, str], Floats]()
    for key, each in groupby(sorted(shown, key=_order), key=_METRIC):
        points = []
        for number, group in groupby(each, key=attrgetter("round")):
            of_round = list(group)
            values = [row.value for row in of_round]
            points.append((float(number), weighted_mean(of_round), min(values), max(values)))
        found[key] = np.array(points, dtype=np.float64).T
    return found


def values_line(rows: Sequence[ClientMetricRow]) -> str:
    """Return the values of the strategy of an app in one line; empty if there are none."""
    own = [row for row in rows if not row.device and row.better is None]
    shown = sorted(own, key=_order)
    parts = [f"{row.name} ({row.phase}) {row.value:.4g}" for row in shown[:MAX_LINES]]
    more = len(shown) - MAX_LINES
    return ", ".join([*parts, *([f"and {more} more"] if more > 0 else [])])
