"""A time against what its link was last seen to need: a level a device, slopes common to all."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import RowIndex, grown
from fairbed.coordinator.algorithms.estimation.base import check_prior

SLOPE_PRIORS = 1.0, 0.0
"""A time is proportional to the nominal one, and no news tells more, until the fleet shows that it
is not so."""

SLOPE_PENALTY = 0.1
"""Of a slope, in squared logarithms: what one number that was off by a third shows."""

TOLERANCE = 0.2
"""In logarithms: a time that is off by more than a fifth pulls no harder than one that is off by a
fifth, which is more than the times of a link that never moves differ by."""

FLEET_LIMIT = 20.0
"""Exchanges that the level of the fleet counts for at most, however alike its devices are."""

_FEATURES = 4
"""1, x, q and z: what a sum is of are the products of any two, the rows of a triangle."""
_FIRST, _SECOND = np.triu_indices(_FEATURES)
_COUNT, _WEIGHT, _X, _Q, _Z = range(5)
_COLUMNS = 1 + len(_FIRST)


class Elasticities:
    """Learns y = e^(a + d q) c^b of each device: levels of their own, slopes common to all.

        x = ln c,   z = ln y,   sums over a device's observations with weights w_i = g_i h_i
        g_i = gamma^(k - i),   h_i = min(1, H / |z_i - zhat_i|),  zhat_i as predicted when it came
        b, d = (P + sum_n S_n)^-1 (P (1, 0) + sum_n s_n)  within [0, 1],  P a penalty;
               S_n of x and q, s_n of them and z, both centred for each device
        a_n = mean (z - b x - d q),   a = sum W_n a_n / sum W_n,   W_n = sum of w_i
        F = sigma^2 / tau^2 within [0, 20],  the spread of times about a_n, and that of the a_n
        zhat = (W_n a_n + F a) / (W_n + F) + b x + d q
        y_hat = k / (k + lambda) exp(zhat),   width = |c| / sqrt(k + lambda),   k = sum of g_i

    Here c is the nominal time of a transfer, size over the rate measured last, or 1 for a time that
    nothing tells of; q is news of it that c does not have, in logarithms. On a link that never
    moves y is proportional to c, and b stays at its prior, 1. On one that moves, the measured rate
    is old when it is used: what is left of it goes back towards the device's usual rate, and b says
    how far, by how much old rates told of new times in the whole fleet (regression to the mean).
    Logarithms weigh a time that is twice too long like one that is half of it, and h weighs what
    was far off less, so that seconds without coverage do not set the level. A device that is seldom
    measured, on links that move, borrows from the level of the fleet, as far as its devices are
    alike: F, in observations. y_hat is the median, not the mean.

    Source:
        Own, of parts that are textbook: b and d are the pooled within-group estimator (analysis of
        covariance); h are the weights of Huber, Ann. Math. Statist. 1964, in one pass; F is the
        random-effects estimate of DerSimonian and Laird, Control. Clin. Trials 1986.
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
        check_prior("phases", lambda_, discount)
        self._lambda, self._discount = lambda_, discount
        self._places = RowIndex()
        self._sums: Floats = np.zeros((0, _COLUMNS))
        """Of g, and of w times the products of 1, x, q and z, of each place, shape (M, 11)."""
        self._totals: Floats = _parts(self._sums)
        """Of all devices, added up; kept, so that a fit costs nothing per device."""

    def predict(self, c: Floats, news: Floats | None = None) -> tuple[Floats, Floats]:
        """Return y_hat and width for one number a device, each of shape (N,).

        Args:
            c: Shape (N,).
            news: q, shape (N,); None is 0 for all.
        """
        (places, rows), fit = self._places.known(len(c)), _fit(self._totals)
        k, weight, x_sum, q_sum, z_sum = self._sums[places, : _Z + 1].T
        own = z_sum - fit.b * x_sum - fit.d * q_sum
        zhat = (own + fit.borrowed * fit.level) / (weight + fit.borrowed)
        number = c[rows]
        zhat += fit.b * np.log(number, out=np.zeros(len(rows)), where=number > 0.0)
        zhat += 0.0 if news is None else fit.d * news[rows]
        count, y_hat = np.zeros(len(c)), np.zeros(len(c))
        count[rows] = k
        y_hat[rows] = np.where(number > 0.0, k / (k + self._lambda) * np.exp(zhat), 0.0)
        width = np.abs(c) / np.sqrt(count + self._lambda)
        return y_hat, width

    def observe(self, rows: Ints, c: Floats, y: Floats, news: Floats | None = None) -> None:
        """Learn, in this order.

        Where a number or a time is not positive nothing was there to be measured, and nothing is
        learned. How far off a time was is judged by what the fleet showed before this call.

        Args:
            rows: Shape (K,).
            c: Numbers, shape (K,).
            y: Measured, shape (K,).
            news: q, shape (K,); None is 0 for all.
        """
        there: Bools = (c > 0.0) & (y > 0.0)
        if not there.any():
            return
        q = np.zeros(len(rows)) if news is None else news
        places = self._places.of(rows[there])
        self._sums = grown(self._sums, len(self._places.rows))
        # In the order of rows: places have another one after a checkpoint, and sums other bits.
        fit, changed = _fit(self._totals), self._places.of(np.unique(rows[there]))
        before = _parts(self._sums[changed])
        columns = places, np.log(c[there]), q[there], np.log(y[there])
        for at, x, said, z in zip(*(column.tolist() for column in columns), strict=True):
            sums, four = self._sums[at], np.array([1.0, x, said, z])
            off = abs(z - fit.expected(sums, x, said))
            sums *= self._discount
            sums[_COUNT] += 1.0
            sums[_WEIGHT:] += TOLERANCE / max(off, TOLERANCE) * four[_FIRST] * four[_SECOND]
        self._totals = self._totals - before + _parts(self._sums[changed])

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        by_row = np.argsort(self._places.rows)
        return {
            "rows": self._places.rows[by_row].tolist(),
            "sums": self._sums[by_row].tolist(),
            "totals": self._totals.tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned, of one with the same prior."""
        rows = np.array(state["rows"], dtype=np.int64)
        self._places = RowIndex()
        self._sums = np.array(state["sums"], dtype=np.float64).reshape(len(rows), _COLUMNS)
        self._totals = np.array(state["totals"], dtype=np.float64)
        if rows.size:
            self._places.of(rows)


@dataclass(frozen=True, slots=True)
class _Fit:
    """What all devices together say."""

    b: float
    d: float
    level: float
    """a."""
    borrowed: float
    """F: how many observations of its own the level of the fleet is worth to a device."""

    def expected(self, sums: Floats, x: float, q: float) -> float:
        """Return zhat of a device with these sums, shape (11,); x itself where nothing is known."""
        weight = float(sums[_WEIGHT]) + self.borrowed
        if weight == 0.0:
            return x
        own = float(sums[_Z]) - self.b * float(sums[_X]) - self.d * float(sums[_Q])
        return (own + self.borrowed * self.level) / weight + self.b * x + self.d * q

    def about(self, products: list[float]) -> float:
        """Return the sum of (z - b x - d q)^2, given those of x^2, x q, x z, q^2, q z and z^2."""
        xx, xq, xz, qq, qz, zz = products
        b, d = self.b, self.d
        return zz - 2.0 * (b * xz + d * qz) + b * b * xx + 2.0 * b * d * xq + d * d * qq


def _parts(sums: Floats) -> Floats:
    """Return what some devices add to a fit, given their sums (K, 11).

    Returns:
        Their number, the sum of W^2, the sums themselves, and those of the products of any two of
        the sums of x, q and z, over W; shape (19,).
    """
    seen = sums[sums[:, _COUNT] > 0.0]
    weight = seen[:, _WEIGHT]
    three = seen[:, _X : _Z + 1]
    first, second = np.triu_indices(3)
    outer = (three[:, first] * three[:, second]) / weight[:, None]
    counted = np.array([len(seen), float(weight @ weight)])
    return np.concatenate([counted, seen.sum(axis=0), outer.sum(axis=0)])


def _fit(totals: Floats) -> _Fit:
    """Return slopes, level and how much of it is borrowed, from the parts of all devices."""
    numbers = totals.tolist()
    n, w_squared, k, w, x, q, z = numbers[:7]
    products, outer = numbers[7:13], numbers[13:]
    within = [whole - mean for whole, mean in zip(products, outer, strict=True)]
    xx, xq, xz, qq, qz, _ = within
    (b_prior, d_prior), penalty = SLOPE_PRIORS, SLOPE_PENALTY
    xx, qq = penalty + max(xx, 0.0), penalty + max(qq, 0.0)
    xz, qz = penalty * b_prior + xz, penalty * d_prior + qz
    determinant = xx * qq - xq * xq
    b = min(max((qq * xz - xq * qz) / determinant, 0.0), 1.0)
    d = min(max((xx * qz - xq * xz) / determinant, 0.0), 1.0)
    if n < 3.0 or k <= n + 2.0:
        return _Fit(b, d, 0.0, 0.0)
    fit = _Fit(b, d, (z - b * x - d * q) / w, 0.0)
    spread = max(fit.about(within), 0.0) / (k - n - 2.0)
    apart = fit.about(outer) - w * fit.level * fit.level
    between = max(apart - (n - 1.0) * spread, 0.0) / (w - w_squared / w)
    is_alike = spread >= FLEET_LIMIT * between
    return replace(fit, borrowed=FLEET_LIMIT if is_alike else spread / between)
