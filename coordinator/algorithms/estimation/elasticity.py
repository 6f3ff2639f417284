"""Log-linear regression of times on nominal times: level and slopes of a device, and the fleet."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, distinct
from fairbed.coordinator.algorithms.columns import RowIndex, grown
from fairbed.coordinator.algorithms.estimation.base import check_prior

SLOPE_PRIORS = 1.0, 0.0
"""Priors of b and d: the time is proportional to the nominal time, and q has no effect."""

SLOPE_PENALTY = 0.1
"""Penalty on a slope, in squared logarithms: about that of one c that is wrong by a third."""

TOLERANCE = 0.2
"""H, in logarithms: a residual above a fifth has no more influence than one of a fifth, which
is more than the scatter of times on a constant link."""

FLEET_LIMIT = 5.0
"""Upper bound of F, the weight of the fleet's level, in observations: devices that were alike so
far may part."""

SLOPE_WEIGHT = 20.0
"""Weight of the fleet's slopes in those of a device, in its observations."""

_FEATURES = 4
"""1, x, q and z; the sums are of the products of any two, in the order of `np.triu_indices`."""
_FIRST, _SECOND = np.triu_indices(_FEATURES)
_COUNT, _WEIGHT, _X, _Q, _Z = range(5)
_COLUMNS = 1 + len(_FIRST)


