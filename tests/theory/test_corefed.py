"""CoreFed, Theorem 2: with convex losses, where it stops is in the core; and n is not too much.

The certificate: no theta' makes sum_i w_i u_i(theta') / u_i(theta) larger than sum_i w_i. Its
largest value is one convex fit. Where it is larger, a coalition may block; whether one does is
tried.
"""

from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations

import numpy as np
import pytest
from scipy.optimize import minimize

from fairbed.coordinator.algorithms.aggregation.corefed import corefed_weights, utilities
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.core_stability import gain, strongest_coalition

AGENTS, DIMENSIONS = 5, 3
GAMES = range(4)
STEPS, STEP = 600, 0.5
PENALTY = 0.05
"""Of |theta|^2 / 2, so that a logistic loss is least somewhere."""
CLOSE = 1e-6
"""How near 1 a certificate comes: the rule stops after STEPS, and the fit when it hardly moves."""


@dataclass(frozen=True)
class Game:
    """Convex losses of a few agents, of very different sizes, and what each counts."""

    x: Floats
    """Shape (AGENTS, examples, DIMENSIONS)."""
    y: Floats
    """Targets, or -1 and 1, shape (AGENTS, examples)."""
    is_logistic: bool
    scale: Floats
    """How much worse than others an agent's loss gets, shape (AGENTS,)."""
    M: Floats
    """Above the losses anywhere in between, shape (AGENTS,)."""
    w: Floats

    def losses(self, theta: Floats) -> Floats:
        """Return F, shape (AGENTS,)."""
        said = self.x @ theta
        each = np.logaddexp(0.0, -self.y * said) if self.is_logistic else (said - self.y) ** 2 / 2
        losses: Floats = self.scale * (each.mean(axis=1) + PENALTY / 2 * theta @ theta)
        return losses

    def gradients(self, theta: Floats) -> Floats:
        """Return the gradients of F, shape (AGENTS, DIMENSIONS)."""
        said = self.x @ theta
        if self.is_logistic:
            slope = self.y * (np.tanh(self.y * said / 2.0) - 1.0) / 2.0
        else:
            slope = said - self.y
        mean = np.einsum("kn,knd->kd", slope, self.x) / self.x.shape[1]
        gradients: Floats = self.scale[:, None] * (mean + PENALTY * theta)
        return gradients

    def utilities(self, theta: Floats) -> Floats:
        """Return u, shape (AGENTS,)."""
        return utilities(self.losses(theta), self.M)

    def fit(self, weights: Floats) -> Floats:
        """Return where the weighted sum of losses is least, shape (DIMENSIONS,)."""

        def loss(theta: Floats) -> float:
            return float(weights @ self.losses(theta))

        def gradient(theta: Floats) -> Floats:
            slope: Floats = weights @ self.gradients(theta)
            return slope

        start = np.zeros(DIMENSIONS)
        found = minimize(loss, start, jac=gradient, method="BFGS", options={"gtol": 1e-10})
        theta: Floats = found.x
        return theta


def game(seed: int) -> Game:
    """Return a game: four agents that nearly agree, and one with larger losses that does not."""
    rng, is_logistic = np.random.default_rng(seed), bool(seed % 2)
    truth = rng.normal(size=DIMENSIONS)
    truths = truth + 0.5 * rng.normal(size=(AGENTS, DIMENSIONS))
    truths[-1] = -truth
    x = rng.normal(size=(AGENTS, 30, DIMENSIONS))
    y = np.einsum("knd,kd->kn", x, truths) + 0.3 * rng.normal(size=x.shape[:2])
    scale = np.array([1.0, 1.0, 1.0, 1.0, 30.0])
    made = Game(x, np.sign(y) if is_logistic else y, is_logistic, scale, scale, np.ones(AGENTS))
    alone = [made.fit(np.eye(AGENTS)[k] + 1e-3 / scale) for k in range(AGENTS)]
    M = 1.2 * np.max([made.losses(theta) for theta in alone], axis=0)
    return Game(x, made.y, is_logistic, scale, M, rng.uniform(0.2, 3.0, AGENTS))


@cache
def corefed(seed: int, kind: str = "plain") -> tuple[Floats, Game]:
    """Return where a rule stops, shape (DIMENSIONS,), and its game.

    Each device makes one step along its gradient, on all its data.
    """
    played = game(seed)
    if kind == "fedavg":
        return played.fit(np.ones(AGENTS)), played
    M = 3.0 * played.M if kind == "another M" else played.M
    w = played.w if kind == "weighted" else None
    theta = np.zeros(DIMENSIONS)
    for _ in range(STEPS):
        gradients = played.gradients(theta)
        steps = -STEP * gradients
        theta = theta + corefed_weights(played.losses(theta), M, w) @ steps
    return theta, played


