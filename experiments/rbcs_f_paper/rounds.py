"""Replays without training: the choices of a policy in every round, and a check of its queues."""

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
"""Fast, medium, slow, slowest: as many devices each, in this order of rows."""
TAIL = 100
"""Rounds at the end over which the queues are averaged."""
ROUNDING = 1e-9
"""How far queues in floating point may be from the exact ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """What one policy did with one seed, round by round."""

    duration_s: Floats
    """Shape (T,)."""
    is_selected: Bools
    """Shape (T, N)."""
    backlog: Floats
    """Sum of the exact queues after each round, shape (T,)."""
    regret_s: Floats
    """What the choice gives away of P3 by not knowing the expected times, with the same queues,
    in seconds (divided by V), shape (T,); NaN for a policy without V."""
    error_selected: Floats
    """Mean |tau_hat / E tau - 1| of the cohort, shape (T,)."""
    error_all: Floats
    """The same of all devices, shape (T,)."""
    broken_rounds: int
    """Rounds after which the guarantee did not hold exactly for some device."""
    queue_error: float
    """Largest distance of the selector's own queues from the exact ones; 0 if it has none."""

    @property
    def total_s(self) -> float:
        """Time of all rounds, seconds."""
        return float(self.duration_s.sum())

    @property
    def mean_backlog(self) -> float:
        """Mean of the last hundred rounds."""
        return float(self.backlog[-TAIL:].mean())

    @property
    def rates(self) -> Floats:
        """Selection rate of each device, shape (N,)."""
        rates: Floats = self.is_selected.mean(axis=0)
        return rates

    @property
    def min_rate(self) -> float:
        """Of the device that was selected least."""
        return float(self.rates.min())

    @property
    def group_rates(self) -> Floats:
        """Fast to slow, shape (4,)."""
        means: Floats = self.rates.reshape(GROUPS, -1).mean(axis=1)
        return means

    @property
    def jain(self) -> float:
        """Evenness of the selections, at most 1."""
        return jain(self.is_selected.sum(axis=0))

    def second_half(self, error: Floats) -> float:
        """Return the mean of an error over the second half of the rounds."""
        return float(error[len(error) // 2 :].mean())


class Witness:
    """A selector that lets another one choose, and remembers what it was shown."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self.shown: Candidates | None = None

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return what the other chooses."""
        self.shown = candidates
        return self._selector.select(candidates, k, rng)

    def observe(self, outcomes: Outcomes) -> None:
        """Tell the other."""
        self._selector.observe(outcomes)

    def queues(self, n: int) -> Floats:
        """Return the other's queues, shape (n,)."""
        return self._selector.queues(n)

    def to_state(self) -> dict[str, Any]:
        """Return the other's state."""
        return self._selector.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Give the other a state."""
        self._selector.load_state(state)


class ExactQueues:
    """Queues in whole numbers: Z <- max(Z + beta - x, 0), with beta a fraction."""

    def __init__(self, beta: float, n: int) -> None:
        self._beta = Fraction(str(beta))
        self._z = np.zeros(n, dtype=np.int64)
        self._counts = np.zeros(n, dtype=np.int64)
        self._rounds = 0

    def advance(self, is_selected: Bools) -> None:
        """Close a round; who was in it, shape (N,)."""
        gain, unit = self._beta.numerator, self._beta.denominator
        self._z = np.maximum(self._z + gain - unit * is_selected, 0)
        self._counts += is_selected
        self._rounds += 1

    @property
    def values(self) -> Floats:
        """Z, shape (N,)."""
        values: Floats = self._z / self._beta.denominator
        return values

    @property
    def guarantee_holds(self) -> bool:
        """Whether rate_n >= beta - Z_n / T for every device, without any rounding."""
        gain, unit = self._beta.numerator, self._beta.denominator
        return bool((unit * self._counts >= gain * self._rounds - self._z).all())


def trajectory(arm: Arm, rounds: int, seed: int) -> Trajectory:
    """Play an arm and return what came of it."""
    experiment = arm.experiment(rounds, seed)
    cast, config = linear_fleet_of(experiment), experiment.coordinator()
    world = LinearWorld(cast.laws, experiment.replay.update_bits, experiment.seed_for("traces"))
    made = make_decisions(config)
    witness = Witness(made.selector)
    decisions = Decisions(config, witness, made.estimator, made.aggregator)
    n, settings = len(world), config.selection
    has_queues = settings.policy in ("rbcs-f", "rbcs-f-known")
    queues = ExactQueues(settings.beta, n)
    is_selected = np.zeros((rounds, n), dtype=np.bool_)
    columns = np.full((5, rounds), np.nan)
    broken, queue_error = 0, 0.0
    for t, played in enumerate(ReplayEngine(decisions, world).play(rounds)):
        shown, rows = witness.shown, played.choice.rows
        assert shown is not None
        assert shown.true_tau_s is not None, "the linear world knows its own laws"
        is_selected[t, rows] = True
        errors = np.abs(shown.tau_hat_s / shown.true_tau_s - 1.0)
        gap_s = np.nan
        if has_queues and settings.V > 0.0:
            gap_s = regret_s(shown.true_tau_s, shown.is_available, queues.values, rows, settings.V)
        queues.advance(is_selected[t])
        columns[:, t] = (
            played.duration_s,
            queues.values.sum(),
            gap_s,
            errors[rows].mean() if rows.size else np.nan,
            errors.mean(),
        )
        broken += not queues.guarantee_holds
        if has_queues:
            apart = np.abs(witness.queues(n) - queues.values).max()
            queue_error = max(queue_error, float(apart))
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
    true_tau_s: Floats, is_available: Bools, queues: Floats, chosen: Ints, weight: float
) -> float:
    """Return by how much a cohort misses the optimum of P3, in seconds.

        (J(S) - min J) / V,   J(S) = V max_{n in S} E tau_n - sum_{n in S} Z_n

    Args:
        true_tau_s: Expected exchange times, seconds, shape (N,).
        is_available: Shape (N,).
        queues: Z before the round, shape (N,).
        chosen: The cohort, shape (k,).
        weight: V, 1/seconds, > 0.
    """
    rows = np.flatnonzero(is_available)
    best = rows[solve_p4(true_tau_s[rows], queues[rows], len(chosen), weight)]

    def objective(cohort: Ints) -> float:
        return weight * float(true_tau_s[cohort].max()) - float(queues[cohort].sum())

    return (objective(chosen) - objective(best)) / weight if chosen.size else 0.0


def play_all(
    arms: Sequence[Arm], rounds: int, seeds: int, workers: int | None = None
) -> dict[Arm, list[Trajectory]]:
    """Return the trajectories of every arm, one for each of the seeds 0, 1, ...

    Args:
        arms: All different.
        rounds: Of each replay.
        seeds: How many.
        workers: Processes; None takes one a core.
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
