"""The O(N log N) form of P4 against brute force and the published O(N^2) algorithm."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.algorithms.selection import rbcs_f as p4
from fairbed.coordinator.algorithms.selection.rbcs_f import solve_p4
from tests.strategies import P4Instance, p4_instances
from tests.tiers import examples


def objective(x: P4Instance, chosen: Ints | tuple[int, ...]) -> float:
    at = list(chosen)
    return float(x.V * x.tau_bar_s[at].max() - x.queues[at].sum())


def brute_force(x: P4Instance) -> float:
    """Return the smallest objective over all sets of k."""
    return min(objective(x, chosen) for chosen in combinations(range(len(x.queues)), x.k))


def algorithm_1(x: P4Instance) -> float:
    """Return the objective of the published O(N^2) algorithm (arXiv:2011.01783, Algorithm 1)."""
    by_debt = np.argsort(-x.queues, kind="stable")
    best = np.inf
    for slowest in by_debt:
        fast_enough = [n for n in by_debt if x.tau_bar_s[n] <= x.tau_bar_s[slowest]][: x.k]
        if len(fast_enough) == x.k:
            best = min(best, objective(x, tuple(fast_enough)))
    return float(best)


@settings(max_examples=examples(500))
@given(p4_instances())
def test_agrees_with_brute_force_and_the_published_algorithm(x: P4Instance) -> None:
    chosen = solve_p4(x.tau_bar_s, x.queues, x.k, x.V)
    assert len(set(chosen.tolist())) == x.k
    assert objective(x, chosen) == pytest.approx(brute_force(x), abs=1e-9)
    assert objective(x, chosen) == pytest.approx(algorithm_1(x), abs=1e-9)


def test_agrees_with_the_published_algorithm_on_larger_fleets() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        n = int(rng.integers(20, 60))
        queues = 0.15 * rng.integers(0, 30, n).astype(np.float64)
        times = np.round(rng.uniform(0.5, 9.0, n), 1)
        x = P4Instance(times, queues, int(rng.integers(1, n)), 5.0)
        chosen = solve_p4(x.tau_bar_s, x.queues, x.k, x.V)
        assert objective(x, chosen) == pytest.approx(algorithm_1(x), abs=1e-9)


@settings(max_examples=examples(500))
@given(p4_instances())
def test_the_cohort_is_the_same_however_many_are_sorted_first(x: P4Instance) -> None:
    """Bit for bit, ties included: a block of 4096 holds all of these, one of 1 or 2 does not."""
    whole = solve_p4(x.tau_bar_s, x.queues, x.k, x.V)
    for block, growth in ((1, 2), (2, 3)):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(p4, "BLOCK", block)
            patched.setattr(p4, "GROWTH", growth)
            assert solve_p4(x.tau_bar_s, x.queues, x.k, x.V).tolist() == whole.tolist()


@pytest.mark.parametrize("V", [0.0, 0.01, 1.0, 100.0])
def test_a_large_fleet_is_sorted_only_as_far_as_it_matters(V: float) -> None:
    rng = np.random.default_rng(3)
    n = 5 * p4.BLOCK
    times = np.round(rng.uniform(0.0, 9.0, n), 2)
    queues = 0.15 * rng.integers(0, 30, n).astype(np.float64)
    for k in (1, 7, 300):
        chosen = solve_p4(times, queues, k, V)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(p4, "BLOCK", n)
            assert chosen.tolist() == solve_p4(times, queues, k, V).tolist()


@given(p4_instances())
def test_the_order_of_the_devices_does_not_change_the_value(x: P4Instance) -> None:
    reversed_ = solve_p4(x.tau_bar_s[::-1], x.queues[::-1], x.k, x.V)
    mirrored = len(x.queues) - 1 - reversed_
    assert objective(x, mirrored) == pytest.approx(
        objective(x, solve_p4(x.tau_bar_s, x.queues, x.k, x.V)), abs=1e-9
    )


@given(p4_instances())
def test_without_a_weight_on_time_it_takes_the_largest_queues(x: P4Instance) -> None:
    chosen = solve_p4(x.tau_bar_s, x.queues, x.k, 0.0)
    assert x.queues[chosen].sum() == pytest.approx(np.sort(x.queues)[-x.k :].sum(), abs=1e-9)


@given(p4_instances(max_devices=6))
def test_a_larger_queue_never_loses_its_place(x: P4Instance) -> None:
    """Monotone: a selected device stays selected when its own queue grows."""
    chosen = solve_p4(x.tau_bar_s, x.queues, x.k, x.V)
    queues = x.queues.copy()
    queues[chosen[0]] += 1.0
    assert chosen[0] in solve_p4(x.tau_bar_s, queues, x.k, x.V)


@pytest.mark.parametrize(
    ("V", "queues", "expected", "value"),
    [
        (1.0, [0.0, 0.3, 0.6, 2.5], [2, 3], 0.9),
        (1.0, [0.0, 0.3, 0.6, 1.0], [0, 1], 1.7),
        (10.0, [0.0, 0.3, 0.6, 2.5], [0, 1], 19.7),
        (0.0, [0.0, 0.3, 0.6, 2.5], [2, 3], -3.1),
    ],
)
def test_worked_examples(V: float, queues: list[float], expected: list[int], value: float) -> None:
    x = P4Instance(np.array([1.0, 2.0, 3.0, 4.0]), np.array(queues), 2, V)
    chosen = solve_p4(x.tau_bar_s, x.queues, x.k, x.V)
    assert chosen.tolist() == expected
    assert objective(x, chosen) == pytest.approx(value)


@pytest.mark.parametrize(
    ("tau_bar_s", "queues", "expected", "rule"),
    [
        ([1.0, 2.0, 1.0], [1.0, 2.0, 0.0], [0, 2], "equal J: the shorter prefix"),
        ([1.0, 1.0, 1.0], [0.0, 0.5, 0.5], [1, 2], "equal times: the larger queues"),
        ([3.0, 1.0, 2.0], [0.5, 0.5, 0.5], [1, 2], "equal queues: the faster devices"),
        ([1.0, 1.0, 1.0], [0.5, 0.5, 0.5], [0, 1], "all equal: the position"),
    ],
)
def test_ties_follow_the_stated_rule(
    tau_bar_s: list[float], queues: list[float], expected: list[int], rule: str
) -> None:
    chosen = solve_p4(np.array(tau_bar_s), np.array(queues), 2, 2.0 if "J" in rule else 1.0)
    assert chosen.tolist() == expected, rule


def test_a_cohort_of_none_or_all_needs_no_search() -> None:
    times, queues = np.array([2.0, 1.0]), np.array([0.0, 1.0])
    assert solve_p4(times, queues, 0, 1.0).tolist() == []
    assert solve_p4(times, queues, 2, 1.0).tolist() == [0, 1]
    assert solve_p4(times, queues, 5, 1.0).tolist() == [0, 1]
