"""Distances between two runs. Pure.

A run with other cohorts may still predict times correctly, so there are two distances:

- `errors`: the difference of each time, round by round, over the exchanges that both made;
- `gap`: the distance of the distributions of two whole runs.

`RunTimes` has the comparable numbers of one run, live or replayed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from scipy.stats import wasserstein_distance

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.reader import SelectionCounts
from fairbed.coordinator.store.tables import ExchangeRow, RoundRow


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Times of one run."""

    tau_s: Mapping[tuple[int, str], float]
    """Exchange times of those that count, by round and device, seconds."""
    round_s: Mapping[int, float]
    """How long each round lasted that is not void, seconds; its number first."""
    is_whole: frozenset[int]
    """Rounds all of whose exchanges count: nobody else has made them longer."""
    rates: Mapping[str, float]
    """In which share of the rounds each device was selected."""
    queue_mean: float
    """Sum of all queues, mean over the rounds."""

    @property
    def taus(self) -> Floats:
        """All exchange times, seconds, shape (K,)."""
        return np.array(list(self.tau_s.values()), dtype=np.float64)

    @property
    def rounds(self) -> Floats:
        """How long the rounds lasted that are whole, seconds, shape (T,)."""
        whole = [round_s for round_id, round_s in self.round_s.items() if round_id in self.is_whole]
        return np.array(whole, dtype=np.float64)

    @property
    def total_s(self) -> float:
        """How long all rounds lasted together, seconds."""
        return sum(self.round_s.values())


def read_times(folder: Path, close_s: float = 0.0) -> RunTimes:
    """Return the times of the run in a folder.

    Args:
        folder: Of the run.
        close_s: What a replay leaves out: from the last arrival of a round to its end, seconds.

    Raises:
        StoreError: It cannot be read.
    """
    with RunReader(folder) as reader, reader.snapshot():
        return times_of(reader.exchanges(), reader.rounds(), reader.selection_counts(), close_s)


def times_of(
    exchanges: Sequence[ExchangeRow],
    rounds: Sequence[RoundRow],
    tallies: Sequence[SelectionCounts],
    close_s: float = 0.0,
) -> RunTimes:
    """Return the times in the rows of a run; an exchange counts if it is done and valid."""
    invalid = {x.round for x in exchanges if not _counts(x)}
    closed = [row for row in rounds if row.status != "void"]
    return RunTimes(
        tau_s={(x.round, x.device): x.tau_s for x in exchanges if _counts(x) and x.tau_s},
        round_s={row.round: row.duration_s + close_s for row in closed},
        is_whole=frozenset(row.round for row in closed) - invalid,
        rates={tally.device: tally.selected / tally.rounds for tally in tallies if tally.rounds},
        queue_mean=float(np.mean([row.queue_total for row in rounds])) if rounds else 0.0,
    )


def _counts(x: ExchangeRow) -> bool:
    return x.outcome == "done" and x.is_valid and not x.is_contended and bool(x.tau_s)


@dataclass(frozen=True, slots=True)
class Off:
    """By how much predictions missed, relative to what they were of."""

    count: int
    median: float | None
    """Of the absolute errors; None without any."""
    p95: float | None
    bias: float | None
    """Median of the signed ones; positive predicts too long a time."""


@dataclass(frozen=True, slots=True)
class PairErrors:
    """Errors of one run as a prediction of another that made the same exchanges."""

    tau: Off
    round: Off
    """Of the lengths of rounds with the same cohort, all of whose exchanges count."""


@dataclass(frozen=True, slots=True)
class Gap:
    """How far apart two runs are as wholes."""

    tau_ratio: float
    """Wasserstein distance of the exchange times, relative to their mean in the first run."""
    round_ratio: float
    """The same of the lengths of rounds."""
    total_ratio: float
    """Difference of the total times, relative to the first run's."""
    rate: float
    """Mean difference of a device's selection rate."""
    queue: float
    """Difference of the mean sums of queues."""

    def as_dict(self) -> dict[str, float]:
        """Return the numbers by name."""
        return asdict(self)


def errors(truth: RunTimes, predicted: RunTimes) -> PairErrors:
    """Return how far a prediction was off where it made the same exchange or round."""
    both = [key for key in truth.tau_s if key in predicted.tau_s]
    cohorts, theirs = _cohorts(truth), _cohorts(predicted)
    same = [
        round_id
        for round_id in sorted(truth.is_whole & predicted.is_whole)
        if cohorts.get(round_id) == theirs.get(round_id)
    ]
    return PairErrors(
        tau=off([truth.tau_s[key] for key in both], [predicted.tau_s[key] for key in both]),
        round=off([truth.round_s[r] for r in same], [predicted.round_s[r] for r in same]),
    )


def off(truth: Sequence[float], predicted: Sequence[float]) -> Off:
    """Return by how much numbers were missed, relative to each of them."""
    if not truth:
        return Off(0, None, None, None)
    meant: Floats = np.asarray(truth, dtype=np.float64)
    relative: Floats = np.asarray(predicted, dtype=np.float64) / meant - 1.0
    return Off(
        count=len(truth),
        median=float(np.median(np.abs(relative))),
        p95=float(np.percentile(np.abs(relative), 95)),
        bias=float(np.median(relative)),
    )


def gap(one: RunTimes, other: RunTimes) -> Gap:
    """Return how far apart two runs are as wholes.

    Raises:
        ValueError: One of them has no exchange or no round that counts.
    """
    if not (one.taus.size and other.taus.size and one.rounds.size and other.rounds.size):
        raise ValueError(
            "runs: must have rounds in which every exchange counts, got none; play more rounds, "
            "or make this machine less busy"
        )
    devices = sorted({*one.rates, *other.rates})
    rates = [abs(one.rates.get(name, 0.0) - other.rates.get(name, 0.0)) for name in devices]
    return Gap(
        tau_ratio=float(wasserstein_distance(one.taus, other.taus) / one.taus.mean()),
        round_ratio=float(wasserstein_distance(one.rounds, other.rounds) / one.rounds.mean()),
        total_ratio=abs(other.total_s - one.total_s) / one.total_s,
        rate=float(np.mean(rates)) if rates else 0.0,
        queue=abs(other.queue_mean - one.queue_mean),
    )


def mean_gap(pairs: Iterable[tuple[RunTimes, RunTimes]]) -> Gap:
    """Return how far the second run is from the first, on average over pairs, at least one."""
    found = [gap(one, other).as_dict() for one, other in pairs]
    return Gap(**{f.name: float(np.mean([each[f.name] for each in found])) for f in fields(Gap)})


def _cohorts(run: RunTimes) -> dict[int, frozenset[str]]:
    """Return who exchanged in each round, of those that count."""
    members: dict[int, set[str]] = {}
    for round_id, device in run.tau_s:
        members.setdefault(round_id, set()).add(device)
    return {round_id: frozenset(names) for round_id, names in members.items()}
