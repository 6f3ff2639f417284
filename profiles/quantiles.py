"""A distribution known by some of its quantiles: linear in between, nothing beyond the ends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """`points[i] = (p, x)`: a share `p` of the values is at most `x`.

    Below the first and above the last point the value is that of the point.

    Raises:
        ValueError: There is no point, or shares do not increase from within [0, 1], or values
            decrease or are not finite; the message names the place.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("quantiles: must have at least one point, got none")
        for row, (share, value) in enumerate(self.points):
            if not 0.0 <= share <= 1.0:
                raise ValueError(
                    f"quantiles: shares must be from 0 to 1, got {share} at point {row}"
                )
            if not math.isfinite(value):
                raise ValueError(f"quantiles: values must be finite, got {value} at point {row}")
        for row, ((p, x), (p_next, x_next)) in enumerate(pairwise(self.points), 1):
            if not p < p_next:
                raise ValueError(
                    f"quantiles: shares must increase, got {p_next} after {p} at point {row}"
                )
            if not x <= x_next:
                raise ValueError(
                    f"quantiles: values must not decrease, got {x_next} after {x} at point {row}"
                )

    @property
    def lowest(self) -> float:
        """The smallest value."""
        return self.points[0][1]

    @property
    def highest(self) -> float:
        """The largest value."""
        return self.points[-1][1]

    def at(self, shares: Floats | float) -> Floats:
        """Return the values below which these shares of all lie, same shape."""
        p, x = np.array(self.points, dtype=np.float64).T
        values: Floats = np.interp(shares, p, x)
        return values


def of_sample(values: Sequence[float] | Floats, shares: Sequence[float]) -> Quantiles:
    """Return the quantiles of a sample at these shares."""
    found = np.quantile(np.asarray(values, dtype=np.float64), shares)
    return Quantiles(tuple((float(p), float(x)) for p, x in zip(shares, found, strict=True)))


def normal_shares(scores: Floats) -> Floats:
    """Return the shares of a standard normal distribution below these scores, same shape.

    Phi(z) = (1 + erf(z / sqrt 2)) / 2
    """
    return (1.0 + np.asarray(_erf(scores / math.sqrt(2.0)), dtype=np.float64)) / 2.0
