"""How far apart two runs are. Pure.

Two questions, since a run that chooses otherwise is not wrong about the times:

- `errors`: round by round, of the exchanges that both made, how far was each time off;
- `gap`: of both as wholes, how far apart are their distributions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
from scipy.stats import wasserstein_distance

from coordinator.algorithms.arrays import Floats
from testbed.live_replay.runs import RunTimes


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
