"""Many rounds of a policy in the world of the RBCS-F paper, with what its theorems speak of."""

from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import (
    COLD,
    CONTEXT,
    INVERSE_MU,
    UP,
    Learner,
    Measured,
)
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Selector

UPDATE_BITS = 2.0 * 2**20
GROUPS = np.array(
    [
        [1.0, 1.0, 1.0 / np.log(1001.0)],
        [2.0, 1.0, 1.0 / np.log(101.0)],
        [3.0, 1.0, 1.0 / np.log(11.0)],
        [4.0, 1.0, 1.0 / np.log(2.0)],
    ]
)
"""theta of the four groups, fast to slow: as in examples/rbcs-f-paper.toml."""


@dataclass(frozen=True)
class World:
    """How many devices there are, and what chance does."""

    devices: int = 40
    per_round: int = 8
    availability: float = 0.8
    noise: float = 0.1
    failures: float = 0.0
    """Share of exchanges whose update is not merged."""
    gone: tuple[int, ...] = ()
    """Rows that are never there."""

    @property
    def theta(self) -> Floats:
        """True parameters, shape (N, 3)."""
        return GROUPS.repeat(self.devices // len(GROUPS), axis=0)


@dataclass(frozen=True)
class Lived:
    """What a policy did, round by round."""

    is_selected: Bools
    """Shape (T, N)."""
    is_merged: Bools
    """Shape (T, N)."""
    queues: Floats
    """After each round, shape (T, N)."""
    expected_s: Floats
    """Expected time of the slowest that was chosen, seconds, shape (T,)."""
    tau_bar_max_s: Floats
    """Largest lower bound of an available device, seconds, shape (T,)."""

    @property
    def counts(self) -> Ints:
        """Selections after each round, shape (T, N)."""
        return np.cumsum(self.is_selected, axis=0, dtype=np.int64)


def live(
    selector: Selector,
    estimator: Learner,
    world: World,
    *,
    seed: int,
    rounds: int,
    alpha: float = 0.1,
) -> Lived:
    """Return what a policy and its estimator do in a world; the seed fixes all that chance does."""
    n, theta = world.devices, world.theta
    trained = np.zeros(n, dtype=np.bool_)
    selected, merged = np.zeros((2, rounds, n), dtype=np.bool_)
    queues, expected, tau_bar_max = np.zeros((rounds, n)), np.zeros(rounds), np.zeros(rounds)
    chance = np.random.default_rng([seed, 0]).random((rounds, 5, n))
    ties = np.random.default_rng([seed, 1])
    for t, (there, mu, rate, noise, fails) in enumerate(chance):
        is_available = there < world.availability
        is_available[list(world.gone)] = False
        context = np.zeros((n, CONTEXT))
        context[:, INVERSE_MU] = 1.0 / (0.5 + 1.5 * mu)
        context[:, COLD] = ~trained
        context[:, UP] = UPDATE_BITS / (2e6 + 2e6 * rate)
        true_tau_s = (context[:, [INVERSE_MU, COLD, UP]] * theta).sum(axis=1)
        said = estimator.predict(context)
        rows = selector.select(
            Candidates(
                round=t + 1,
                is_available=is_available,
                tau_hat_s=said.tau_hat_s,
                width_s=said.width_s,
                transfer_hat_s=said.transfer_hat_s,
                n_k=np.ones(n, dtype=np.int64),
                true_tau_s=true_tau_s,
            ),
            world.per_round,
            ties,
        )
        tau_s = true_tau_s * (1.0 + world.noise * (2.0 * noise - 1.0))
        selected[t, rows] = True
        merged[t] = selected[t] & (fails >= world.failures)
        trained = merged[t]
        seen_s, loss = np.where(merged[t], tau_s, np.nan), np.where(merged[t], tau_s, np.nan)
        selector.observe(
            Outcomes(t + 1, selected[t], merged[t], np.ones(n, np.int64), seen_s, loss)
        )
        taught = np.flatnonzero(merged[t])
        parts = context[taught][:, [INVERSE_MU, COLD, UP]] * theta[taught]
        nothing = np.zeros(len(taught))
        measured = tau_s[taught] - true_tau_s[taught] + parts[:, 0]
        phases = np.column_stack([nothing, parts[:, 1], measured, parts[:, 2], nothing])
        estimator.observe(taught, context[taught], Measured(tau_s[taught], phases))
        queues[t] = selector.queues(n)
        expected[t] = true_tau_s[rows].max(initial=0.0)
        bars = np.maximum(said.tau_hat_s - alpha * said.width_s, 0.0)
        tau_bar_max[t] = bars[is_available].max(initial=0.0)
    return Lived(selected, merged, queues, expected, tau_bar_max)
