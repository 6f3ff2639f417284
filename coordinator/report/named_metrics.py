"""Metrics by name in the newest evaluation: their values over devices and over all examples."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fairbed.coordinator.records.named_metrics import OF_ALL, OF_TEST_SET, spread
from fairbed.coordinator.report.summary_schema import NamedMetricSummary
from fairbed.coordinator.store.tables import ClientMetricRow
from fairbed.wire.artifact import Better

if TYPE_CHECKING:
    from fairbed.coordinator.report.summary_schema import RunSummary


def named_summaries(rows: Sequence[ClientMetricRow], worst: str) -> list[NamedMetricSummary]:
    """Return one object per metric, from the rows of its newest evaluation.

    Args:
        rows: Of metrics by name alone.
        worst: The metric that `evaluation.worst` names.
    """
    found = []
    for name in dict.fromkeys(row.name for row in rows):
        of_metric = [row for row in rows if row.name == name]
        newest = max(row.round for row in of_metric)
        latest = [row for row in of_metric if row.round == newest]
        devices = sorted((x for x in latest if x.phase == "evaluate"), key=lambda x: x.device)
        better: Better = "less" if latest[0].better == "less" else "more"
        numbers = dict[str, float]()
        if devices:
            numbers = spread(np.array([row.value for row in devices]), better)
        ordered = sorted(devices, key=lambda row: row.value, reverse=better == "less")
        found.append(
            NamedMetricSummary(
                name=name,
                better=better,
                is_worst=name == worst,
                round=newest,
                devices=len(devices),
                mean=numbers.get("mean"),
                worst10=numbers.get("worst10"),
                best10=numbers.get("best10"),
                std=numbers.get("std"),
                gap=numbers.get("gap"),
                worst_device=ordered[0].device if ordered else None,
                pooled=_of_phase(latest, OF_ALL),
                test_set=_of_phase(latest, OF_TEST_SET),
            )
        )
    return found


def _of_phase(rows: Sequence[ClientMetricRow], phase: str) -> float | None:
    return next((row.value for row in rows if row.phase == phase), None)


def named_lines(s: "RunSummary", *, is_worst: bool) -> list[str]:
    """Return a line for the metric that `evaluation.worst` names, or one for each other metric."""
    return [_line(one) for one in s.metrics or [] if one.is_worst is is_worst]


def _line(one: NamedMetricSummary) -> str:
    of_all = _text("over all examples", one.pooled) or "over all examples unknown"
    of_test = _text("test set", one.test_set)
    parts = [of_all, of_test, f"{one.better} is better"]
    if one.devices:
        head = (
            f"{one.name} mean {one.mean:.4g}, worst 10 % {one.worst10:.4g}, best 10 % "
            f"{one.best10:.4g}, standard deviation {one.std:.4g} of {one.devices} devices after "
            f"round {one.round}"
        )
    else:
        head = f"{one.name} of no device after round {one.round}"
    if one.is_worst:
        parts.append("the metric of evaluation.worst")
    return "; ".join([head, *filter(None, parts)])


def _text(what: str, value: float | None) -> str:
    return "" if value is None else f"{what} {value:.4g}"
