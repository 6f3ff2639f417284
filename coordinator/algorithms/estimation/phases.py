"""One regression for each phase of an exchange, since we observe phases and not only their sum.

The time of a transfer, by the rate that was measured last and by how long the last one took.

A proportion a device, y = theta c, each learned from that device's own data.
"""

import math
from functools import reduce
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import grown
from fairbed.coordinator.algorithms.estimation.base import (
    COLD,
    CONTEXT,
    DOWN,
    INVERSE_MU,
    PHASES,
    UP,
    Measured,
    Phase,
    Prediction,
    check_prior,
    require_contexts,
)
from fairbed.coordinator.algorithms.estimation.elasticity import Elasticities

NEWEST_SHARE = 0.5
"""Weight of the newest transfer in a reported rate (`device_agent.state.link_estimate`)."""

MOST = 4.0
"""So many times faster or slower than its nominal time a transfer may have been at most: beyond
that the rate was measured anew in between, or the transfer met a hole."""


class Transfers:
    """Learns the times of transfers from nominal ones, and from how long the last one took.

        y = e^(a + d q) c^b,   q = -ln(s + (1 - s) r),   r = c_last / y_last  within [1/4, 4]

    A rate that a device reports is a mean of what its last transfers needed, of which the newest
    counts s = 1/2 only: enough on a link that never moves, and old news on one that does. How long
    the newest took, y_last, where c_last was its nominal time, was measured here; so c e^q is the
    nominal time of the next one at the rate of the newest alone. Sizes cancel out: a model may be
    packed now and have been whole then. `Elasticities` learns b and d: whether the newest transfer
    says more than the mean, or noise.

    Source:
        Own.
    """

    def __init__(self, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior: see `Elasticities`.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        self._times = Elasticities(lambda_, discount)
        self._ratio: Floats = np.zeros(0)
        """r of each device, shape (N,); 0 where there was no transfer yet."""

    def predict(self, c: Floats) -> tuple[Floats, Floats]:
        """Return y_hat and width for the nominal time of each device, each of shape (N,)."""
        n = len(c)
        return self._times.predict(c, _news(grown(self._ratio, n)[:n]))

    def observe(self, rows: Ints, c: Floats, y: Floats) -> None:
        """Learn: rows (K,), nominal times (K,), measured (K,); at most one a device.

        Where one of the two is not positive there was no transfer, and nothing is learned. Before
        the first of a device the one before is thought to have taken as long.
        """
        known: Bools = (c > 0.0) & (y > 0.0)
        if not known.any():
            return
        rows, c, y = rows[known], c[known], y[known]
        self._ratio = grown(self._ratio, int(rows.max()) + 1)
        ratio = np.clip(c / y, 1.0 / MOST, MOST)
        last = np.where(self._ratio[rows] > 0.0, self._ratio[rows], ratio)
        self._times.observe(rows, c, y, _news(last))
        self._ratio[rows] = ratio

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        rows = np.flatnonzero(self._ratio)
        last = {"rows": rows.tolist(), "ratio": self._ratio[rows].tolist()}
        return {"times": self._times.to_state(), "last": last}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned, of one with the same prior."""
        self._times.load_state(state["times"])
        rows = np.array(state["last"]["rows"], dtype=np.int64)
        self._ratio = np.zeros(int(rows.max()) + 1 if rows.size else 0)
        self._ratio[rows] = np.array(state["last"]["ratio"], dtype=np.float64)


def _news(ratio: Floats) -> Floats:
    """Return q, shape (N,), given r; 0 where there was no transfer yet."""
    news = np.zeros(len(ratio))
    known: Bools = ratio > 0.0
    news[known] = -np.log(NEWEST_SHARE + (1.0 - NEWEST_SHARE) * ratio[known])
    return news


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


_NUMBER: dict[Phase, int | None] = {
    "download": DOWN,
    "load": COLD,
    "compute": INVERSE_MU,
    "upload": UP,
    "rest": None,
}
"""The number of the context that a phase is learned from; None is a constant."""

_MODEL: dict[Phase, type[Transfers] | type[Proportions] | type[Elasticities]] = {
    "download": Transfers,
    "load": Proportions,
    "compute": Proportions,
    "upload": Transfers,
    "rest": Elasticities,
}
"""The rates of transfers were measured some time ago; control messages, which are the rest, wait
for seconds where nothing passes."""


class PhaseEstimator:
    """Learns each phase p of each device by itself.

        tau_hat = sum_p y_hat_p,   width = sqrt(sum_p width_p^2)
        y_p = theta_p c_p                      loading and computing
        y_p = e^{a_p + d_p q_p} c_p^{b_p}      the transfers and the rest; b_p, d_p of all devices

    with c_p = nominal seconds down, cold start, 1/mu, nominal seconds up, and 1, and q_p what the
    last transfer said. A phase whose number is 0, such as loading on a warm device, teaches and
    predicts nothing.

    Source:
        Own; the regressions are `Proportions`, `Transfers` and `Elasticities`, the sum of
        independent errors is textbook.
    """

    def __init__(self, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior of every phase: see the three.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        self._models = {phase: _MODEL[phase](lambda_, discount) for phase in PHASES}

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context a device, shape (N, 4).

        Raises:
            ValueError: The shape is wrong.
        """
        require_contexts("phases", context)
        said = {
            phase: model.predict(_number(phase, context)) for phase, model in self._models.items()
        }
        times_s = [y_hat_s for y_hat_s, _ in said.values()]
        squares = [width_s**2 for _, width_s in said.values()]
        transfer_s: Floats = said["download"][0] + said["upload"][0]
        return Prediction(
            tau_hat_s=reduce(np.add, times_s),
            width_s=np.sqrt(reduce(np.add, squares)),
            transfer_hat_s=np.maximum(transfer_s, 0.0),
        )

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn from exchanges: rows (K,), their contexts before selection (K, 4).

        An exchange whose phases are unknown teaches nothing.

        Raises:
            ValueError: Shapes disagree, or a number is not finite. Nothing is learned then.
        """
        shape = (len(rows), CONTEXT), (len(rows), len(PHASES))
        if (context.shape, measured.phases_s.shape) != shape:
            raise ValueError(
                f"phases: need rows (K,), context (K, 4) and phases (K, 5), got {rows.shape}, "
                f"{context.shape} and {measured.phases_s.shape}; pass one row per exchange"
            )
        is_known = ~np.isnan(measured.phases_s).any(axis=1)
        rows, context, phases_s = rows[is_known], context[is_known], measured.phases_s[is_known]
        if not (np.isfinite(context).all() and np.isfinite(phases_s).all()):
            raise ValueError(
                f"phases: contexts and times must be finite, got {context.tolist()} and "
                f"{phases_s.tolist()}; leave invalid exchanges out"
            )
        for column, (phase, model) in enumerate(self._models.items()):
            model.observe(rows, _number(phase, context), phases_s[:, column])

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        return {phase: model.to_state() for phase, model in self._models.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned, of an estimator with the same prior."""
        for phase, model in self._models.items():
            model.load_state(state[phase])


def _number(phase: Phase, context: Floats) -> Floats:
    """Return the number that a phase is proportional to, shape (N,)."""
    column = _NUMBER[phase]
    return np.ones(len(context)) if column is None else context[:, column]
