"""AAggFF: bounded gradients, what its sampled responses expect, and regret that is bounded."""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations
from typing import Protocol

import numpy as np
import pytest

from fairbed.coordinator.algorithms.aggregation.aaggff import (
    AAggFFD,
    AAggFFS,
    decision_gradient,
    doubly_robust,
    linearised_gradient,
    responses,
)
from fairbed.coordinator.algorithms.arrays import Floats, Ints
from tests.coordinator.algorithms.aggregation.test_aaggff import decision_loss

DRAWS = 1000
RANGES = ((0.0, 0.1), (0.0, 1.0), (0.2, 0.5))
"""C1 and C2 of Lemma 4.1."""
SAMPLING = (0.1, 0.2, 0.5, 1.0)
RARE = SAMPLING[:2]
SILOS, SILO_ROUNDS = (3, 11), 400
DEVICES = 20
DEVICE_RULES = ("AAggFF-D", "equal weights", "turned round")
SAMPLES = ((20, 500), (10, 1000), (4, 500))
"""Of 20 devices, how many report, and for how many rounds."""
REGRET_DRAWS = 10
"""Draws over which an expected regret is averaged."""


def simplex(K: int, rng: np.random.Generator) -> Floats:
    """Return weights, often near a corner, shape (K,)."""
    return rng.dirichlet(np.full(K, float(rng.choice([0.05, 1.0, 10.0]))))


def largest_gradient(least: float, most: float, *, bounded: bool = True) -> float:
    """Return the largest |g|_inf / L_inf over weights and losses; responses in [C1, C2] or not."""
    rng, found = np.random.default_rng(1), 0.0
    for _ in range(DRAWS):
        K = int(rng.integers(2, 12))
        losses = 10.0 ** rng.uniform(-3.0, 3.0, K)
        r = responses(losses, "weibull", most, least)
        if not bounded:
            r = least + (most - least) * losses / losses.mean()
        g = decision_gradient(simplex(K, rng), r)
        found = max(found, float(np.abs(g).max()) / (most / (1.0 + least)))
    return found


def largest_slope(least: float, most: float) -> float:
    """Return the largest |l(p) - l(q)| / (L_inf |p - q|_1) over pairs of weights."""
    rng, found = np.random.default_rng(2), 0.0
    for _ in range(DRAWS):
        K = int(rng.integers(2, 12))
        p, q, r = simplex(K, rng), simplex(K, rng), rng.choice([least, most], K)
        rise = abs(decision_loss(p, r) - decision_loss(q, r))
        found = max(found, rise / (np.abs(p - q).sum() * most / (1.0 + least)))
    return found


def largest_linearised(C: float, most: float) -> float:
    """Return the largest |g|_inf / (2 + C) of sampled responses in [0, most]."""
    rng, found = np.random.default_rng(3), 0.0
    for _ in range(DRAWS):
        rows = rng.choice(DEVICES, round(C * DEVICES), replace=False)
        r = responses(10.0 ** rng.uniform(-3.0, 3.0, len(rows)), "weibull", most)
        full = doubly_robust(r, rows, DEVICES, C, float(r.mean()))
        g = linearised_gradient(simplex(DEVICES, rng), full, float(r.mean()))
        found = max(found, float(np.abs(g).max()) / (2.0 + C))
    return found


def without_the_mean(
    r: Floats, rows: Ints, clients: int, inclusion: float, imputed: float
) -> Floats:
    """Return the estimate of the released code: who was seen does not get the mean back."""
    full = np.full(clients, imputed)
    full[rows] = (r - imputed) / inclusion
    return full


def expected(r: Floats, m: int, estimate: Callable[..., Floats], imputed: float | None) -> Floats:
    """Return the mean estimate over all samples of m of K, shape (K,); None imputes their mean."""
    K = len(r)
    samples = [np.array(rows) for rows in combinations(range(K), m)]
    estimates = [
        estimate(r[rows], rows, K, m / K, r[rows].mean() if imputed is None else imputed)
        for rows in samples
    ]
    mean: Floats = np.mean(estimates, axis=0)
    return mean


def identity_error(m: int, estimate: Callable[..., Floats] = doubly_robust) -> float:
    """Return how far the mean estimate is from mean + f (r - mean), f = 1 - (K - m)/(m (K - 1))."""
    r = np.random.default_rng(4).random(7)
    f = 1.0 - (len(r) - m) / (m * (len(r) - 1))
    meant = r.mean() + f * (r - r.mean())
    return float(np.abs(expected(r, m, estimate, None) - meant).max())


