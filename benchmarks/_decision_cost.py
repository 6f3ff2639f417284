"""The decisions of a coordinator, fed with a fleet of devices that are columns and nothing else."""

import time

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import (
    COLD,
    CONTEXT,
    DOWN,
    INVERSE_MU,
    PHASES,
    UP,
    Measured,
)
from fairbed.coordinator.algorithms.selection.base import Outcomes
from fairbed.coordinator.policy.config import RoundConfig, SelectionConfig
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.policy.selection import Observations, Selection
from fairbed.testbed.experiment.file import Experiment

AVAILABILITY = 0.8
WARM_UP_ROUNDS = 30
"""Rounds with random cohorts, after which virtual queues differ between devices."""


class RandomFleet:
    """A fleet in one round, as the decisions read it."""

    def __init__(self, devices: int, rng: np.random.Generator) -> None:
        self._context = np.zeros((devices, CONTEXT))
        self._context[:, INVERSE_MU] = 1.0 / rng.uniform(0.5, 2.0, devices)
        self._context[:, COLD] = rng.random(devices) < 1.0 - 1e-3
        self._context[:, DOWN] = rng.lognormal(-2.0, 1.0, devices)
        self._context[:, UP] = rng.lognormal(-1.0, 1.0, devices)
        self._is_available = rng.random(devices) < AVAILABILITY
        self._n_k = rng.integers(10, 1000, devices)

    def contexts(self, down_bits: float | Floats, up_bits: float | Floats, coding: str) -> Floats:
        """Return the contexts, shape (N, 4); they include the bits already."""
        return self._context

    def cores(self) -> Floats:
        """Return the cores of each device, shape (N,); unknown."""
        return np.full(len(self._n_k), np.inf)

    def available(self, now: float) -> Bools:
        """Return the availability of each device, shape (N,)."""
        return self._is_available

    def n_k(self) -> Ints:
        """Return training examples, shape (N,)."""
        return self._n_k


class DecisionBench:
    """Makes the decisions of rounds and measures their processor time.

    Args:
        config: Policy and estimator.
        devices: Number of devices, N.
        seed: Seed of the fleets and of the exchange times.
    """

    def __init__(self, config: SelectionConfig, devices: int, seed: int = 7) -> None:
        settings = Experiment(name="bench", selection=config, round=RoundConfig(deadline_s=1e6))
        self.decisions = make_decisions(settings.coordinator())
        self._devices, self._rng, self._round = devices, np.random.default_rng(seed), 0
        self._theta = self._rng.lognormal(0.0, 0.7, (devices, CONTEXT))

    def round_s(self) -> float:
        """Run one round and return the processor time of selecting and learning, seconds."""
        self._round += 1
        fleet = RandomFleet(self._devices, self._rng)
        used = time.process_time()
        choice = self.decisions.select(self._round, fleet, (1.0, 1.0), now=0.0)
        select_s = time.process_time() - used
        observations = self._observations(choice)
        used = time.process_time()
        self.decisions.learn(choice, observations)
        return select_s + time.process_time() - used

    def warm_up(self) -> None:
        """Observe every device once, then rounds with random cohorts, so that queues differ."""
        n, rng = self._devices, self._rng
        rows, fleet = np.arange(n), RandomFleet(self._devices, self._rng)
        context = fleet.contexts(1.0, 1.0, "")
        phases_s = self._phases_s(rows, context)
        measured = Measured(phases_s.sum(axis=1), phases_s)
        self.decisions.estimator.observe(rows, context, measured)
        whole = np.ones(n, dtype=np.bool_)
        for is_selected in (whole, *(self._random_cohort() for _ in range(WARM_UP_ROUNDS))):
            self._round += 1
            self.decisions.selector.observe(
                Outcomes(
                    round=self._round,
                    is_selected=is_selected,
                    is_aggregated=is_selected,
                    n_k=fleet.n_k(),
                    tau_s=np.where(is_selected, measured.tau_s, np.nan),
                    loss=np.where(is_selected, rng.lognormal(0.0, 0.5, n), np.nan),
                )
            )

    def _random_cohort(self) -> Bools:
        """Return a random tenth of the devices, shape (N,)."""
        return self._rng.random(self._devices) < 0.1

    def _observations(self, choice: Selection) -> Observations:
        phases_s, k = self._phases_s(choice.rows, choice.context), len(choice.rows)
        return Observations(
            rows=choice.rows,
            tau_s=phases_s.sum(axis=1),
            phases_s=phases_s,
            is_aggregated=np.ones(k, dtype=np.bool_),
            timed_out=np.zeros(k, dtype=np.bool_),
            loss=self._rng.lognormal(0.0, 0.5, k),
            at_least_s=np.full(k, np.nan),
            context=np.full((k, CONTEXT), np.nan),
            was_cold=np.zeros(k, dtype=np.bool_),
            wasted_s=np.full(k, np.nan),
        )

    def _phases_s(self, rows: Ints, context: Floats) -> Floats:
        """Return the phases of exchanges, seconds, shape (len(rows), 5)."""
        noise = self._rng.uniform(0.9, 1.1, (len(rows), CONTEXT))
        parts = self._theta[rows] * context[rows] * noise
        order = [DOWN, COLD, INVERSE_MU, UP]
        return np.column_stack([parts[:, order], np.full(len(rows), 0.01)])


assert len(PHASES) == CONTEXT + 1