def certificate(theta: Floats, played: Game, w: Floats | None = None) -> float:
    """Return the largest sum_i w_i u_i(theta') / u_i(theta) over all theta', over sum w."""
    share = np.ones(AGENTS) if w is None else w
    u = played.utilities(theta)
    best = played.fit(share / u)
    return gain(u, played.M - played.losses(best), share)


def core_margin(u: Floats, others: Floats) -> float:
    """Return the largest rho_(s) s / n over coalitions and alternatives, (A, n)."""
    return strongest_coalition(u, others).margin


def margin(theta: Floats, played: Game) -> float:
    """Return the core margin over the best models of all coalitions."""
    coalitions = chain.from_iterable(combinations(range(AGENTS), k) for k in range(1, AGENTS + 1))
    weights = [np.isin(np.arange(AGENTS), one) / played.scale for one in coalitions]
    others = [played.utilities(played.fit(one + 1e-6)) for one in weights]
    return core_margin(played.utilities(theta), np.array(others))


def on_the_simplex(n: int, seed: int) -> Floats:
    """Return where CoreFed stops with u_i = theta_i on the simplex, shape (n,).

    Device i goes along its own axis; the step is projected on the plane of sum 1.
    """
    theta = 0.5 / n + 0.5 * np.random.default_rng(seed).dirichlet(np.ones(n))
    for _ in range(2000):
        step = corefed_weights(1.0 - theta, 1.0) * 0.02
        theta = theta + step - step.mean()
    return theta


def largest_on_simplex(theta: Floats) -> float:
    """Return the largest sum_i theta'_i / theta_i over the simplex, over n: at a corner."""
    return float((1.0 / theta).max() / len(theta))


def largest_certificate(kind: str, *, is_weighted: bool = False) -> float:
    """Return the largest certificate over the games of where a rule stops."""
    found = []
    for seed in GAMES:
        theta, played = corefed(seed, kind)
        found.append(certificate(theta, played, played.w if is_weighted else None))
    return max(found)


@pytest.mark.parametrize("seed", GAMES)
def test_where_it_stops_nobody_can_gain_together(seed: int) -> None:
    theta, played = corefed(seed)
    assert (played.losses(theta) < played.M).all()
    assert certificate(theta, played) == pytest.approx(1.0, abs=CLOSE)
    assert margin(theta, played) < 1.0


@pytest.mark.parametrize("seed", GAMES)
def test_weighted_it_is_in_the_weighted_core(seed: int) -> None:
    theta, played = corefed(seed, "weighted")
    assert certificate(theta, played, played.w) == pytest.approx(1.0, abs=CLOSE)
    assert certificate(theta, played) > 1.0 + 100.0 * CLOSE
    plain, _ = corefed(seed)
    assert certificate(plain, played, played.w) > 1.0 + 100.0 * CLOSE


@pytest.mark.parametrize("seed", GAMES)
def test_the_mean_of_losses_is_not_in_it(seed: int) -> None:
    """One agent with large losses is served, and the others would gain without it."""
    assert certificate(*corefed(seed, "fedavg")) > 1.3


def test_four_of_five_would_leave_the_mean_of_losses() -> None:
    margins = [margin(*corefed(seed, "fedavg")) for seed in GAMES]
    assert sum(one > 1.0 for one in margins) >= 2


@pytest.mark.parametrize("seed", GAMES)
def test_utilities_of_another_m_are_those_of_another_game(seed: int) -> None:
    assert certificate(*corefed(seed, "another M")) > 1.0 + 100.0 * CLOSE


def test_a_coalition_blocks_by_the_prefix_of_its_gains() -> None:
    """Two of three must gain half again; one alone three times as much."""
    assert core_margin(np.ones(3), np.array([[1.6, 1.5, 0.5]])) == pytest.approx(1.0)
    assert core_margin(np.ones(3), np.array([[1.4, 1.4, 0.5]])) == pytest.approx(2.8 / 3.0)
    assert core_margin(np.ones(3), np.array([[3.3, 0.1, 0.1]])) == pytest.approx(1.1)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_the_factor_n_is_tight_on_the_simplex(n: int) -> None:
    """u_i = theta_i: everybody gets 1 / n of the best there is, and nothing gives all more."""
    theta = on_the_simplex(n, seed=n)
    np.testing.assert_allclose(theta, 1.0 / n, rtol=1e-9)
    assert largest_on_simplex(theta) == pytest.approx(1.0, abs=1e-9)
    for other in np.random.default_rng(n).dirichlet(np.ones(n), 200):
        assert largest_on_simplex(other) > 1.0, "whoever has least would have n times as much"
        assert core_margin(other, np.eye(n)) > 1.0