class Decides(Protocol):
    """Weights, and how they learn."""

    p: Floats

    def learn(self, r: Floats) -> None:
        """Decide anew after responses of all, shape (K,)."""
        ...


class Never(AAggFFS):
    """Keeps equal weights."""

    def learn(self, r: Floats) -> None:
        """Learn nothing."""


class TurnedRound(AAggFFS):
    """Learns from responses that fall with the loss, as erfc for erf makes them."""

    def learn(self, r: Floats) -> None:
        """Learn the reverse."""
        super().learn(self.most - r)


class Leader:
    """Follows the leader: no |p|^2, no squares; all the weight to the best so far."""

    def __init__(self, clients: int) -> None:
        self.p = np.full(clients, 1.0 / clients)
        self._G = np.zeros(clients)

    def learn(self, r: Floats) -> None:
        """Go to the corner with the least sum of gradients."""
        self._G += decision_gradient(self.p, r)
        self.p = np.eye(len(r))[int(self._G.argmin())]


SILO_RULES: Mapping[str, Callable[[int], Decides]] = {
    "AAggFF-S": AAggFFS,
    "beta at most 1/2": lambda K: AAggFFS(K, 0.5),
    "equal weights": Never,
    "responses turned round": TurnedRound,
    "follow the leader": Leader,
}

Adversary = Callable[[Floats, int, int], Floats]
"""Which share of the largest response each client gives, of weights, round and rounds."""


def one(K: int, at: int) -> Floats:
    corner: Floats = np.eye(K)[at % K]
    return corner


ADVERSARIES: Mapping[str, Adversary] = {
    "one is high": lambda p, t, T: one(len(p), 0),
    "another after half": lambda p, t, T: one(len(p), int(2 * t >= T)),
    "two in turn": lambda p, t, T: one(len(p), t % 2),
    "whoever has least": lambda p, t, T: one(len(p), int(p.argmin())),
    "all but who has most": lambda p, t, T: 1.0 - one(len(p), int(p.argmax())),
    "at random": lambda p, t, T: np.random.default_rng(t).random(len(p)),
}


def best_fixed_loss(r: Floats) -> float:
    """Return a lower bound of the least sum of decision losses of fixed weights; r is (T, K).

    As <p, 1> = 1, the loss is -log <p, 1 + r>: a portfolio of constant shares. Cover's step
    multiplies each share by what it earned; the largest such factor says how far it is.
    """
    earned, p = 1.0 + r, np.full(r.shape[1], 1.0 / r.shape[1])
    for _ in range(300):
        factors = (earned / (earned @ p)[:, None]).mean(axis=0)
        p = p * factors
    factors = (earned / (earned @ p)[:, None]).mean(axis=0)
    return float(-np.log(earned @ p).sum() - len(r) * np.log(factors.max()))


@cache
def silo_regret(name: str, adversary: str, K: int) -> float:
    """Return an upper bound of the regret of a rule for silos after SILO_ROUNDS."""
    rule, seen, paid = SILO_RULES[name](K), [], 0.0
    for t in range(SILO_ROUNDS):
        r = ADVERSARIES[adversary](rule.p, t, SILO_ROUNDS) / K
        paid += decision_loss(rule.p, r)
        rule.learn(r)
        seen.append(r)
    return paid - best_fixed_loss(np.array(seen))


def largest_silo_regret(name: str, K: int) -> float:
    """Return its regret with the worst of the adversaries."""
    return max(silo_regret(name, adversary, K) for adversary in ADVERSARIES)


def silo_bound(K: int) -> float:
    """2 L_inf K (1 + log(1 + T / (16 K))) with L_inf = 1 / K."""
    return float(2.0 * (1.0 + np.log1p(SILO_ROUNDS / (16.0 * K))))


