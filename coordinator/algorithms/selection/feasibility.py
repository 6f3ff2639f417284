"""Feasibility of a guaranteed selection rate, given the availability of each device."""

import math
from collections.abc import Iterator

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats

TOLERANCE = 1e-9
"""Relative slack: beta N = m is feasible although 40 x 0.15 is not exactly 6 in binary."""

SURE = 1e-15
"""A probability below this counts as 0: a million of them are below the tolerance."""


def first_infeasible_k(availability: Floats, m: int, beta: float) -> int | None:
    """Return the size of the smallest group of devices that cannot all be selected at rate beta.

        for every k = 1..N:   k beta <= E[min(m, X_k)]
        X_k = number of the k least available devices that are available in a round

    This is necessary and sufficient for the queues of RBCS-F to be stable if devices are available
    independently of each other. Adding a device raises the expectation by its availability times
    P(X < m), so the Poisson-binomial distribution is needed below m only, and only until P(X < m)
    is 0: O(K m), where K is the first k for which it is.

    Args:
        availability: Probability that each device is available in a round, shape (N,).
        m: Devices selected per round, at least 1.
        beta: Guaranteed rate.

    Returns:
        The first k whose inequality fails, or None if every device can have its rate.

    Raises:
        ValueError: A probability is outside [0, 1], or `m` is not positive.
    """
    last_k, expected = 0, 0.0
    for last_k, expected in expected_selections(availability, m):
        if last_k * beta > expected * (1.0 + TOLERANCE):
            return last_k
    return _first_above(expected * (1.0 + TOLERANCE), beta, last_k, len(availability))


def highest_rate(availability: Floats, m: int) -> float:
    """Return the highest rate at which every device can be selected: min_k E[min(m, X_k)] / k.

    Args:
        availability: Probability that each device is available in a round, shape (N,), N >= 1.
        m: Devices selected per round, at least 1.

    Raises:
        ValueError: A probability is outside [0, 1], or `m` is not positive.
    """
    rates = [(expected / k, expected) for k, expected in expected_selections(availability, m)]
    return min(min(rate for rate, _ in rates), rates[-1][1] / len(availability))


def shortage(availability: Floats, m: int, beta: float) -> str | None:
    """Return what a guaranteed rate lacks, in words; None if every device can have it.

    Args:
        availability: Probability that each device is available in a round, shape (N,).
        m: Devices selected per round, at least 1.
        beta: Guaranteed rate.

    Raises:
        ValueError: A probability is outside [0, 1], or `m` is not positive.
    """
    k = first_infeasible_k(availability, m, beta)
    if k is None:
        return None
    available = float(np.sort(availability)[:k].sum())
    return (
        f"the {k} least available of {len(availability)} devices need {k} x {beta:g} = "
        f"{k * beta:g} selections per round, but {available:.3g} of them are available on average "
        f"and {m} devices are selected per round"
    )


def expected_selections(availability: Floats, m: int) -> Iterator[tuple[int, float]]:
    """Yield k and E[min(m, X_k)] for k = 1, 2, ... up to N, or until the expectation is m.

    Raises:
        ValueError: A probability is outside [0, 1], or `m` is not positive.
    """
    outside = ~((availability >= 0.0) & (availability <= 1.0))
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        raise ValueError(
            f"feasibility: availability must be in [0, 1], got {availability[at]} at row {at}; "
            "pass probabilities per round"
        )
    if m < 1:
        raise ValueError(f"feasibility: m must be >= 1, got {m}; set per_round to at least 1")
    below_m = np.zeros(m)
    below_m[0] = 1.0
    expected = 0.0
    for k, p in enumerate(np.sort(availability).tolist(), start=1):
        missing = float(below_m.sum())
        expected += p * missing
        yield k, expected
        if missing < SURE:
            return
        arrived = p * below_m[:-1]
        below_m *= 1.0 - p
        below_m[1:] += arrived


def _first_above(expected: float, beta: float, k: int, n: int) -> int | None:
    """Return the first of k+1..n with k beta > expected, or None."""
    if n * beta <= expected:
        return None
    first = max(k + 1, math.floor(expected / beta))
    return next(candidate for candidate in range(first, n + 1) if candidate * beta > expected)
