"""Prediction intervals of exchange times, from the errors of earlier predictions."""

import math

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import grown

COVERAGE = 0.8
"""Stated share of exchange times that are within their interval."""

WINDOW = 200
"""Newest errors of the fleet from which the quantiles are taken."""

STEP = 0.01
"""Change of a tail for each exchange within the interval, relative to 1."""

FLEET_WEIGHT = 1.0
"""Weight of the fleet's scale in that of a device, in exchanges."""

SCALE_DISCOUNT = 0.95
"""Factor on the weight of an error in the scale of its device at each later one."""

LARGEST_ERROR = 2.0
"""Limit of an error in a scale, in logarithms: a hole in the coverage is not the usual error."""

LEAST_SCALE = 1e-3
"""Least scale, in logarithms: times of an unchanging link agree to a thousandth."""


class ConformalIntervals:
    """States an interval for each predicted time, whatever made the prediction.

        e = ln(tau / tau_hat),   s_n = (sum_i g_i |e_i| + s) / (sum_i g_i + 1),  g_i = 0.95^(k - i)
        r = e / s_n as it was before the exchange: the newest 200 of all devices
        low = tau_hat exp(s_n Q(p_low)),   high = tau_hat exp(s_n Q(1 - p_high))
        p += 0.01 ((1 - coverage) / 2 - [tau was beyond that end]),   each end, each exchange

    with s the mean of the |e| of all devices, and Q the quantile of the r that holds for a new
    one: order statistic floor((n + 1) p) from that end. A device with small errors has a narrow
    interval, one with few exchanges that of the fleet. Times have a long upper tail, so both ends
    are found separately. Where errors grow, more times are missed, and the last line widens the
    interval until the stated share is within again. Until there are enough errors for the
    quantiles, 9 for a coverage of 0.8, the interval is unbounded.

    Source:
        Adaptive conformal inference, Gibbs and Candes, NeurIPS 2021 (arXiv:2106.00170), of
        normalised scores (Lei et al., JASA 2018, section 5.2).
    Deviates:
        One level for the fleet, scores of all devices; p stays within 1/200 and 1/2.
    """

    def __init__(self, coverage: float = COVERAGE) -> None:
        """Set the stated coverage.

        Raises:
            ValueError: It is not within 0.02 and 0.98.
        """
        if not 0.02 <= coverage <= 0.98:
            raise ValueError(f"intervals: coverage must be within 0.02 and 0.98, got {coverage}")
        self._tail = (1.0 - coverage) / 2.0
        self._tails = np.full(2, self._tail)
        """p_low and p_high."""
        self._scores: Floats = np.zeros(0)
        self._fleet: Floats = np.zeros(2)
        """Number and sum of the |e| of all devices."""
        self._sums: Floats = np.zeros((0, 2))
        """Sums of g and of g |e| of each device, shape (N, 2)."""

    def bounds(self, tau_hat_s: Floats) -> tuple[Floats, Floats]:
        """Return the ends of the interval of each device, seconds, each of shape (N,).

        Args:
            tau_hat_s: Predicted times, seconds, shape (N,); without a positive one, or without
                enough errors so far, the interval is from 0 to infinity.
        """
        n = len(tau_hat_s)
        low_s, high_s = np.zeros(n), np.full(n, np.inf)
        is_known: Bools = np.asarray(tau_hat_s > 0.0)
        if len(self._scores) + 1 < round(1.0 / self._tail):
            return low_s, high_s
        scale, score = self._scale(n)[is_known], np.sort(self._scores)
        at = np.maximum(((len(score) + 1) * self._tails + 1e-9).astype(np.int64), 1)
        ends = np.stack([scale * score[at[0] - 1], scale * score[-at[1]]])
        low_s[is_known], high_s[is_known] = tau_hat_s[is_known] * np.exp(np.clip(ends, -50.0, 50.0))
        return low_s, high_s

    def observe(self, rows: Ints, tau_hat_s: Floats, tau_s: Floats) -> None:
        """Learn from measured times, at most one of each device; their order has no effect.

        Args:
            rows: Devices, shape (K,).
            tau_hat_s: Their times as predicted before, seconds, shape (K,).
            tau_s: Their measured times, seconds, shape (K,). A pair with a time that is not
                positive and finite is ignored.
        """
        is_pair = np.isfinite(tau_hat_s) & np.isfinite(tau_s) & (tau_hat_s > 0.0) & (tau_s > 0.0)
        order = np.flatnonzero(is_pair)
        order = order[np.argsort(rows[order], kind="stable")]
        if not order.size:
            return
        rows, tau_hat_s, tau_s = rows[order], tau_hat_s[order], tau_s[order]
        self._sums = grown(self._sums, int(rows.max()) + 1)
        predicted_s = np.zeros(len(self._sums))
        predicted_s[rows] = tau_hat_s
        low_s, high_s = (end_s[rows] for end_s in self.bounds(predicted_s))
        if math.isfinite(high_s[0]):
            missed = np.array([(tau_s < low_s).sum(), (tau_s > high_s).sum()])
            moved = self._tails + STEP * (self._tail * len(rows) - missed)
            self._tails = np.clip(moved, 1.0 / WINDOW, 0.5)
        error = np.log(tau_s / tau_hat_s)
        scores = error / self._scale(len(self._sums))[rows]
        self._scores = np.concatenate([self._scores, scores])[-WINDOW:]
        size = np.minimum(np.abs(error), LARGEST_ERROR)
        self._sums[rows] *= SCALE_DISCOUNT
        self._sums[rows] += np.stack([np.ones(len(rows)), size], axis=1)
        self._fleet = self._fleet + np.array([len(rows), size.sum()])

    def _scale(self, n: int) -> Floats:
        """Return s_n of the first `n` devices, shape (n,)."""
        count, total = self._fleet.tolist()
        of_fleet = total / count if count else 1.0
        weight, size = grown(self._sums, n)[:n].T
        scale: Floats = (size + FLEET_WEIGHT * of_fleet) / (weight + FLEET_WEIGHT)
        return np.maximum(scale, LEAST_SCALE, out=scale)
