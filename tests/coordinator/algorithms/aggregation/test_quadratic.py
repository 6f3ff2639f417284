"""Minimum of a quadratic form on the simplex, compared with enumeration of all supports."""

from itertools import chain, combinations

import numpy as np
import pytest

from experiments.quadratic_solvers import (
    EPSILONS,
    FAMILIES,
    Form,
    common_descents,
    ours,
    slsqp,
)
from fairbed.coordinator.algorithms.aggregation.quadratic import least_on_simplex
from fairbed.coordinator.algorithms.arrays import Floats


def form(K: int, rng: np.random.Generator, ridge: float = 0.1) -> tuple[Floats, Floats]:
    """Return A and c of a random form, whose minimum is usually on the boundary."""
    x = rng.normal(size=(K, K))
    return x @ x.T + ridge * np.eye(K), rng.normal(0.0, 3.0, K)


def value(A: Floats, c: Floats, p: Floats) -> float:
    return float(0.5 * p @ A @ p - c @ p)


def by_enumeration(A: Floats, c: Floats) -> Floats:
    """Return the best minimiser over all supports."""
    K = len(c)
    supports = chain.from_iterable(combinations(range(K), k) for k in range(1, K + 1))
    found = []
    for support in map(list, supports):
        ones = np.ones((len(support), 1))
        kkt = np.block([[A[np.ix_(support, support)], -ones], [ones.T, np.zeros((1, 1))]])
        p = np.zeros(K)
        p[support] = np.linalg.solve(kkt, np.append(c[support], 1.0))[:-1]
        if p.min() >= 0.0:
            found.append(p)
    return min(found, key=lambda p: value(A, c, p))


def by_slsqp(A: Floats, c: Floats, lower: float = 0.0, upper: float = 1.0) -> Floats:
    """Return the minimiser that SLSQP finds."""
    return slsqp(Form(A, c, lower, upper))


def nearest(A: Floats, c: Floats) -> Floats:
    """Return the Euclidean projection of A^-1 c on the simplex, which is not the minimiser."""
    v = np.linalg.solve(A, c)
    u = np.sort(v)[::-1]
    excess = np.cumsum(u) - 1.0
    at = np.flatnonzero(u * np.arange(1, len(u) + 1) > excess)[-1]
    p: Floats = np.maximum(v - excess[at] / (at + 1), 0.0)
    return p


@pytest.mark.parametrize("K", [1, 2, 3, 5, 8])
def test_agrees_with_enumeration_of_every_support(K: int) -> None:
    rng = np.random.default_rng(K)
    for _ in range(20):
        A, c = form(K, rng)
        p = least_on_simplex(A, c, np.full(K, 1.0 / K))
        np.testing.assert_allclose(p, by_enumeration(A, c), atol=1e-9)


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (0.02, 0.2), (0.1, 0.15)])
def test_agrees_with_slsqp(lower: float, upper: float) -> None:
    rng = np.random.default_rng(9)
    for K in (7, 8, 9):
        A, c = form(K, rng)
        p = least_on_simplex(A, c, np.full(K, 1.0 / K), lower, upper)
        np.testing.assert_allclose(p, by_slsqp(A, c, lower, upper), atol=1e-6)


def test_the_nearest_point_of_the_simplex_is_a_different_one() -> None:
    rng, misses = np.random.default_rng(0), 0
    for _ in range(40):
        A, c = form(4, rng)
        best = value(A, c, least_on_simplex(A, c, np.full(4, 0.25)))
        worse = value(A, c, nearest(A, c)) - best
        assert worse > -1e-9
        misses += worse > 1e-3
    assert misses > 20


@pytest.mark.parametrize("ridge", [1e-6, 0.1, 10.0])
def test_sixty_weights_meet_the_conditions_of_a_least_value(ridge: float) -> None:
    rng = np.random.default_rng(1)
    A, c = form(60, rng, ridge)
    p = least_on_simplex(A, c, np.full(60, 1.0 / 60))
    slope = A @ p - c
    assert p.min() >= 0.0
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.ptp(slope[p > 0.0]) < 1e-9
    assert slope[p == 0.0].min() >= slope[p > 0.0].max() - 1e-9
    assert 0 < (p > 0.0).sum() < 60


@pytest.mark.parametrize("family", FAMILIES)
def test_dependent_updates_in_a_box_have_no_gap(family: str) -> None:
    """The gap, slope.(p - q) for the best feasible q, bounds the distance to the minimum."""
    for form_ in common_descents(family, 2 * len(EPSILONS)):
        p = ours(form_)
        assert form_.gap(p) < 1e-12
        assert form_.violation(p) < 1e-13


def test_the_point_it_starts_from_changes_nothing() -> None:
    rng = np.random.default_rng(2)
    A, c = form(7, rng)
    corner = np.eye(7)[3]
    np.testing.assert_allclose(
        least_on_simplex(A, c, corner), least_on_simplex(A, c, np.full(7, 1 / 7)), atol=1e-10
    )
    assert corner.tolist() == np.eye(7)[3].tolist(), "the start does not change"
