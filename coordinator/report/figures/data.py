"""Reads from the store what the figures of a run draw, once and as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.policy.live_settings import Change, accepted_changes, mean_beta
from fairbed.coordinator.records.rows import ENERGY_PHASES
from fairbed.coordinator.report.client_metrics import curves
from fairbed.coordinator.report.quality import measure
from fairbed.coordinator.store.reader import TIMED_PHASES, RunInfo, RunReader, profile_of
from fairbed.coordinator.store.tables import (
    DeviceMetricRow,
    ExchangeRow,
    FleetStatsRow,
    MetricRow,
    Record,
    RoundRow,
    SelectionRow,
)

Columns: TypeAlias = Mapping[str, Floats]
"""Columns of a table of the store by name, each of shape (rows,); NaN is unknown."""

ROUND_COLUMNS = (
    "round",
    "duration_s",
    "tau_max_s",
    "selected",
    "queue_total",
    "queue_max",
    "lag_p99_s",
    "dropped_late",
)
METRIC_COLUMNS = ("round", "loss_mean", "loss_std", "auroc_mean")
SPREAD = ("mean", "worst10", "best10")
"""Parts of the score of an evaluation: over all devices, and over a tenth of them."""
EXCHANGE_COLUMNS = (
    "round",
    "is_valid",
    "is_contended",
    "busy_s",
    "queued_s",
    "tau_s",
    "tau_hat_s",
    "loss_train",
    "energy_j",
    *(f"{phase}_s" for phase in TIMED_PHASES),
    *(f"{phase}_j" for phase in ENERGY_PHASES),
)
WATCHED = 4
"""Devices whose virtual queue is drawn: those with the largest ones at the end."""

_CHUNK_ROWS = 200_000
"""Selection rows that are read at a time: bounds the memory."""


@dataclass(frozen=True, slots=True)
class Choices:
    """How N devices fared at the selections of T rounds.

    A device that joined is available and not selected, except as in an entry.
    """

    first: Ints
    """Position of each device's first round, shape (N,)."""
    at: Ints
    """Position of the round of each entry, ascending, shape (E,)."""
    device: Ints
    """Position of its device, shape (E,)."""
    is_selected: Bools
    is_aggregated: Bools
    is_available: Bools
    since: int
    """Position of the first round with entries: above 0 in a replica of a run elsewhere."""
    selected_before: Ints
    """Selections in the rounds without entries, shape (N,)."""
    aggregated_before: Ints
    """Aggregated updates in these rounds, shape (N,)."""
    knows_availability: bool
    """False in a replay that is too large for a row per device and round."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The data of all figures of one run."""

    run_id: str
    name: str
    """Name of the experiment."""
    policy: str
    seed: int
    beta: float | None
    """Guaranteed selection rate, its mean over the rounds; None if the policy guarantees none."""
    queue_counts: str
    """The rate that is guaranteed: of devices `selected` or `aggregated`."""
    changes: tuple[Change, ...]
    """Settings that operators changed."""
    devices: tuple[str, ...]
    """Names of the N devices."""
    profiles: tuple[str, ...]
    """Profile, model or machine of each device; empty where unknown."""
    n_all: int
    """Devices of the fleet: more than N in a replay that stores the selected ones only."""
    rounds: Columns
    """`ROUND_COLUMNS` of the T closed rounds, and `is_void`."""
    metrics: Columns
    """`METRIC_COLUMNS` of the evaluations, `score_` with each part of `SPREAD`, and `at_s`: seconds
    of all rounds up to each."""
    exchanges: Columns
    """`EXCHANGE_COLUMNS` of the exchanges of closed rounds, by round."""
    exchange_device: Ints
    """Position of the device of each exchange; -1 for one that left no row."""
    outcome: tuple[str, ...]
    """Outcome of each exchange."""
    choices: Choices
    score: str
    """What the evaluations measure: accuracy, or RMSE for regression."""
    loss_unit: str
    scores: Floats
    """Score of the newest global model on each measured device."""
    personal_scores: Floats
    """Score of the newest personal model of each device that has one."""
    queues: Mapping[str, tuple[Floats, Floats]]
    """Rounds and virtual queue of the devices with the largest ones at the end, descending."""
    min_rates: Floats | None
    """Lowest selection rate after each round of a replay that stores the selected devices only."""
    client_metrics: Mapping[tuple[str, str], Floats] = field(default_factory=dict)
    """Round, mean by examples, lowest and highest value of each metric of the client, shape (4, T),
    by phase and name."""