class Elasticities:
    """Learns y = e^(a + d q) c^b for each device: a level a, and slopes b and d near the fleet's.

        x = ln c,   z = ln y,   sums over a device's observations with weights w_i = g_i h_i
        g_i = gamma^(k - i),   h_i = min(1, H / |z_i - zhat_i|),  zhat_i with the fleet's slopes
        S = P + sum_n S_n,   s = P (1, 0) + sum_n s_n,   P a penalty;
               S_n of x and q, s_n of them and z, both centred for each device
        b, d = S^-1 s   within [0, 1]: the slopes of the fleet
        b_n, d_n = (S_n + f S)^-1 (s_n + f s)   within [0, 1],   f = 20 / max(W - N, 1)
        a_n = mean of device n of (z - b_n x - d_n q),   W_n = sum of its w_i
        a = mean of all observations of (z - b_n x - d_n q),   W = sum of all w_i,   N devices
        F = sigma^2 / tau^2 within [0, 5],  the spread of times about a_n, and that of the a_n,
               both with the fleet's slopes
        zhat = (W_n a_n + F a) / (W_n + F) + b_n x + d_n q
        y_hat = exp(zhat), 0 before the first;   width = |c| / sqrt(k + lambda),   k = sum of g_i

    Here c is the nominal time of a transfer, its size over the last measured rate, or 1 for a time
    without a nominal time; q is the rate change since that measurement, in logarithms. On a
    constant link y is proportional to c, and b stays at its prior, 1. On a varying link the
    measured rate is old when it is used, and the new rate tends back to the device's usual rate; b
    is how far (regression to the mean). A device with few observations has the fleet's slopes; with
    many its own, because a link in a train is not like one on a desk. In logarithms a time twice
    as long weighs like one half as long, and h reduces the weight of outliers, so that seconds
    without coverage do not set the level. A device with few observations on varying links borrows
    from the level of the fleet, with weight F, which is larger the more alike the devices are.
    y_hat is the median, not the mean.

    Source:
        Own, of parts that are textbook: b and d are the pooled within-group estimator (analysis of
        covariance), towards which b_n and d_n are shrunk; h are the weights of Huber, Ann. Math.
        Statist. 1964, in one pass; F is the random-effects estimate of DerSimonian and Laird,
        Control. Clin. Trials 1986.
    """

    def __init__(self, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior.

        Args:
            lambda_: Weight of the prior in the width, in observations, > 0.
            discount: Gamma in (0, 1]: factor on the weight of an observation at each later one of
                the same device; 1 forgets nothing.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        check_prior("phases", lambda_, discount)
        self._lambda, self._discount = lambda_, discount
        self._places = RowIndex()
        self._sums: Floats = np.zeros((0, _COLUMNS))
        """Sums of g, and of w times the products of 1, x, q and z, of each place, shape (M, 11)."""
        self._totals: Floats = _contribution(self._sums)
        """Contribution of all devices, kept so that the cost of a fit does not grow with them."""

    def predict(
        self, c: Floats, rate_change: Floats | None = None, of: Ints | None = None
    ) -> tuple[Floats, Floats]:
        """Return y_hat and width for one c per device, each of shape (N,).

        Args:
            c: Shape (N,).
            rate_change: q, shape (N,); None is 0 for all.
            of: Rows of the devices, shape (N,); None is the first N.
        """
        known = self._places.known(len(c)) if of is None else self._places.among(of)
        (places, rows), fit = known, _fit(self._totals)
        sums = self._sums[places]
        k, weight, x_sum, q_sum, z_sum = sums[:, : _Z + 1].T
        b, d = _device_slopes(sums, self._totals)
        own = z_sum - b * x_sum - d * q_sum
        zhat = (own + fit.fleet_weight * _levels(self._totals, b, d)) / (weight + fit.fleet_weight)
        nominal = c[rows]
        zhat += b * np.log(nominal, out=np.zeros(len(rows)), where=nominal > 0.0)
        zhat += 0.0 if rate_change is None else d * rate_change[rows]
        count, y_hat = np.zeros(len(c)), np.zeros(len(c))
        count[rows] = k
        y_hat[rows] = np.where(nominal > 0.0, np.exp(zhat), 0.0)
        width = np.abs(c) / np.sqrt(count + self._lambda)
        return y_hat, width

    def observe(self, rows: Ints, c: Floats, y: Floats, rate_change: Floats | None = None) -> None:
        """Learn from observations in their order.

        A pair (c, y) with a value that is not positive was not measured and is ignored. Residuals
        for the weights h are those of the fit before this call.

        Args:
            rows: Device rows, shape (K,).
            c: Nominal times, shape (K,).
            y: Measured times, shape (K,).
            rate_change: q, shape (K,); None is 0 for all.
        """
        is_measured: Bools = (c > 0.0) & (y > 0.0)
        if not is_measured.any():
            return
        change = np.zeros(len(rows)) if rate_change is None else rate_change
        places = self._places.of(rows[is_measured])
        self._sums = grown(self._sums, len(self._places.rows))
        # In the order of rows: the order of places differs after a checkpoint, and so would bits.
        fit, changed = _fit(self._totals), self._places.of(distinct(rows[is_measured]))
        before = _contribution(self._sums[changed])
        columns = places, np.log(c[is_measured]), change[is_measured], np.log(y[is_measured])
        for at, x, q, z in zip(*(column.tolist() for column in columns), strict=True):
            sums, features = self._sums[at], np.array([1.0, x, q, z])
            residual = abs(z - fit.expected(sums, x, q))
            sums *= self._discount
            sums[_COUNT] += 1.0
            h = TOLERANCE / max(residual, TOLERANCE)
            sums[_WEIGHT:] += h * features[_FIRST] * features[_SECOND]
        self._totals = self._totals - before + _contribution(self._sums[changed])

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        by_row = np.argsort(self._places.rows)
        return {
            "rows": self._places.rows[by_row].tolist(),
            "sums": self._sums[by_row].tolist(),
            "totals": self._totals.tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned, of one with the same prior."""
        rows = np.array(state["rows"], dtype=np.int64)
        self._places = RowIndex()
        self._sums = np.array(state["sums"], dtype=np.float64).reshape(len(rows), _COLUMNS)
        self._totals = np.array(state["totals"], dtype=np.float64)
        if rows.size:
            self._places.of(rows)


@dataclass(frozen=True, slots=True)
class _Fit:
    """Parameters fitted to all devices."""

    b: float
    d: float
    level: float
    """a."""
    fleet_weight: float
    """F: weight of the fleet's level in that of a device, in observations."""

    def expected(self, sums: Floats, x: float, q: float) -> float:
        """Return zhat of a device with these sums, shape (11,); x if nothing was observed."""
        weight = float(sums[_WEIGHT]) + self.fleet_weight
        if weight == 0.0:
            return x
        own = float(sums[_Z]) - self.b * float(sums[_X]) - self.d * float(sums[_Q])
        return (own + self.fleet_weight * self.level) / weight + self.b * x + self.d * q

    def residual_sum(self, products: list[float]) -> float:
        """Return the sum of (z - b x - d q)^2, given those of x^2, x q, x z, q^2, q z and z^2."""
        xx, xq, xz, qq, qz, zz = products
        b, d = self.b, self.d
        return zz - 2.0 * (b * xz + d * qz) + b * b * xx + 2.0 * b * d * xq + d * d * qq


def _contribution(sums: Floats) -> Floats:
    """Return the contribution of some devices to a fit, given their sums (K, 11).

    Returns:
        Shape (19,): the number of devices; sum of W^2; the sums added up; and, added up, the
        products of any two of the sums of x, q and z, divided by W.
    """
    seen = sums[sums[:, _COUNT] > 0.0]
    weight = seen[:, _WEIGHT]
    three = seen[:, _X : _Z + 1]
    first, second = np.triu_indices(3)
    outer = (three[:, first] * three[:, second]) / weight[:, None]
    counted = np.array([len(seen), float(weight @ weight)])
    return np.concatenate([counted, seen.sum(axis=0), outer.sum(axis=0)])


def _device_slopes(sums: Floats, totals: Floats) -> tuple[Floats, Floats]:
    """Return b_n and d_n of devices, each of shape (K,).

    Args:
        sums: Their sums, shape (K, 11).
        totals: Contribution of all devices, shape (19,).
    """
    three = sums[:, _X : _Z + 1]
    first, second = np.triu_indices(3)
    own = sums[:, _Z + 1 :] - three[:, first] * three[:, second] / sums[:, [_WEIGHT]]
    fleet = np.array(_normal_equations(totals.tolist()))
    of_fleet = SLOPE_WEIGHT / max(float(totals[3] - totals[0]), 1.0)
    own[:, [0, 3]] = np.maximum(own[:, [0, 3]], 0.0)
    xx, xq, xz, qq, qz = (own[:, :5] + of_fleet * fleet).T
    determinant = xx * qq - xq * xq
    b = np.clip((qq * xz - xq * qz) / determinant, 0.0, 1.0)
    d = np.clip((xx * qz - xq * xz) / determinant, 0.0, 1.0)
    return b, d


def _levels(totals: Floats, b: Floats, d: Floats) -> Floats:
    """Return a, the level of the fleet, for the slopes of each device, shape (K,)."""
    w, x, q, z = totals[3:7]
    level: Floats = (z - b * x - d * q) / max(float(w), 1e-300)
    return level


def _normal_equations(totals: list[float]) -> tuple[float, float, float, float, float]:
    """Return the fleet's sums of x^2, x q, x z, q^2 and q z within devices, with the penalty."""
    products, outer = totals[7:13], totals[13:]
    xx, xq, xz, qq, qz, _ = (whole - mean for whole, mean in zip(products, outer, strict=True))
    (b_prior, d_prior), penalty = SLOPE_PRIORS, SLOPE_PENALTY
    xx, qq = penalty + max(xx, 0.0), penalty + max(qq, 0.0)
    return xx, xq, penalty * b_prior + xz, qq, penalty * d_prior + qz


def _fit(totals: Floats) -> _Fit:
    """Return slopes, level and F, given the contribution of all devices."""
    numbers = totals.tolist()
    n, w_squared, k, w, x, q, z = numbers[:7]
    products, outer = numbers[7:13], numbers[13:]
    within = [whole - mean for whole, mean in zip(products, outer, strict=True)]
    xx, xq, xz, qq, qz = _normal_equations(numbers)
    determinant = xx * qq - xq * xq
    b = min(max((qq * xz - xq * qz) / determinant, 0.0), 1.0)
    d = min(max((xx * qz - xq * xz) / determinant, 0.0), 1.0)
    if n < 3.0 or k <= n + 2.0:
        return _Fit(b, d, 0.0, 0.0)
    fit = _Fit(b, d, (z - b * x - d * q) / w, 0.0)
    spread = max(fit.residual_sum(within), 0.0) / (k - n - 2.0)
    between_sum = fit.residual_sum(outer) - w * fit.level * fit.level
    between = max(between_sum - (n - 1.0) * spread, 0.0) / (w - w_squared / w)
    is_alike = spread >= FLEET_LIMIT * between
    return replace(fit, fleet_weight=FLEET_LIMIT if is_alike else spread / between)
