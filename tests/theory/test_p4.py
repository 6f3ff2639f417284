"""P4: the form in O(N log N) finds what trying every cohort finds."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection import rbcs_f as p4
from fairbed.coordinator.algorithms.selection.rbcs_f import solve_p4

INSTANCES = 1500
Solver = Callable[[Floats, Floats, int, float], Ints]


def objective(tau_s: Floats, z: Floats, V: float, cohort: Ints | tuple[int, ...]) -> float:
    at = list(cohort)
    return float(V * tau_s[at].max() - z[at].sum())


def by_debt_then_time(tau_s: Floats, z: Floats, k: int, V: float) -> Ints:
    """Return who has the best Z - V tau each: the mean instead of the slowest."""
    return np.argsort(V * tau_s / k - z, kind="stable")[:k]


def first_improvement(tau_s: Floats, z: Floats, k: int, V: float) -> Ints:
    """Return the best k of the first prefix after which J rises: a sweep that stops too soon."""
    order = np.argsort(tau_s, kind="stable")
    best, chosen = np.inf, order[:k]
    for j in range(k, len(order) + 1):
        cohort = order[:j][np.argsort(-z[order[:j]], kind="stable")[:k]]
        if objective(tau_s, z, V, cohort) > best:
            break
        best, chosen = objective(tau_s, z, V, cohort), cohort
    return chosen


def mismatches(solver: Solver, seed: int = 1) -> int:
    """Return on how many of the random instances, half of them with ties, a solver is worse."""
    rng, worse = np.random.default_rng(seed), 0
    for instance in range(INSTANCES):
        n = int(rng.integers(2, 9))
        k, V = int(rng.integers(1, n + 1)), float(rng.choice([0.0, 0.5, 2.0, 10.0]))
        tau_s, z = rng.uniform(0.0, 9.0, n), rng.uniform(0.0, 9.0, n)
        if instance % 2:
            tau_s, z = np.round(tau_s), np.round(z)
        best = min(objective(tau_s, z, V, cohort) for cohort in combinations(range(n), k))
        worse += objective(tau_s, z, V, tuple(solver(tau_s, z, k, V).tolist())) > best + 1e-9
    return worse


def test_it_is_never_worse_than_brute_force() -> None:
    assert mismatches(solve_p4) == 0


@pytest.mark.parametrize("wrong", [by_debt_then_time, first_improvement])
def test_shortcuts_are(wrong: Solver) -> None:
    assert mismatches(wrong) > INSTANCES // 100


@pytest.mark.parametrize("block", [1, 2, 7, 4096])
def test_the_size_of_its_blocks_changes_nothing(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    instances = [
        (rng.integers(0, 90, 60) / 10.0, rng.integers(0, 40, 60) / 8.0, 6, V)
        for V in (0.0, 0.5, 5.0)
        for _ in range(20)
    ]
    before = [solve_p4(*one).tolist() for one in instances]
    monkeypatch.setattr(p4, "BLOCK", block)
    assert [solve_p4(*one).tolist() for one in instances] == before
