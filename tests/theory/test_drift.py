"""RBCS-F as drift plus penalty: how long queues get, and how near the best its rounds are."""

from functools import cache

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.estimation.ridge import RidgeEstimator
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Selector
from fairbed.coordinator.algorithms.selection.rbcs_f import RbcsF, solve_p4
from fairbed.coordinator.algorithms.selection.uniform import Uniform
from tests.theory.optimum import SmallWorld, least_time_s, most_slack
from tests.theory.rounds import World, live

WORLD = SmallWorld()
ROUNDS, SEEDS = 2000, 2
WEIGHTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class Upside(RbcsF):
    """RBCS-F with the sign of its queues reversed: it avoids devices with large queues."""

    def select(
        self, candidates: Candidates, k: int, rng: np.random.Generator
    ) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
        """Return fast devices with small queues."""
        rows = np.flatnonzero(candidates.is_available)
        z = self.queues(len(candidates.is_available))[rows]
        return rows[solve_p4(candidates.tau_hat_s[rows], -z, k, self._V)]


@cache
def means(kind: str, V: float) -> tuple[float, float, float]:
    """Return mean round time, mean and last backlog (sum Z, and sum Z^2 of the last round)."""
    times, backlogs, squares = list[Floats](), list[Floats](), list[float]()
    for seed in range(SEEDS):
        selector: Selector
        if kind == "uniform":
            selector = Uniform()
        else:
            selector = (Upside if kind == "wrong sign" else RbcsF)(beta=WORLD.beta, V=V)
        time_s, queues = _small_run(selector, seed)
        times.append(time_s)
        backlogs.append(queues.sum(axis=1))
        squares.append(float((queues[-1] ** 2).sum()))
    return float(np.mean(times)), float(np.mean(backlogs)), float(np.mean(squares))


def _small_run(selector: Selector, seed: int) -> tuple[Floats, Floats]:
    """Return round times (T,) and queues (T, N) of a policy that knows the times."""
    rng, n = np.random.default_rng(seed), WORLD.devices
    tau_s, nothing = np.array(WORLD.tau_s), np.zeros(n)
    times, queues, z = np.zeros(ROUNDS), np.zeros((ROUNDS, n)), np.zeros(n)
    for t in range(ROUNDS):
        is_available = rng.random(n) < WORLD.availability
        rows = selector.select(
            Candidates(t + 1, is_available, tau_s, nothing, nothing, np.ones(n, dtype=np.int64)),
            WORLD.per_round,
            rng,
        )
        x = np.zeros(n, dtype=np.bool_)
        x[rows] = True
        selector.observe(Outcomes(t + 1, x, x))
        z = np.maximum(z + WORLD.beta - x, 0.0)
        times[t], queues[t] = tau_s[rows].max(initial=0.0), z
    return times, queues


def time_bound_s(V: float) -> float:
    """f* + Gamma / V."""
    return least_time_s(WORLD, WORLD.beta) + WORLD.gamma / V


def backlog_bound(V: float, mean_s: float) -> float:
    """Least over eps of (Gamma + V (f(beta + eps) - mean f)) / eps, over rates with slack eps."""
    most = most_slack(WORLD)
    shares = np.linspace(0.05, 0.999, 40) * most
    return float(
        min(
            (WORLD.gamma + V * (least_time_s(WORLD, WORLD.beta + eps) - mean_s)) / eps
            for eps in shares
        )
    )


@pytest.mark.parametrize("V", WEIGHTS)
def test_round_times_are_within_gamma_over_v_of_the_best(V: float) -> None:
    assert means("rbcs-f", V)[0] <= time_bound_s(V)


def test_uniform_rounds_are_not() -> None:
    assert means("uniform", 1.0)[0] > time_bound_s(WEIGHTS[-1])


@pytest.mark.parametrize("V", WEIGHTS)
def test_the_mean_backlog_is_bounded_by_what_slack_pays_for(V: float) -> None:
    mean_s, backlog, _ = means("rbcs-f", V)
    assert backlog <= backlog_bound(V, mean_s)


def test_queues_of_the_wrong_sign_break_both_bounds() -> None:
    mean_s, backlog, squares = means("wrong sign", 1.0)
    assert backlog > 10.0 * backlog_bound(1.0, mean_s)
    assert squares > 2.0 * ROUNDS * (WORLD.gamma + max(WORLD.tau_s))


def test_the_backlog_grows_in_proportion_to_v_and_the_gap_shrinks_at_least_so() -> None:
    gaps = [means("rbcs-f", V)[0] - least_time_s(WORLD, WORLD.beta) for V in WEIGHTS]
    backlogs = [means("rbcs-f", V)[1] for V in WEIGHTS]
    slope = np.polyfit(np.log(WEIGHTS[2:]), np.log(backlogs[2:]), 1)[0]
    assert 0.7 < slope < 1.3
    assert gaps == sorted(gaps, reverse=True)
    assert all(V * gap <= WORLD.gamma for V, gap in zip(WEIGHTS, gaps, strict=True))


@pytest.mark.parametrize("V", [5.0, 20.0, 50.0])
def test_squares_of_queues_stay_below_what_the_drift_allows(V: float) -> None:
    """E sum Z_T^2 <= 2 T (Gamma + V max tau_bar), with times that are learned."""
    seen, allowed = squares_and_bound(V)
    assert 0.0 < seen <= allowed


def squares_and_bound(V: float, rounds: int = 300) -> tuple[float, float]:
    """Return the mean of sum Z_T^2, and its bound, in the world of rbcs-f-paper.toml."""
    beta, world = 0.15, World()
    squares, highest = list[float](), list[float]()
    for seed in range(2):
        one = live(RbcsF(beta=beta, V=V), RidgeEstimator(), world, seed=seed, rounds=rounds)
        squares.append(float((one.queues[-1] ** 2).sum()))
        highest.append(float(one.tau_bar_max_s.max()))
    gamma = (world.devices * beta**2 + world.per_round * (1.0 - 2.0 * beta)) / 2.0
    return float(np.mean(squares)), 2.0 * rounds * (gamma + V * float(np.mean(highest)))
