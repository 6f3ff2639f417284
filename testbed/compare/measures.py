"""A cell in numbers, read from its run: what arms are compared by, and how it went over time.

The queues of a policy that keeps none: every arm is held against the same promise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.fairness import selection_rates
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.reader import SelectionCounts
from fairbed.coordinator.store.tables import RoundRow, SelectionRow

MAX_ENTRIES = 50_000_000
"""Rounds x devices; larger runs are not counted anew."""


@dataclass(frozen=True, slots=True)
class VirtualQueues:
    """Queues Z over all devices after each round, each of shape (T,)."""

    total: Floats
    largest: Floats


def virtual_queues(counted: Bools, first: Ints, beta: float) -> VirtualQueues:
    """Return the virtual queues that a selection history would have left.

        Z_n <- max(Z_n + beta - x_n, 0)   in each round since n joined

    No queue is capped or frozen, as those of rbcs-f may be.

    Args:
        counted: x, shape (T, N).
        first: Index of each device's first round, shape (N,).
        beta: Promised rate.

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783), equation 8.
    """
    queues: Floats = np.zeros(counted.shape[1])
    total, largest = np.zeros(len(counted)), np.zeros(len(counted))
    for t, x in enumerate(counted):
        queues = np.where(first <= t, np.maximum(queues + beta - x, 0.0), 0.0)
        total[t], largest[t] = queues.sum(), queues.max(initial=0.0)
    return VirtualQueues(total, largest)


def virtual_queues_of(
    reader: RunReader, rounds: Sequence[int], tallies: Sequence[SelectionCounts], beta: float
) -> VirtualQueues | None:
    """Return the queues of a run's history; None if it is too large to be counted anew.

    Args:
        reader: Of the run.
        rounds: Its closed rounds, shape (T,).
        tallies: Of all devices, over all rounds.
        beta: What would have been promised.
    """
    if not tallies or len(rounds) * len(tallies) > MAX_ENTRIES:
        return None
    at_round = {round_id: t for t, round_id in enumerate(rounds)}
    at_device = {tally.device: n for n, tally in enumerate(tallies)}
    counted: Bools = np.zeros((len(rounds), len(tallies)), dtype=np.bool_)
    which = f"is_{reader.plan.selection.queue_counts}"
    for round_id, device in reader.columns(SelectionRow, ("round", "device"), f"WHERE {which}"):
        counted[at_round[round_id], at_device[device]] = True
    first = np.array([len(rounds) - tally.rounds for tally in tallies], dtype=np.int64)
    return virtual_queues(counted, first, beta)


Group: TypeAlias = Literal["time", "exchange", "selection", "prediction", "accuracy"]

MAX_POINTS = 1_000
"""Rounds that a run keeps; of a longer run every k-th."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that every cell has, or may have."""

    key: str
    group: Group
    heading: str
    short: str
    """For tables of all metrics."""
    unit: str
    """Empty for a ratio or a count."""
    better: Literal["less", "more"]
    digits: int
    """After the point."""


METRICS = (
    Metric("virtual_s", "time", "total time", "total", "s", "less", 1),
    Metric("round_median_s", "time", "median round", "round", "s", "less", 3),
    Metric("wall_s", "time", "machine time", "machine", "s", "less", 1),
    Metric("tau_median_s", "exchange", "median tau", "tau", "s", "less", 3),
    Metric("tau_p95_s", "exchange", "p95 tau", "p95 tau", "s", "less", 3),
    Metric("min_rate_selected", "selection", "min rate selected", "min sel", "", "more", 3),
    Metric("min_rate_aggregated", "selection", "min rate aggregated", "min agg", "", "more", 3),
    Metric("jain", "selection", "Jain", "Jain", "", "more", 3),
    Metric("queue_mean_total", "selection", "mean queue total", "queues", "", "less", 1),
    Metric("queue_max", "selection", "max queue", "max queue", "", "less", 2),
    Metric("mape", "prediction", "MAPE", "MAPE", "", "less", 3),
    Metric("median_ape", "prediction", "median APE", "med APE", "", "less", 3),
    Metric("accuracy_mean", "accuracy", "final accuracy", "acc", "", "more", 3),
    Metric("accuracy_worst10", "accuracy", "worst 10 %", "worst", "", "more", 3),
    Metric("accuracy_variance", "accuracy", "variance", "var", "", "less", 4),
)
"""What is read of every run; times to a target come later, when the target is known."""


