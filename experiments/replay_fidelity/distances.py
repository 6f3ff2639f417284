"""Distances between two runs. Pure.

A run with other cohorts may still predict times correctly, so there are two distances:

- `errors`: the difference of each time, round by round, over the exchanges that both made;
- `gap`: the distance of the distributions of two whole runs.

`RunTimes` has the comparable numbers of one run, live or replayed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypeAlias

import numpy as np
from scipy.stats import wasserstein_distance

from experiments.replay_fidelity.pooled import is_valid
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.reader import SelectionCounts
from fairbed.coordinator.store.tables import ExchangeRow, RoundRow


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Times of one run."""

    tau_s: Mapping[tuple[int, str], float]
    """Times of valid exchanges, by round and device, seconds."""
    round_s: Mapping[int, float]
    """Durations of rounds that are not void, by round, seconds."""
    valid_rounds: frozenset[int]
    """Rounds whose exchanges are all valid."""
    rates: Mapping[str, float]
    """Selection rate of each device."""
    queue_mean: float
    """Sum of all virtual queues, mean over the rounds."""

    @property
    def taus(self) -> Floats:
        """All exchange times, seconds, shape (K,)."""
        return np.array(list(self.tau_s.values()), dtype=np.float64)

    @property
    def rounds(self) -> Floats:
        """Durations of the valid rounds, seconds, shape (T,)."""
        valid = [s for round_id, s in self.round_s.items() if round_id in self.valid_rounds]
        return np.array(valid, dtype=np.float64)

    @property
    def total_s(self) -> float:
        """Total duration of all rounds, seconds."""
        return sum(self.round_s.values())


def read_times(folder: Path, close_s: float = 0.0) -> RunTimes:
    """Return the times of the run in a folder.

    Args:
        folder: Folder of the run.
        close_s: Time from the last arrival of a round to its end, seconds, which a replay omits.

    Raises:
        StoreError: The run cannot be read.
    """
    with RunReader(folder) as reader, reader.snapshot():
        return times_of(reader.exchanges(), reader.rounds(), reader.selection_counts(), close_s)


def times_of(
    exchanges: Sequence[ExchangeRow],
    rounds: Sequence[RoundRow],
    counts: Sequence[SelectionCounts],
    close_s: float = 0.0,
) -> RunTimes:
    """Return the times in the rows of a run."""
    invalid = {x.round for x in exchanges if not is_valid(x)}
    closed = [row for row in rounds if row.status != "void"]
    return RunTimes(
        tau_s={(x.round, x.device): x.tau_s for x in exchanges if is_valid(x) and x.tau_s},
        round_s={row.round: row.duration_s + close_s for row in closed},
        valid_rounds=frozenset(row.round for row in closed) - invalid,
        rates={count.device: count.selected / count.rounds for count in counts if count.rounds},
        queue_mean=float(np.mean([row.queue_total for row in rounds])) if rounds else 0.0,
    )


@dataclass(frozen=True, slots=True)
class RelativeErrors:
    """Relative errors of predictions."""

    count: int
    median: float | None
    """Of the absolute errors; None without any."""
    p95: float | None
    bias: float | None
    """Median of the signed errors; positive if predictions are too long."""


@dataclass(frozen=True, slots=True)
class PairErrors:
    """Errors of one run as a prediction of another, over the exchanges of both."""

    tau: RelativeErrors
    round: RelativeErrors
    """Of the durations of valid rounds with the same cohort."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Distance between the distributions of two runs."""

    tau_ratio: float
    """Wasserstein distance of the exchange times, relative to their mean in the first run."""
    round_ratio: float
    """The same of the durations of rounds."""
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
    """Return the errors of a prediction over the exchanges and rounds of both runs."""
    return pooled_errors([(truth, predicted)])


_Values: TypeAlias = tuple[list[float], list[float]]
"""Times of two runs, seconds."""


def _common(truth: RunTimes, predicted: RunTimes) -> tuple[_Values, _Values]:
    """Return the exchanges of both runs, and the valid rounds with the same cohort."""
    common = [key for key in truth.tau_s if key in predicted.tau_s]
    true_cohorts, predicted_cohorts = _cohorts(truth), _cohorts(predicted)
    same = [
        round_id
        for round_id in sorted(truth.valid_rounds & predicted.valid_rounds)
        if true_cohorts.get(round_id) == predicted_cohorts.get(round_id)
    ]
    return (
        ([truth.tau_s[key] for key in common], [predicted.tau_s[key] for key in common]),
        ([truth.round_s[r] for r in same], [predicted.round_s[r] for r in same]),
    )


def _joined(found: Sequence[tuple[_Values, _Values]], kind: int) -> _Values:
    return (
        [value for one in found for value in one[kind][0]],
        [value for one in found for value in one[kind][1]],
    )


def pooled_errors(pairs: Sequence[tuple[RunTimes, RunTimes]]) -> PairErrors:
    """Return the errors of several predictions, each of another run, over all of them."""
    found = [_common(truth, predicted) for truth, predicted in pairs]
    return PairErrors(
        tau=relative_errors(*_joined(found, 0)), round=relative_errors(*_joined(found, 1))
    )


def relative_errors(truth: Sequence[float], predicted: Sequence[float]) -> RelativeErrors:
    """Return the errors of predictions, each relative to its true value."""
    if not truth:
        return RelativeErrors(0, None, None, None)
    true_values: Floats = np.asarray(truth, dtype=np.float64)
    relative: Floats = np.asarray(predicted, dtype=np.float64) / true_values - 1.0
    return RelativeErrors(
        count=len(truth),
        median=float(np.median(np.abs(relative))),
        p95=float(np.percentile(np.abs(relative), 95)),
        bias=float(np.median(relative)),
    )


def gap(one: RunTimes, other: RunTimes) -> Gap:
    """Return the distance between the distributions of two runs.

    Raises:
        ValueError: One of them has no valid exchange or no valid round.
    """
    if not (one.taus.size and other.taus.size and one.rounds.size and other.rounds.size):
        raise ValueError(
            "runs: must have rounds in which every exchange is valid, got none; run more rounds, "
            "or reduce the load of this machine"
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
    """Return the mean distance over at least one pair of runs."""
    found = [gap(one, other).as_dict() for one, other in pairs]
    return Gap(**{f.name: float(np.mean([each[f.name] for each in found])) for f in fields(Gap)})


def _cohorts(run: RunTimes) -> dict[int, frozenset[str]]:
    """Return the devices with a valid exchange, by round."""
    members: dict[int, set[str]] = {}
    for round_id, device in run.tau_s:
        members.setdefault(round_id, set()).add(device)
    return {round_id: frozenset(names) for round_id, names in members.items()}
