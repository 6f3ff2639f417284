"""Minima of quadratic forms over weights that sum to 1 and lie between bounds.

No library is used: docs/decisions/0014 has the measurements.
"""

import numpy as np

from fairbed.coordinator.algorithms.aggregation.running_sum import total_of
from fairbed.coordinator.algorithms.arrays import Bools, Floats

MOST_WEIGHTS = 200
"""Most weights of a rule that solves a quadratic form in each round: it takes K^3 steps."""

SLACK = 1e-12
"""A multiplier above minus this counts as 0, relative to the gradient."""

ROUNDING = 1e-15
"""A weight beyond its bound by at most this is at the bound."""

PASSES = 10
"""Iteration limit per weight, for the case that rounding makes a weight enter and leave forever."""


def least_on_simplex(
    A: Floats, c: Floats, start: Floats, lower: float = 0.0, upper: float = 1.0
) -> Floats:
    """Return the minimiser of a quadratic form on the simplex, or on a box inside it.

        argmin  1/2 p.A p - c.p   subject to  lower <= p <= upper,  sum p = 1

    On the simplex this is the projection of A^-1 c in the norm of A, not the nearest point. An
    active-set method: the free weights (not at a bound) step to their minimiser until one reaches a
    bound; a weight at a bound becomes free while a step inwards lowers the form.

    Args:
        A: Positive definite and symmetric, shape (K, K).
        c: Shape (K,).
        start: Any point between the bounds with sum 1, shape (K,); fewer iterations if near the
            minimiser.
        lower: Lower bound of each weight, below 1 / K.
        upper: Upper bound of each weight, above 1 / K.

    Returns:
        p, shape (K,), bit-identical for every number of threads.

    Source:
        Nocedal & Wright, Numerical Optimization, 2nd ed., Algorithm 16.3.
    """
    p, is_free = start.copy(), (start > lower) & (start < upper)
    is_free[int(start.argmax())] = True
    slack = SLACK * (1.0 + float(np.abs(c).max()))
    for _ in range(PASSES * len(p)):
        target, multiplier = _least_of(A, c, p, is_free)
        falls = is_free & (target < lower - ROUNDING)
        rises = is_free & (target > upper + ROUNDING)
        leaves = falls | rises
        if leaves.any() and np.count_nonzero(is_free) > 1:
            bound = np.where(rises, upper, lower)
            share = np.full(len(p), np.inf)
            share[leaves] = (p - bound)[leaves] / (p - target)[leaves]
            first = int(share.argmin())
            p += share[first] * (target - p)
            p[first], is_free[first] = bound[first], False
            continue
        p = np.clip(target, lower, upper)
        slope = (A * p).sum(axis=1) - c - multiplier
        inwards = np.where(is_free, 0.0, np.where(p <= lower, slope, -slope))
        steepest = int(inwards.argmin())
        if inwards[steepest] >= -slack:
            break
        is_free[steepest] = True
    p = np.clip(p, lower, upper)
    least: Floats = p / total_of(p)
    return least


def _least_of(A: Floats, c: Floats, p: Floats, is_free: Bools) -> tuple[Floats, float]:
    """Return the minimiser over the free weights with sum 1, shape (K,), and its multiplier."""
    free, target = np.flatnonzero(is_free), np.where(is_free, 0.0, p)
    rest = c[free] - (A[free] * target).sum(axis=1)
    solved = _solved(A[np.ix_(free, free)], np.column_stack([rest, np.ones(len(free))]))
    left = 1.0 - total_of(target)
    multiplier = (left - total_of(solved[:, 0])) / total_of(solved[:, 1])
    target[free] = solved[:, 0] + multiplier * solved[:, 1]
    return target, multiplier


def _solved(A: Floats, b: Floats) -> Floats:
    """Return A^-1 b, shape (n, columns), of a positive definite A by elimination.

    LAPACK is not used: its last bits depend on the number of threads.
    """
    n, rows = len(A), np.column_stack([A, b])
    for j in range(n):
        rows[j] /= rows[j, j]
        factors = rows[:, j].copy()
        factors[j] = 0.0
        rows -= factors[:, None] * rows[j]
    return rows[:, n:]