def read_figures(reader: RunReader) -> RunFigures:
    """Return the data of all figures of a run, live or finished, from one snapshot of its store.

    Raises:
        StoreError: The store cannot be read.
    """
    with reader.snapshot():
        info = reader.run()
        changes = accepted_changes(reader.commands())
        records = reader.devices()
        truths = {truth.name: truth for truth in reader.truths()}
        rounds = _numbers(reader, RoundRow, ROUND_COLUMNS, "ORDER BY round")
        status = _texts(reader, RoundRow, "status", "ORDER BY round")
        numbers = rounds["round"].astype(np.int64)
        last = int(numbers[-1]) if numbers.size else 0
        score = "rmse" if info.row.task == "regression" else "accuracy"
        columns = (*METRIC_COLUMNS, *(f"{score}_{part}" for part in SPREAD))
        tail = "WHERE round <= ? ORDER BY round"
        metrics = _numbers(reader, MetricRow, columns, tail, last)
        of_closed = "WHERE round <= ? ORDER BY round, attempt, dispatched_at_s, device"
        exchanges = _numbers(reader, ExchangeRow, EXCHANGE_COLUMNS, of_closed, last)
        outcome = _texts(reader, ExchangeRow, "outcome", of_closed, last)
        by_device = _texts(reader, ExchangeRow, "device", of_closed, last)
        index = {record.name: position for position, record in enumerate(records)}
        choices = _read_choices(reader, info, numbers, index)
        newest = "WHERE round = (SELECT max(round) FROM device_metric)"
        scores = _numbers(reader, DeviceMetricRow, (score,), newest)[score]
        own = [getattr(row, score) for row in reader.personal_scores(until_round=last)]
        stats = _numbers(reader, FleetStatsRow, ("devices", "min_selection_rate"), "ORDER BY round")
        queues = _read_queues(reader, last)
        client_metrics = curves(reader.client_metrics(until_round=last))
    beta = info.plan.beta
    ends_s = np.cumsum(rounds["duration_s"])
    at = np.searchsorted(numbers, metrics["round"])
    return RunFigures(
        run_id=info.run_id,
        name=info.row.name,
        policy=info.plan.selection.policy or "",
        seed=info.row.seed,
        beta=None if beta is None else mean_beta(beta, changes, 1, max(last, 1)),
        queue_counts=info.plan.selection.queue_counts,
        changes=tuple(changes),
        devices=tuple(record.name for record in records),
        profiles=tuple(profile_of(record, truths.get(record.name)) for record in records),
        n_all=int(stats["devices"][-1]) if stats["devices"].size else len(records),
        rounds={**rounds, "is_void": np.array([one == "void" for one in status], np.float64)},
        metrics={
            **{name.replace(score, "score"): values for name, values in metrics.items()},
            "at_s": ends_s[at] if at.size else np.zeros(0),
        },
        exchanges=exchanges,
        exchange_device=np.array([index.get(name, -1) for name in by_device], dtype=np.int64),
        outcome=tuple(outcome),
        choices=choices,
        score=measure(info.row.task),
        loss_unit="half the squared error" if info.row.task == "regression" else "nats",
        scores=scores[np.isfinite(scores)],
        personal_scores=np.array([one for one in own if one is not None], dtype=np.float64),
        queues=queues,
        client_metrics=client_metrics,
        min_rates=stats["min_selection_rate"] if stats["devices"].size else None,
    )


def _read_choices(
    reader: RunReader, info: RunInfo, numbers: Ints, index: Mapping[str, int]
) -> Choices:
    """Return the selections of the closed rounds.

    Args:
        reader: Reads the run.
        info: The run.
        numbers: The closed rounds, shape (T,).
        index: Position of each of the N devices, by name.
    """
    n, last = len(index), int(numbers[-1]) if numbers.size else 0
    first: Ints = np.zeros(n, dtype=np.int64)
    totals: Ints = np.zeros((2, n), dtype=np.int64)
    for count in reader.selection_counts(until_round=last):
        position = index.get(count.device)
        if position is not None:
            first[position] = numbers.size - count.rounds
            totals[:, position] = count.selected, count.aggregated
    parts: list[Ints] = [np.zeros((0, 5), dtype=np.int64)]
    columns = ("round", "device", "is_selected", "is_aggregated", "is_available")
    step = max(_CHUNK_ROWS // max(n, 1), 1)
    for start in range(0, last, step):
        rows = reader.columns(
            SelectionRow,
            columns,
            "WHERE round > ? AND round <= ? "
            "AND (is_selected OR is_aggregated OR NOT is_available) ORDER BY round",
            (start, min(start + step, last)),
        )
        plain = [(number, index.get(device, -1), *marks) for number, device, *marks in rows]
        parts.append(np.array(plain, dtype=np.int64).reshape(-1, 5))
    entries = np.concatenate(parts)
    entries = entries[entries[:, 1] >= 0]
    for kind in (0, 1):
        marked = entries[entries[:, 2 + kind] == 1, 1]
        totals[kind] -= np.minimum(np.bincount(marked, minlength=n), totals[kind])
    return Choices(
        first=np.maximum(first, 0),
        at=np.searchsorted(numbers, entries[:, 0]),
        device=entries[:, 1],
        is_selected=entries[:, 2] == 1,
        is_aggregated=entries[:, 3] == 1,
        is_available=entries[:, 4] == 1,
        since=int(np.searchsorted(numbers, info.oldest_round)),
        selected_before=totals[0],
        aggregated_before=totals[1],
        knows_availability=info.row.selection_rows == "all",
    )


def _read_queues(reader: RunReader, last: int) -> dict[str, tuple[Floats, Floats]]:
    """Return the virtual queue over rounds of the devices with the largest ones at the end."""
    largest = reader.columns(
        SelectionRow,
        ("device",),
        "WHERE round = ? AND queue > 0 ORDER BY queue DESC, device LIMIT ?",
        (last, WATCHED),
    )
    tail = "WHERE device = ? AND round <= ? ORDER BY round"
    found = dict[str, tuple[Floats, Floats]]()
    for (device,) in largest:
        of_device = _numbers(reader, SelectionRow, ("round", "queue"), tail, device, last)
        found[device] = of_device["round"], of_device["queue"]
    return found


def _numbers(
    reader: RunReader, record: type[Record], names: Sequence[str], tail: str, *values: Any
) -> dict[str, Floats]:
    rows = reader.columns(record, names, tail, values)
    table: Floats = np.array(rows, dtype=np.float64).reshape(-1, len(names))
    return dict(zip(names, table.T.copy(), strict=True))


def _texts(
    reader: RunReader, record: type[Record], name: str, tail: str, *values: Any
) -> list[str]:
    return [text for (text,) in reader.columns(record, (name,), tail, values)]
