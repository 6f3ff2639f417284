"""Sums of vectors: one that does not depend on the order of addition, and a plain one."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints, Vector

BLOCK = 16384
"""Values per step: 128 KiB of float64, so that intermediate arrays stay in the cache. Twice as many
are no faster where the C library keeps freed arrays, and three times slower where it returns each
to the system; with fewer, the cost of calls dominates."""


class RunningSum:
    """sum_k a_k x_k, bit-identical for every order of arrival.

    The rounding error of each addition is itself a float64; the errors are summed separately:

        s' = fl(s + y),   e' = e + ((s - (s' - (s' - s))) + (y - (s' - s)))

    so s + e is the exact sum of the rounded products as long as the terms of one coordinate are
    zero or within a factor of 2^40 of each other; beyond that the error is 2^-100 of the largest.
    Memory is 16 bytes per value, however many vectors are added.

    Source:
        Knuth, TAOCP vol. 2, 4.2.2, theorem B (TwoSum); Ogita, Rump & Oishi, SIAM J. Sci.
        Comput. 26 (2005), Algorithm 4.4 (Sum2).
    """

    def __init__(self, size: int) -> None:
        self._high = np.zeros(size)
        self._low = np.zeros(size)

    def add(self, weight: float, x: Vector) -> None:
        """Add `weight` times `x`, a finite vector of shape (size,)."""
        self.add_all(np.array([weight]), x[np.newaxis])

    def add_all(self, weights: Floats, x: Vector) -> None:
        """Add the rows of `x`, shape (K, size), all finite, times `weights`, shape (K,)."""
        for part in blocks(self._high.size):
            terms = x[:, part].astype(np.float64)
            terms *= weights[:, np.newaxis]
            high, low = self._high[part], self._low[part]
            while len(terms) > 1:  # add the last half to the first half
                half = len(terms) // 2
                low += _add_exactly(terms[:half], terms[-half:]).sum(axis=0)
                terms = terms[:-half]
            low += _add_exactly(high, terms[0])

    def shift(self, exponent: int) -> None:
        """Multiply the sum by 2^exponent, without rounding unless a value underflows."""
        for values in (self._high, self._low):
            np.ldexp(values, exponent, out=values)

    def divided_by(self, divisor: float) -> Vector:
        """Return the sum divided by `divisor`, shape (size,), float32."""
        mean = np.empty(self._high.shape, dtype=np.float32)
        for part in blocks(mean.size):
            with np.errstate(over="ignore"):  # diverged models are sent as such
                mean[part] = (self._high[part] + self._low[part]) / divisor
        return mean

    def scaled(self, factor: float) -> Floats:
        """Return the sum times `factor`, shape (size,); the sum cannot be used afterwards."""
        for part in blocks(self._high.size):
            self._high[part] += self._low[part]
            self._high[part] *= factor
        return self._high


def _add_exactly(total: Floats, term: Floats) -> Floats:
    """Add `term` to `total` in place, and return the rounding error, computed in `term`."""
    before = total.copy()
    total += term
    arrived = total - before
    term -= arrived
    np.subtract(total, arrived, out=arrived)
    before -= arrived
    term += before
    return term


def weighted_sum(weights: Floats, x: Sequence[Vector]) -> Floats:
    """Return sum_k a_k x_k in float64, added in the order given; vectors of weight 0 are not read.

    Args:
        weights: a_k, shape (K,).
        x: K >= 1 finite vectors, each of shape (size,).
    """
    total = np.zeros(x[0].shape)
    terms = [(a, model) for a, model in zip(weights.tolist(), x, strict=True) if a]
    space = np.empty(min(BLOCK, total.size))
    for part in blocks(total.size):
        here = total[part]
        term = space[: here.size]
        for a, model in terms:
            term[:] = model[part]
            term *= a
            here += term
    return total


def add_scaled(total: Floats, factor: float, x: Vector) -> None:
    """Add `factor` times `x` to `total` in float64; all of shape (size,)."""
    for part in blocks(total.size):
        term = x[part].astype(np.float64)
        term *= factor
        total[part] += term


SHORTEST_STEP = 1e-12
"""A shorter vector has no direction."""
CANCELLED = 1e-6
"""Nor has a weighted sum so much shorter than the mean, relative to its weights: float32 models
are exact to 6e-8."""


def with_length_of(d: Floats, other: Floats, total: float) -> Floats:
    """Return d |other| / |d|, in place; d itself if it has no direction.

    A sum whose terms cancel has none: its direction is that of their rounding.

    Args:
        d: A weighted sum of changes, shape (size,).
        other: Their mean, shape (size,).
        total: Sum of the weights in d.
    """
    length, wanted = math.sqrt(_squared_norm(d)), math.sqrt(_squared_norm(other))
    if length >= max(SHORTEST_STEP, CANCELLED * total * wanted) and math.isfinite(length):
        d *= wanted / length
    return d


def _squared_norm(x: Floats) -> float:
    return math.fsum(float(np.square(x[part]).sum()) for part in blocks(x.size))


def squared_distance(one: Vector, other: Vector) -> float:
    """Return |one - other|^2 of two vectors of the same shape, in float64."""
    return math.fsum(
        float(np.square(one[part].astype(np.float64) - other[part]).sum())
        for part in blocks(one.size)
    )


def power_of_two(x: Floats) -> tuple[Floats, Ints]:
    """Return 2^x as mantissas in [1, 2) and exponents, two arrays of the shape of `x`."""
    whole = np.floor(x)
    return np.exp2(x - whole), whole.astype(np.int64)


def total_of(values: Floats) -> float:
    """Return the sum, rounded once, so that it does not depend on the order of the values."""
    return math.fsum(values.tolist())


def blocks(size: int) -> Iterator[slice]:
    """Return slices of at most `BLOCK` values that cover a vector of `size` values."""
    return (slice(at, min(at + BLOCK, size)) for at in range(0, size, BLOCK))
