"""Replays without training: the selections of a policy, and a check of its virtual queues."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from experiments.processes import fresh_processes
from experiments.rbcs_f_paper.arms import Arm
from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.fairness import jain
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Selector
from fairbed.coordinator.algorithms.selection.rbcs_f import solve_p4
from fairbed.coordinator.policy.decisions import Decisions, make_decisions
from fairbed.testbed.replay.engine.engine import ReplayEngine
from fairbed.testbed.replay.setup import linear_fleet_of
from fairbed.testbed.replay.world.linear import LinearWorld

GROUPS = 4
"""Fast, medium, slow, slowest: groups of equal size, in this order of rows."""
TAIL = 100
"""Number of last rounds over which the queues are averaged."""
ROUNDING = 1e-9
"""Greatest difference of queues in floating point from the exact ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The rounds of one policy with one seed."""

    duration_s: Floats
    """Shape (T,)."""
    is_selected: Bools
    """Shape (T, N)."""
    backlog: Floats
    """Sum of the exact queues after each round, shape (T,)."""
    regret_s: Floats
    """Loss of the selection against the optimum of P3 with the same queues and the true expected
    times, in seconds (divided by V), shape (T,); NaN for a policy without V."""
    error_selected: Floats
    """Mean |tau_hat / E tau - 1| of the cohort, shape (T,)."""
    error_all: Floats
    """The same of all devices, shape (T,)."""
    broken_rounds: int
    """Rounds after which the guarantee is violated for a device."""
    queue_error: float
    """Largest difference of the selector's queues from the exact ones; 0 if it has none."""

    @property
    def total_s(self) -> float:
        """Total time of all rounds, seconds."""
        return float(self.duration_s.sum())

    @property
    def mean_backlog(self) -> float:
        """Mean over the last hundred rounds."""
        return float(self.backlog[-TAIL:].mean())

    @property
    def rates(self) -> Floats:
        """Selection rate of each device, shape (N,)."""
        rates: Floats = self.is_selected.mean(axis=0)
        return rates

    @property
    def min_rate(self) -> float:
        """Selection rate of the least selected device."""
        return float(self.rates.min())

    @property
    def group_rates(self) -> Floats:
        """Mean selection rates of the groups, fast to slow, shape (4,)."""
        means: Floats = self.rates.reshape(GROUPS, -1).mean(axis=1)
        return means

    @property
    def jain(self) -> float:
        """Jain's index of the selections, at most 1."""
        return jain(self.is_selected.sum(axis=0))

    def second_half(self, error: Floats) -> float:
        """Return the mean of an error over the second half of the rounds."""
        return float(error[len(error) // 2 :].mean())


class RecordingSelector:
    """Delegates to another selector and keeps the last candidates that it received."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self.candidates: Candidates | None = None

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return the selection of the other selector."""
        self.candidates = candidates
        return self._selector.select(candidates, k, rng)

    def observe(self, outcomes: Outcomes) -> None:
        """Pass the outcomes to the other selector."""
        self._selector.observe(outcomes)

    def queues(self, n: int) -> Floats:
        """Return the queues of the other selector, shape (n,)."""
        return self._selector.queues(n)

    def to_state(self) -> dict[str, Any]:
        """Return the state of the other selector."""
        return self._selector.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state of the other selector."""
        self._selector.load_state(state)


class ExactQueues:
    """Virtual queues in integers: Z <- max(Z + beta - x, 0), with beta a fraction."""

    def __init__(self, beta: float, n: int) -> None:
        self._beta = Fraction(str(beta))
        self._z = np.zeros(n, dtype=np.int64)
        self._counts = np.zeros(n, dtype=np.int64)
        self._rounds = 0

    def advance(self, is_selected: Bools) -> None:
        """Add a round.

        Args:
            is_selected: Whether each device was selected, shape (N,).
        """
        gain, unit = self._beta.numerator, self._beta.denominator
        self._z = np.maximum(self._z + gain - unit * is_selected, 0)
        self._counts += is_selected
        self._rounds += 1

    @property
    def values(self) -> Floats:
        """Virtual queues Z, shape (N,)."""
        values: Floats = self._z / self._beta.denominator
        return values

    @property
    def guarantee_holds(self) -> bool:
        """Whether rate_n >= beta - Z_n / T for every device, without any rounding."""
        gain, unit = self._beta.numerator, self._beta.denominator
        return bool((unit * self._counts >= gain * self._rounds - self._z).all())


def trajectory(arm: Arm, rounds: int, seed: int) -> Trajectory:
    """Replay an arm with a seed."""
    experiment = arm.experiment(rounds, seed)
    fleet, config = linear_fleet_of(experiment), experiment.coordinator()
    world = LinearWorld(fleet.laws, experiment.replay.update_bits, experiment.seed_for("traces"))
    made = make_decisions(config)
    selector = RecordingSelector(made.selector)
    decisions = Decisions(config, selector, made.estimator, made.aggregator)
    n, settings = len(world), config.selection
    has_queues = settings.policy in ("rbcs-f", "rbcs-f-known")
    queues = ExactQueues(settings.beta, n)
    is_selected = np.zeros((rounds, n), dtype=np.bool_)
    columns = np.full((5, rounds), np.nan)
    broken, queue_error = 0, 0.0
    for t, replayed in enumerate(ReplayEngine(decisions, world).replay(rounds)):
        candidates, rows = selector.candidates, replayed.choice.rows
        assert candidates is not None
        assert candidates.true_tau_s is not None, "the linear world knows its own laws"
        is_selected[t, rows] = True
        errors = np.abs(candidates.tau_hat_s / candidates.true_tau_s - 1.0)
        gap_s = np.nan
        if has_queues and settings.V > 0.0:
            is_available = candidates.is_available
            gap_s = regret_s(candidates.true_tau_s, is_available, queues.values, rows, settings.V)
        queues.advance(is_selected[t])
        columns[:, t] = (
            replayed.duration_s,
            queues.values.sum(),
            gap_s,
            errors[rows].mean() if rows.size else np.nan,
            errors.mean(),
        )
        broken += not queues.guarantee_holds
        if has_queues:
            difference = np.abs(selector.queues(n) - queues.values).max()
            queue_error = max(queue_error, float(difference))
    duration_s, backlog, gaps_s, error_selected, error_all = columns
    return Trajectory(
        duration_s=duration_s,
        is_selected=is_selected,
        backlog=backlog,
        regret_s=gaps_s,
        error_selected=error_selected,
        error_all=error_all,
        broken_rounds=broken,
        queue_error=queue_error,
    )


def regret_s(
    true_tau_s: Floats, is_available: Bools, queues: Floats, cohort: Ints, weight: float
) -> float:
    """Return the distance of a cohort from the optimum of P3, in seconds.

        (J(S) - min J) / V,   J(S) = V max_{n in S} E tau_n - sum_{n in S} Z_n

    Args:
        true_tau_s: True expected exchange times, seconds, shape (N,).
        is_available: Availability, shape (N,).
        queues: Z before the round, shape (N,).
        cohort: Rows of the cohort, shape (k,).
        weight: V, 1/seconds, > 0.
    """
    rows = np.flatnonzero(is_available)
    best = rows[solve_p4(true_tau_s[rows], queues[rows], len(cohort), weight)]

    def objective(members: Ints) -> float:
        return weight * float(true_tau_s[members].max()) - float(queues[members].sum())

    return (objective(cohort) - objective(best)) / weight if cohort.size else 0.0


def replay_all(
    arms: Sequence[Arm], rounds: int, seeds: int, workers: int | None = None
) -> dict[Arm, list[Trajectory]]:
    """Return the trajectories of every arm, one for each of the seeds 0, 1, ...

    Args:
        arms: Different arms.
        rounds: Rounds of each replay.
        seeds: Number of seeds.
        workers: Number of processes; None takes one per core.
    """
    jobs = [(arm, rounds, seed) for arm in arms for seed in range(seeds)]
    played = list(_in_parallel(jobs, workers or os.cpu_count() or 1))
    return {arm: played[i * seeds : (i + 1) * seeds] for i, arm in enumerate(arms)}


def _in_parallel(jobs: Sequence[tuple[Arm, int, int]], workers: int) -> Iterator[Trajectory]:
    if workers == 1:
        yield from (trajectory(*job) for job in jobs)
        return
    with fresh_processes(workers) as pool:
        yield from pool.map(trajectory, *zip(*jobs, strict=True), chunksize=4)