class RunCurves(Struct, frozen=True, kw_only=True):
    """How a run went; times are those of the fleet, evaluation off the record."""

    rounds: tuple[int, ...]
    closed_s: tuple[float, ...]
    """When each of these rounds was over."""
    queue_total: tuple[float, ...]
    """Sum of Z after each; empty where it is not known."""
    evaluated: tuple[int, ...]
    """Rounds after which the model was evaluated, all of them."""
    evaluated_s: tuple[float, ...]
    accuracy: tuple[float, ...]
    """Mean over devices of each evaluation."""


class RunMeasures(Struct, frozen=True, kw_only=True):
    """A run that is done."""

    values: dict[str, float | None]
    """By the keys of `METRICS`; None is not known."""
    curves: RunCurves


def measure(folder: Path) -> RunMeasures:
    """Return what a finished run comes to.

    Raises:
        StoreError: There is no run, or it cannot be read.
    """
    with RunReader(folder) as reader:
        summary = summarise_run(reader)
        rounds, tallies = reader.rounds(), reader.selection_counts()
        evaluations = [(row.round, row.accuracy_mean) for row in reader.metrics()]
        queues = _queues(reader, rounds, tallies)
    values = {
        "virtual_s": summary.virtual_s,
        "round_median_s": summary.round_s.median,
        "wall_s": summary.wall_s,
        "tau_median_s": summary.exchange.median_s,
        "tau_p95_s": summary.exchange.p95_s,
        "min_rate_selected": _least_rate(tallies, "selected"),
        "min_rate_aggregated": _least_rate(tallies, "aggregated"),
        "jain": summary.fairness.jain,
        "queue_mean_total": float(queues.total.mean()) if queues and rounds else None,
        "queue_max": float(queues.largest.max()) if queues and rounds else None,
        "mape": summary.estimator.mape_second_half,
        "median_ape": summary.estimator.median_ape,
        "accuracy_mean": summary.accuracy.mean,
        "accuracy_worst10": summary.accuracy.worst10,
        "accuracy_variance": summary.accuracy.variance,
    }
    return RunMeasures(values=values, curves=_curves(rounds, queues, evaluations))


def _least_rate(
    tallies: Sequence[SelectionCounts], what: Literal["selected", "aggregated"]
) -> float | None:
    """Return the lowest count / rounds since it joined over all devices."""
    if not tallies:
        return None
    counts = np.array([getattr(tally, what) for tally in tallies], dtype=np.int64)
    rounds = np.array([tally.rounds for tally in tallies], dtype=np.int64)
    return float(selection_rates(counts, rounds).min())


def _queues(
    reader: RunReader, rounds: Sequence[RoundRow], tallies: Sequence[SelectionCounts]
) -> VirtualQueues | None:
    """Return the queues as the policy kept them, or as they would have been."""
    beta = reader.plan.selection.beta
    if reader.plan.beta is None and beta is not None:
        return virtual_queues_of(reader, [row.round for row in rounds], tallies, beta)
    return VirtualQueues(
        np.array([row.queue_total for row in rounds]), np.array([row.queue_max for row in rounds])
    )


def _curves(
    rounds: Sequence[RoundRow],
    queues: VirtualQueues | None,
    evaluations: Sequence[tuple[int, float]],
) -> RunCurves:
    ends: Floats = np.cumsum([row.duration_s for row in rounds], dtype=np.float64)
    end_of = {row.round: end for row, end in zip(rounds, ends.tolist(), strict=True)}
    known = [(at, end_of[at], value) for at, value in evaluations if at in end_of]
    every = max(1, -(-len(rounds) // MAX_POINTS))
    kept = slice(every - 1, None, every)
    return RunCurves(
        rounds=tuple(row.round for row in rounds[kept]),
        closed_s=tuple(ends[kept].tolist()),
        queue_total=tuple(queues.total[kept].tolist()) if queues else (),
        evaluated=tuple(at for at, _, _ in known),
        evaluated_s=tuple(end for _, end, _ in known),
        accuracy=tuple(value for _, _, value in known),
    )
