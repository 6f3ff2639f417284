"""A transfer's time against what its link was last seen to need: one level a device, one slope."""

import math
from typing import Any

import numpy as np

from coordinator.algorithms.arrays import Bools, Floats, Ints
from coordinator.algorithms.columns import grown

SLOPE_PRIOR = 1.0
"""A time is proportional to the nominal one until the fleet shows that it is not."""

SLOPE_PENALTY = 0.1
"""Of the slope, in squared logarithms: what one number that was off by a third shows."""

WEIGHT, X, Y, XX, XY = range(5)


class Elasticities:
    """Learns y = e^a c^b of each device, with a level of its own and one slope for all of them.

        x = ln c,   z = ln y,   sums over a device's observations with weights g_i = gamma^(k - i)
        b = (P + sum_n S_xz,n) / (P + sum_n S_xx,n)  within [0, 1],  S centred for each device
        y_hat = k / (k + lambda) exp(mean z + b (x - mean x)),   width = |c| / sqrt(k + lambda)

    Here c is the nominal time of a transfer, size over the rate measured last. On a link that never
    moves y is proportional to c, and b stays at its prior, 1. On one that moves, the measured rate
    is old when it is used: what is left of it goes back towards the device's usual rate, and b says
    how far, by how much old rates told of new times in the whole fleet (regression to the mean).
    Logarithms weigh a time that is twice too long like one that is half of it, so that seconds
    without coverage do not set the level. y_hat is the median, not the mean, of such times.

    Source:
        Own; the slope is the pooled within-group estimator (analysis of covariance, textbook).
    """

    def __init__(self, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior.

        Args:
            lambda_: Penalty of the level, in observations, > 0.
            discount: Gamma in (0, 1]: what an observation weighs after each later one of the same
                device; 1 forgets nothing.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        if not (math.isfinite(lambda_) and lambda_ > 0.0):
            raise ValueError(f"phases: lambda must be > 0, got {lambda_}; 1.0 is a mild prior")
        if not 0.0 < discount <= 1.0:
            raise ValueError(f"phases: discount must be in (0, 1], got {discount}; 1 keeps all")
        self._lambda, self._discount = lambda_, discount
        self._sums: Floats = np.zeros((0, 5))
        """Of g, g x, g z, g x^2 and g x z of each device, shape (N, 5)."""

    @property
    def slope(self) -> float:
        """The slope b of all devices."""
        seen = self._sums[self._sums[:, WEIGHT] > 0.0]
        weight, x, z, xx, xz = seen.T
        spread = np.maximum(xx - x * x / weight, 0.0).sum()
        common = (xz - x * z / weight).sum()
        slope = (SLOPE_PENALTY * SLOPE_PRIOR + common) / (SLOPE_PENALTY + spread)
        return min(max(float(slope), 0.0), 1.0)

    def predict(self, c: Floats) -> tuple[Floats, Floats]:
        """Return y_hat and width for one number a device, each of shape (N,)."""
        weight, x, z, _, _ = grown(self._sums, len(c))[: len(c)].T
        width = np.abs(c) / np.sqrt(weight + self._lambda)
        y_hat = np.zeros(len(c))
        told: Bools = (weight > 0.0) & (c > 0.0)
        k = weight[told]
        level = z[told] / k + self.slope * (np.log(c[told]) - x[told] / k)
        y_hat[told] = k / (k + self._lambda) * np.exp(level)
        return y_hat, width

    def observe(self, rows: Ints, c: Floats, y: Floats) -> None:
        """Learn: rows (K,), numbers (K,), measured (K,); in this order.

        Where one of the two is not positive there was no transfer, and nothing is learned.
        """
        if rows.size == 0:
            return
        self._sums = grown(self._sums, int(rows.max()) + 1).copy()
        for row, number, measured in zip(rows.tolist(), c.tolist(), y.tolist(), strict=True):
            if number > 0.0 and measured > 0.0:
                x, z = math.log(number), math.log(measured)
                self._sums[row] *= self._discount
                self._sums[row] += 1.0, x, z, x * x, x * z

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        rows = np.flatnonzero(self._sums[:, WEIGHT])
        return {"rows": rows.tolist(), "sums": self._sums[rows].tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned, of one with the same prior."""
        rows = np.array(state["rows"], dtype=np.int64)
        self._sums = np.zeros((int(rows.max()) + 1 if rows.size else 0, 5))
        if rows.size:
            self._sums[rows] = np.array(state["sums"], dtype=np.float64)