@cache
def device_regret(adversary: str, m: int, T: int, kind: str = "AAggFF-D") -> float:
    """Return sum <g, p> - min_i sum g_i of the linearised losses, m of 20 devices a round."""
    rng, rule = np.random.default_rng(5), AAggFFD(DEVICES, m)
    paid, total = 0.0, np.zeros(DEVICES)
    for t in range(T):
        p = rule.p
        rows = rng.choice(DEVICES, m, replace=False)
        r = ADVERSARIES[adversary](p, t, T)[rows] * rule.inclusion(m)
        g = rule.learn(rows, rule.inclusion(m) - r if kind == "turned round" else r)
        if kind != "AAggFF-D":
            p = np.full(DEVICES, 1.0 / DEVICES) if kind == "equal weights" else p
            full = doubly_robust(r, rows, DEVICES, rule.inclusion(m), float(r.mean()))
            g = linearised_gradient(p, full, float(r.mean()))
        paid += float(g @ p)
        total += g
    return paid - float(total.min())


def largest_device_regret(m: int, T: int, kind: str = "AAggFF-D") -> float:
    """Return its regret with the worst of the adversaries."""
    return max(device_regret(adversary, m, T, kind) for adversary in ADVERSARIES)


def device_bound(m: int, T: int) -> float:
    """(L + L_inf^2 / L) sqrt(T log K) if all report, else 2 L sqrt(T log K), L = 2 + m / K."""
    lipschitz = 2.0 + m / DEVICES
    factor = lipschitz + (1.0 / lipschitz if m == DEVICES else lipschitz)
    return float(factor * np.sqrt(T * np.log(DEVICES)))


def theorem_lipschitz(m: int) -> float:
    """L_inf = C2 / (1 + C1) of the decision loss, with responses in [0, m / K]: Lemma 4.1."""
    return m / DEVICES


def rule_lipschitz(m: int) -> float:
    """2 + m / K, of the linearised loss of a sample: Lemma A.2. The rule's step has this one."""
    return 2.0 + m / DEVICES


def theorem_bound(m: int, T: int) -> float:
    """2 L_inf sqrt(T log K): Theorem 5.2 if all report, Corollary 5.3 in expectation."""
    return float(2.0 * theorem_lipschitz(m) * np.sqrt(T * np.log(DEVICES)))


class EntropyLeader:
    """The update of AAggFF-D (Remark 4.5) with a step of any Lipschitz constant L.

    p_i ~ exp(-sqrt(log K) / (L sqrt(t + 1)) G_i),   G = sum of the gradients of rounds 1..t
    """

    def __init__(self, lipschitz: float) -> None:
        self.p = np.full(DEVICES, 1.0 / DEVICES)
        self._G, self._t, self._lipschitz = np.zeros(DEVICES), 0, lipschitz

    def learn(self, g: Floats) -> None:
        """Decide anew after a gradient, shape (K,)."""
        self._G, self._t = self._G + g, self._t + 1
        scores = -np.sqrt(np.log(DEVICES) / (self._t + 1)) / self._lipschitz * self._G
        p = np.exp(scores - scores.max())
        self.p = p / p.sum()


@cache
def decision_regret(adversary: str, m: int, T: int, lipschitz: float) -> float:
    """Return the regret of the decision losses, a mean over draws of m of 20 devices a round.

    If all report, the gradient is exact and there is one draw, as in Theorem 5.2; otherwise it is
    the linearised gradient of doubly robust responses, as in Corollary 5.3. `lipschitz` = inf keeps
    equal weights.
    """
    found, C = list[float](), m / DEVICES
    for draw in range(1 if m == DEVICES else REGRET_DRAWS):
        rng, leader = np.random.default_rng(draw), EntropyLeader(lipschitz)
        paid, seen = 0.0, list[Floats]()
        for t in range(T):
            r = C * ADVERSARIES[adversary](leader.p, t, T)
            paid += decision_loss(leader.p, r)
            seen.append(r)
            if m == DEVICES:
                leader.learn(decision_gradient(leader.p, r))
                continue
            rows = rng.choice(DEVICES, m, replace=False)
            mean = float(r[rows].mean())
            full = doubly_robust(r[rows], rows, DEVICES, C, mean)
            leader.learn(linearised_gradient(leader.p, full, mean))
        found.append(paid - best_fixed_loss(np.array(seen)))
    return float(np.mean(found))


def largest_decision_regret(m: int, T: int, lipschitz: float) -> float:
    """Return the mean regret with the worst of the adversaries."""
    return max(decision_regret(adversary, m, T, lipschitz) for adversary in ADVERSARIES)


@pytest.mark.parametrize(("least", "most"), RANGES)
def test_gradients_of_bounded_responses_are_bounded(least: float, most: float) -> None:
    assert 0.9 < largest_gradient(least, most) <= 1.0
    assert largest_slope(least, most) <= 1.0


