"""Least values of quadratic forms over weights that are at least 0 and sum to 1."""

import numpy as np

from coordinator.algorithms.aggregation.running import total_of
from coordinator.algorithms.arrays import Bools, Floats

SLACK = 1e-12
"""How negative a multiplier counts as 0, relative to the gradient."""

PASSES = 10
"""Passes a weight: far more than it takes, unless rounding makes a weight come and go for ever."""


def least_on_simplex(A: Floats, c: Floats, start: Floats) -> Floats:
    """Return where a quadratic form is least on the simplex.

        argmin  1/2 p.A p - c.p   subject to  p >= 0,  sum p = 1

    This is the projection of A^-1 c in the norm of A, not the nearest point of the simplex. An
    active set: the weights that are not 0 go to the least value of their own, as far as none
    becomes negative; one that is 0 joins them while its slope says that the value would fall.

    Args:
        A: Positive definite and symmetric, shape (K, K).
        c: Shape (K,).
        start: Any point of the simplex, shape (K,); the nearer, the quicker.

    Returns:
        p, shape (K,), the same bits whatever the number of threads.

    Source:
        Nocedal & Wright, Numerical Optimization, 2nd ed., Algorithm 16.3.
    """
    p, is_free = start.copy(), start > 0.0
    slack = SLACK * (1.0 + float(np.abs(c).max()))
    for _ in range(PASSES * len(p)):
        target, multiplier = _least_of(A, c, is_free)
        falls = is_free & (target < 0.0)
        if falls.any():
            share = np.full(len(p), np.inf)
            share[falls] = p[falls] / (p[falls] - target[falls])
            first = int(share.argmin())
            p += share[first] * (target - p)
            p[first], is_free[first] = 0.0, False
            continue
        p = target
        slope = np.where(is_free, 0.0, (A * p).sum(axis=1) - c - multiplier)
        steepest = int(slope.argmin())
        if slope[steepest] >= -slack:
            break
        is_free[steepest] = True
    p = np.maximum(p, 0.0)
    least: Floats = p / total_of(p)
    return least


def _least_of(A: Floats, c: Floats, is_free: Bools) -> tuple[Floats, float]:
    """Return the least point with sum 1 if the others stay 0, shape (K,), and its multiplier."""
    free = np.flatnonzero(is_free)
    solved = _solved(A[np.ix_(free, free)], np.column_stack([c[free], np.ones(len(free))]))
    multiplier = (1.0 - total_of(solved[:, 0])) / total_of(solved[:, 1])
    target = np.zeros(len(c))
    target[free] = solved[:, 0] + multiplier * solved[:, 1]
    return target, multiplier


def _solved(A: Floats, b: Floats) -> Floats:
    """Return A^-1 b, shape (n, columns), of a positive definite A by elimination.

    LAPACK is not asked: its last bits depend on the number of threads.
    """
    n, rows = len(A), np.column_stack([A, b])
    for j in range(n):
        rows[j] /= rows[j, j]
        factors = rows[:, j].copy()
        factors[j] = 0.0
        rows -= factors[:, None] * rows[j]
    return rows[:, n:]
