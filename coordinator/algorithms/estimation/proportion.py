"""A proportion a device, y = theta c, each learned from that device's own data."""

import math
from typing import Any

import numpy as np

from coordinator.algorithms.arrays import Floats, Ints
from coordinator.algorithms.columns import grown
from coordinator.algorithms.estimation.prior import check_prior


class Proportions:
    """Learns y = theta c of each device, where errors of y grow with c.

        k = sum_i g_i,   theta_hat = sum_i g_i (y_i / c_i) / (k + lambda),   g_i = gamma^(k - i)
        y_hat = theta_hat c,   width = |c| / sqrt(k + lambda)

    over the observations i of a device: ridge regression of y / c on a constant, that is, of y on c
    with weights 1 / c^2, which is best for relative errors. So lambda is a share of one observation
    whatever the unit of c, and one c that was far off (a link measured at its first packets) spoils
    one observation, not all. A device never seen has y_hat = 0 and width |c| / sqrt(lambda).

    Source:
        Own; weighted least squares for proportional errors is textbook (Aitken 1935).
    """

    def __init__(self, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior.

        Args:
            lambda_: Penalty, in observations, > 0.
            discount: Gamma in (0, 1]: what an observation weighs after each later one of the same
                device; 1 forgets nothing.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        check_prior("phases", lambda_, discount)
        self._lambda, self._discount = lambda_, discount
        self._sums: Floats = np.zeros((0, 2))
        """Of g and of g y / c of each device, shape (N, 2)."""

    def predict(self, c: Floats) -> tuple[Floats, Floats]:
        """Return y_hat and width for one number a device, each of shape (N,)."""
        rows = np.flatnonzero(self._sums[: len(c), 0])
        weight, ratios = self._sums[rows].T
        y_hat, width = np.zeros(len(c)), np.abs(c) / math.sqrt(self._lambda)
        y_hat[rows] = ratios / (weight + self._lambda) * c[rows]
        width[rows] = np.abs(c[rows]) / np.sqrt(weight + self._lambda)
        return y_hat, width

    def observe(self, rows: Ints, c: Floats, y: Floats) -> None:
        """Learn: rows (K,), numbers (K,), measured (K,); in this order. Where c is 0 nothing is."""
        if rows.size == 0:
            return
        self._sums = grown(self._sums, int(rows.max()) + 1)
        for row, number, measured in zip(rows.tolist(), c.tolist(), y.tolist(), strict=True):
            if number != 0.0:
                self._sums[row] *= self._discount
                self._sums[row] += 1.0, measured / number

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        rows = np.flatnonzero(self._sums[:, 0])
        return {"rows": rows.tolist(), "sums": self._sums[rows].tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned, of one with the same prior."""
        rows = np.array(state["rows"], dtype=np.int64)
        self._sums = np.zeros((int(rows.max()) + 1 if rows.size else 0, 2))
        if rows.size:
            self._sums[rows] = np.array(state["sums"], dtype=np.float64)
