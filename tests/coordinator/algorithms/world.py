"""The linear world of examples/rbcs-f-paper.toml, drawn in advance for all policies."""

from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.estimation.ridge import LinearModels
from fairbed.coordinator.algorithms.fairness import jain
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Selector

ROUNDS, DEVICES, PER_ROUND, BETA = 500, 40, 8, 0.15
AVAILABILITY = 0.8
MODEL_BITS = 2 * 2**20
THETA = np.array(
    [
        [1.0, 1.0, 1.0 / np.log(1001.0)],
        [2.0, 1.0, 1.0 / np.log(101.0)],
        [3.0, 1.0, 1.0 / np.log(11.0)],
        [4.0, 1.0, 1.0 / np.log(2.0)],
    ]
).repeat(DEVICES // 4, axis=0)
"""tau^b, tau^s, 1/eta of four groups of ten devices, fast to slow, shape (N, 3)."""


@dataclass(frozen=True)
class World:
    """All random numbers of a run, for all rounds."""

    is_available: Bools
    """Shape (T, N)."""
    inverse_mu: Floats
    """Shape (T, N)."""
    transfer_s: Floats
    """M / B, shape (T, N)."""
    noise: Floats
    """Relative error of tau, shape (T, N)."""
    seed: int


@dataclass(frozen=True)
class Run:
    """Result of one policy in one world."""

    total_s: float
    counts: Ints
    queues: Floats
    mean_queue: float
    """Sum of Z, mean over the last 100 rounds."""
    ape: float
    """Mean |tau_hat / E tau - 1| of the selected in the second half."""

    @property
    def group_rates(self) -> Floats:
        """Selection rates of the four groups, fast to slow, shape (4,)."""
        rates: Floats = self.counts.reshape(4, -1).mean(axis=1) / ROUNDS
        return rates

    @property
    def min_rate(self) -> float:
        return float(self.counts.min()) / ROUNDS

    @property
    def jain(self) -> float:
        return jain(self.counts)


def draw_world(seed: int, noise: float) -> World:
    """Return the random numbers of a seed; times deviate by up to `noise`, relatively."""
    rng, shape = np.random.default_rng(seed), (ROUNDS, DEVICES)
    return World(
        is_available=rng.uniform(size=shape) < AVAILABILITY,
        inverse_mu=1.0 / rng.uniform(0.5, 2.0, shape),
        transfer_s=MODEL_BITS / rng.uniform(2e6, 4e6, shape),
        noise=rng.uniform(-noise, noise, shape),
        seed=seed,
    )


def simulate(selector: Selector, world: World) -> Run:
    """Return the result of a policy with ridge estimates in a world."""
    ridge, is_warm = LinearModels(3), np.zeros(DEVICES, dtype=np.bool_)
    counts, total_s = np.zeros(DEVICES, dtype=np.int64), 0.0
    backlog, errors = list[float](), list[float]()
    for t in range(ROUNDS):
        context = np.stack([world.inverse_mu[t], ~is_warm, world.transfer_s[t]], axis=1)
        expected_s = np.einsum("ni,ni->n", context, THETA)
        tau_hat_s, width_s = ridge.predict(context)
        candidates = Candidates(
            round=t + 1,
            is_available=world.is_available[t],
            tau_hat_s=tau_hat_s,
            width_s=width_s,
            transfer_hat_s=np.zeros(DEVICES),
            n_k=np.ones(DEVICES, dtype=np.int64),
        )
        rows = selector.select(candidates, PER_ROUND, np.random.default_rng([world.seed, t]))
        tau_s = expected_s[rows] * (1.0 + world.noise[t, rows])
        is_warm = np.isin(np.arange(DEVICES), rows)
        selector.observe(Outcomes(t + 1, is_warm, is_warm))
        ridge.observe(rows, context[rows], tau_s)
        counts[rows] += 1
        total_s += float(tau_s.max())
        backlog.append(float(selector.queues(DEVICES).sum()))
        if t >= ROUNDS // 2:
            relative = tau_hat_s[rows] / expected_s[rows]
            errors.append(float(np.abs(relative - 1.0).mean()))
    return Run(
        total_s=total_s,
        counts=counts,
        queues=selector.queues(DEVICES),
        mean_queue=float(np.mean(backlog[-100:])),
        ape=float(np.mean(errors)),
    )