@pytest.mark.parametrize(("least", "most"), RANGES)
def test_those_of_losses_themselves_are_not(least: float, most: float) -> None:
    assert largest_gradient(least, most, bounded=False) > 1.3


@pytest.mark.parametrize("C", SAMPLING)
def test_linearised_gradients_are_bounded_whatever_is_sampled(C: float) -> None:
    assert largest_linearised(C, C) <= 1.0


@pytest.mark.parametrize("C", RARE)
def test_responses_up_to_one_break_it(C: float) -> None:
    assert largest_linearised(C, 1.0) > 1.0


@pytest.mark.parametrize("m", range(1, 8))
def test_what_a_sampled_response_expects(m: int) -> None:
    """For m = 1 it is the mean, whoever is drawn; for m = K it is the response."""
    assert identity_error(m) < 1e-12


@pytest.mark.parametrize("m", range(2, 7))
def test_without_the_mean_given_back_it_expects_something_else(m: int) -> None:
    assert identity_error(m, without_the_mean) > 0.05


@pytest.mark.parametrize("m", range(1, 8))
def test_a_mean_that_is_known_before_is_unbiased(m: int) -> None:
    r = np.random.default_rng(4).random(7)
    np.testing.assert_allclose(expected(r, m, doubly_robust, 0.3), r, atol=1e-12)
    if m < 7:
        assert not np.allclose(expected(r, m, doubly_robust, None), r, atol=1e-3)


@pytest.mark.parametrize("K", SILOS)
@pytest.mark.parametrize("name", ["AAggFF-S", "beta at most 1/2"])
def test_regret_of_silos_is_bounded_against_every_adversary(name: str, K: int) -> None:
    assert largest_silo_regret(name, K) <= silo_bound(K)


@pytest.mark.parametrize("K", SILOS)
@pytest.mark.parametrize("name", ["equal weights", "responses turned round", "follow the leader"])
def test_regret_of_who_does_not_learn_it_is_not(name: str, K: int) -> None:
    assert largest_silo_regret(name, K) > 1.5 * silo_bound(K)


@pytest.mark.parametrize(("m", "T"), SAMPLES)
def test_regret_of_devices_is_bounded_against_every_adversary(m: int, T: int) -> None:
    assert 0.0 < largest_device_regret(m, T) <= device_bound(m, T)


@pytest.mark.parametrize("kind", DEVICE_RULES[1:])
@pytest.mark.parametrize(("m", "T"), SAMPLES[:2])
def test_regret_of_devices_that_learn_nothing_is_not(kind: str, m: int, T: int) -> None:
    assert largest_device_regret(m, T, kind) > 1.5 * device_bound(m, T)


@pytest.mark.parametrize(("m", "T"), SAMPLES)
def test_regret_with_the_step_of_the_theorem_is_within_its_bound(m: int, T: int) -> None:
    """Theorem 5.2 if all report; its corollary for samples, against oblivious adversaries too."""
    regret = largest_decision_regret(m, T, theorem_lipschitz(m))
    assert 0.0 < regret <= theorem_bound(m, T)


@pytest.mark.parametrize(("m", "T"), SAMPLES)
def test_equal_weights_are_not_within_the_bound_of_the_theorem(m: int, T: int) -> None:
    assert largest_decision_regret(m, T, np.inf) > 1.5 * theorem_bound(m, T)


def test_the_bound_of_the_theorem_needs_the_step_of_the_theorem() -> None:
    """The paper's Remark A.13: with the constant of Lemma A.2 in the step, regret is larger."""
    m, T = SAMPLES[-1]
    assert decision_regret("one is high", m, T, theorem_lipschitz(m)) <= theorem_bound(m, T)
    assert decision_regret("one is high", m, T, rule_lipschitz(m)) > 3.0 * theorem_bound(m, T)
    assert device_regret("one is high", m, T) > 3.0 * theorem_bound(m, T)


def test_the_rule_has_the_step_of_the_sampled_constant() -> None:
    rng, rule = np.random.default_rng(6), AAggFFD(DEVICES, 4)
    leader = EntropyLeader(rule_lipschitz(4))
    for _ in range(30):
        rows = rng.choice(DEVICES, 4, replace=False)
        leader.learn(rule.learn(rows, rng.uniform(0.0, rule.inclusion(4), 4)))
        np.testing.assert_allclose(leader.p, rule.p, rtol=1e-12)
