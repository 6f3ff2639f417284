"""Our numbers compared with the reference, with standard errors and verdicts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.rbcs_f_paper.arms import (
    FASTEST,
    HIGH_NOISE,
    KNOWN_WEIGHTS,
    LOW_NOISE,
    POLICIES,
    RANDOM,
    WEIGHTS,
    Arm,
    Policy,
    rbcs_f,
    rbcs_f_known,
)
from experiments.rbcs_f_paper.reference import METRICS, REFERENCE, SEEDS, TIMES, Printed
from experiments.rbcs_f_paper.rounds import ROUNDING, Trajectory
from fairbed.coordinator.algorithms.arrays import Floats

TIME_BAND = 0.02
"""Greatest difference of a total time from the reference, relative to it."""
ERRORS_BAND = 3.0
"""Greatest difference of any number, in standard errors of both means."""

Replays = Mapping[Arm, Sequence[Trajectory]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One number, and its reference if there is one."""

    policy: str
    metric: str
    mean: float
    error: float
    """Standard error of our mean; NaN with one seed."""
    reference: float | None = None
    apart_errors: float | None = None
    """Difference beyond the rounding of the print, in standard errors of both means. The reference
    is assumed to have our standard deviation, with its number of seeds."""
    apart_ratio: float | None = None
    """mean / reference - 1."""
    is_within: bool | None = None
    """Whether the difference is within both bands; None without a reference."""


@dataclass(frozen=True, slots=True)
class Check:
    """A property that must hold."""

    text: str
    holds: bool
    detail: str


def metrics(trajectories: Sequence[Trajectory]) -> Floats:
    """Return queues, min rate, four group rates and Jain's index of each seed, shape (seeds, 7)."""
    return np.array([[x.mean_backlog, x.min_rate, *x.group_rates, x.jain] for x in trajectories])


def columns_of(policy: Policy, replays: Replays) -> Floats:
    """Return all METRICS of a policy, NaN if not replayed, shape (seeds, 9)."""
    low, high = (
        replays.get(Arm(policy=policy, noise=noise), ()) for noise in (LOW_NOISE, HIGH_NOISE)
    )
    seeds = max(len(low), len(high))
    values = np.full((seeds, len(METRICS)), np.nan)
    for column, trajectories in enumerate((low, high)):
        values[: len(trajectories), column] = [x.total_s for x in trajectories]
    if low:
        values[:, 2:] = metrics(low)
    return values


def cells(replays: Replays, has_reference: bool) -> list[Cell]:
    """Return every measured number, policy by policy in the order of METRICS."""
    found = []
    for policy in POLICIES:
        values = columns_of(policy, replays)
        for metric, column, printed in zip(METRICS, values.T, REFERENCE[policy.label], strict=True):
            if column.size and np.isfinite(column).all():
                known = printed if has_reference else None
                found.append(_cell(policy.label, metric, column, known))
    return found


def _cell(policy: str, metric: str, column: Floats, printed: Printed | None) -> Cell:
    mean, n = float(column.mean()), column.size
    spread = float(column.std(ddof=1)) if n > 1 else math.nan
    cell = Cell(policy=policy, metric=metric, mean=mean, error=spread / math.sqrt(n))
    if printed is None or n < 2:
        return cell
    apart = max(0.0, abs(mean - printed.value) - printed.half_unit)
    both = spread * math.sqrt(1.0 / n + 1.0 / SEEDS)
    in_errors = apart / both if both > 0.0 else (math.inf if apart > 0.0 else 0.0)
    ratio = mean / printed.value - 1.0 if printed.value else None
    near = metric not in TIMES or (ratio is not None and abs(ratio) <= TIME_BAND)
    return Cell(
        policy=policy,
        metric=metric,
        mean=mean,
        error=cell.error,
        reference=printed.value,
        apart_errors=in_errors,
        apart_ratio=ratio,
        is_within=near and in_errors <= ERRORS_BAND,
    )


def checks(replays: Replays) -> list[Check]:
    """Return the properties that must hold for any numbers: orderings and the guarantee."""
    found = []
    for noise in (LOW_NOISE, HIGH_NOISE):
        found += _orderings(replays, noise)
    broken = sum(x.broken_rounds for runs in replays.values() for x in runs)
    rounds = sum(len(x.duration_s) for runs in replays.values() for x in runs)
    found.append(
        Check(
            "rate >= beta - Z / T, exactly, after every round",
            broken == 0,
            f"{rounds - broken:,} of {rounds:,} rounds",
        )
    )
    apart = max((x.queue_error for runs in replays.values() for x in runs), default=0.0)
    found.append(
        Check("the selectors' queues are the exact ones", apart <= ROUNDING, f"{apart:.0e} off")
    )
    return found


def _orderings(replays: Replays, noise: float) -> list[Check]:
    learned = [rbcs_f(weight) for weight in WEIGHTS]
    known = [rbcs_f_known(weight) for weight in KNOWN_WEIGHTS]
    by_time = [RANDOM, *learned, FASTEST]
    found = [
        _falls(replays, noise, "time", by_time, lambda x: x.total_s),
        _falls(replays, noise, "time", [*known, FASTEST], lambda x: x.total_s),
        _falls(replays, noise, "queues", learned[::-1], lambda x: x.mean_backlog),
        _falls(replays, noise, "evenness (Jain)", learned, lambda x: x.jain),
    ]
    pairs = [(rbcs_f(weight), rbcs_f_known(weight)) for weight in KNOWN_WEIGHTS]
    found += [_falls(replays, noise, "time", pair, lambda x: x.total_s) for pair in pairs]
    return [check for check in found if check is not None]


def _falls(
    replays: Replays,
    noise: float,
    what: str,
    policies: Sequence[Policy],
    value: Callable[[Trajectory], float],
) -> Check | None:
    """Check that the mean of a value falls from each policy to the next; None if one is missing."""
    runs = [replays.get(Arm(policy=policy, noise=noise)) for policy in policies]
    known = [run for run in runs if run]
    if len(known) < len(runs):
        return None
    values = np.array([[value(x) for x in run] for run in known])
    means = values.mean(axis=1)
    in_every = int((np.diff(values, axis=0) < 0.0).all(axis=0).sum())
    return Check(
        f"{what}, {noise:.0%} noise: " + " > ".join(policy.label for policy in policies),
        bool((np.diff(means) < 0.0).all()),
        f"in {in_every} of {values.shape[1]} seeds",
    )
