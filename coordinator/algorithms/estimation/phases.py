"""Estimator with one regression per phase of an exchange, because each phase is measured.

`Transfers` predicts a transfer from the last measured rate and the duration of the last transfer;
`Proportions` learns y = theta c of each device from its own exchanges.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import entries, grown
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
    require_observed_contexts,
)
from fairbed.coordinator.algorithms.estimation.elasticity import Elasticities

NEWEST_SHARE = 0.5
"""Weight of the newest transfer in a reported rate (`device_agent.state.link_estimate`)."""

LEVEL_DISCOUNT = 0.9
"""Gamma of transfers, a factor on the discount of the estimator: the usual rate of a moving device
is that of its last ten transfers, not that of an hour ago."""

MAX_RATIO = 4.0
"""Limit on nominal time / measured time, and on its inverse: beyond it the rate was measured again
in between, or the link had an outage."""


class Transfers:
    """Learns transfer times from nominal times, and from the duration of the last transfer.

        y = e^(a + d q) c^b,   q = -ln(s + (1 - s) r),   r = c_last / y_last  within [1/4, 4]

    The rate that a device reports is a mean over its transfers in which the newest has the weight
    s = 1/2: good on a constant link, out of date on a varying one. The coordinator knows c_last,
    the nominal time of the newest transfer, and y_last, its measured time; so c e^q is the nominal
    time of the next transfer at the rate of the newest alone. Sizes cancel out, so the encoding may
    change between transfers. `Elasticities` learns b and d, and with d whether the newest transfer
    is informative beyond the mean, or noise.

    Source:
        Own.
    """

    def __init__(self, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior: see `Elasticities`, which gets `LEVEL_DISCOUNT` times the discount.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        check_prior("phases", lambda_, discount)
        self._times = Elasticities(lambda_, LEVEL_DISCOUNT * discount)
        self._ratio: Floats = np.zeros(0)
        """r of each device, shape (N,); 0 before its first transfer."""

    def predict(self, c: Floats, of: Ints | None = None) -> tuple[Floats, Floats]:
        """Return y_hat and width for the nominal time of each device, each of shape (N,).

        Args:
            c: Nominal times, shape (N,).
            of: Rows of the devices, shape (N,); None is the first N.
        """
        return self._times.predict(c, _rate_change(entries(self._ratio, of, len(c))), of)

    def observe(self, rows: Ints, c: Floats, y: Floats) -> None:
        """Learn from rows (K,), nominal times (K,) and measured times (K,), at most one per device.

        A pair with a time that is not positive was no transfer and is ignored. The r of a device's
        first transfer is also used as that of the transfer before.
        """
        known: Bools = (c > 0.0) & (y > 0.0)
        if not known.any():
            return
        rows, c, y = rows[known], c[known], y[known]
        self._ratio = grown(self._ratio, int(rows.max()) + 1)
        ratio = np.clip(c / y, 1.0 / MAX_RATIO, MAX_RATIO)
        last = np.where(self._ratio[rows] > 0.0, self._ratio[rows], ratio)
        self._times.observe(rows, c, y, _rate_change(last))
        self._ratio[rows] = ratio

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        rows = np.flatnonzero(self._ratio)
        last = {"rows": rows.tolist(), "ratio": self._ratio[rows].tolist()}
        return {"times": self._times.to_state(), "last": last}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned, of one with the same prior."""
        self._times.load_state(state["times"])
        rows = np.array(state["last"]["rows"], dtype=np.int64)
        self._ratio = np.zeros(int(rows.max()) + 1 if rows.size else 0)
        self._ratio[rows] = np.array(state["last"]["ratio"], dtype=np.float64)


def _rate_change(ratio: Floats) -> Floats:
    """Return q, shape (N,), given r; 0 before the first transfer."""
    change = np.zeros(len(ratio))
    known: Bools = ratio > 0.0
    change[known] = -np.log(NEWEST_SHARE + (1.0 - NEWEST_SHARE) * ratio[known])
    return change


class Proportions:
    """Learns y = theta c of each device, where errors of y grow with c.

        k = sum_i g_i,   theta_hat = sum_i g_i (y_i / c_i) / k,   g_i = gamma^(k - i)
        y_hat = theta_hat c,   width = |c| / sqrt(k + lambda)

    over the observations i of a device: regression of y on c with weights 1 / c^2, which suits
    relative errors. A wrong c (a link measured on its first packets) affects one observation only.
    Lambda counts observations, for every unit of c, and only in the width: a time seen once is the
    best prediction of the next. A device never measured has y_hat = 0 and width |c| / sqrt(lambda).

    Source:
        Own; weighted least squares for proportional errors is textbook (Aitken 1935).
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
        self._sums: Floats = np.zeros((0, 2))
        """Sums of g and of g y / c of each device, shape (N, 2)."""

    def predict(self, c: Floats, of: Ints | None = None) -> tuple[Floats, Floats]:
        """Return y_hat and width for one c per device, each of shape (N,).

        Args:
            c: Shape (N,).
            of: Rows of the devices, shape (N,); None is the first N.
        """
        sums = entries(self._sums, of, len(c))
        rows = np.flatnonzero(sums[:, 0])
        weight, ratios = sums[rows].T
        y_hat, width = np.zeros(len(c)), np.abs(c) / math.sqrt(self._lambda)
        y_hat[rows] = ratios / weight * c[rows]
        width[rows] = np.abs(c[rows]) / np.sqrt(weight + self._lambda)
        return y_hat, width

    def observe(self, rows: Ints, c: Floats, y: Floats) -> None:
        """Learn in order from rows (K,), c (K,) and measured times y (K,); c = 0 is ignored."""
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
        """Restore a state that `to_state` returned, of one with the same prior."""
        rows = np.array(state["rows"], dtype=np.int64)
        self._sums = np.zeros((int(rows.max()) + 1 if rows.size else 0, 2))
        if rows.size:
            self._sums[rows] = np.array(state["sums"], dtype=np.float64)


_COLUMN: dict[Phase, int | None] = {
    "download": DOWN,
    "load": COLD,
    "compute": INVERSE_MU,
    "upload": UP,
    "rest": None,
}
"""Column of the context that is c of a phase; None is the constant 1."""

_MODEL: dict[Phase, type[Transfers] | type[Proportions] | type[Elasticities]] = {
    "download": Transfers,
    "load": Proportions,
    "compute": Proportions,
    "upload": Transfers,
    "rest": Elasticities,
}
"""Regression of each phase. Rates of transfers may be out of date; control messages, the rest, wait
for seconds during an outage."""


class PhaseEstimator:
    """Learns each phase p of each device separately.

        tau_hat = sum_p y_hat_p,   width = sqrt(sum_p width_p^2)
        y_p = theta_p c_p                      loading and computing
        y_p = e^{a_p + d_p q_p} c_p^{b_p}      the transfers and the rest; b_p, d_p of all devices

    with c_p = nominal seconds of the download, cold start, 1/mu, nominal seconds of the upload, and
    1; q_p is the rate change of the last transfer. A phase with c_p = 0, such as loading on a warm
    device, is predicted as 0 s and not learned from.

    Of an exchange that did not end, the phases that were seen are learned; the others took at least
    R = tau - (sum of the seen), where tau is a lower bound. Until the device completes an exchange,

        tau_hat = sum_{p seen} y_hat_p + max(sum_{p unseen} y_hat_p, R)

    Source:
        Own; the regressions are `Proportions`, `Transfers` and `Elasticities`, the sum of
        independent errors is textbook.
    """

    def __init__(self, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior of every phase; see `Proportions`.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        self._models = {phase: _MODEL[phase](lambda_, discount) for phase in PHASES}
        self._rest_s: Floats = np.zeros(0)
        """R of each device, seconds, shape (N,); 0 if its last exchange was complete."""
        self._is_unseen: Bools = np.zeros((0, len(PHASES)), dtype=np.bool_)
        """Phases that R bounds, shape (N, 5)."""

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context per device, shape (N, 4).

        Raises:
            ValueError: The shape is wrong.
        """
        return self.predict_of(None, context)

    def predict_of(self, rows: Ints | None, context: Floats) -> Prediction:
        """Predict for some devices: rows (K,), None for the first K, and their contexts (K, 4).

        Raises:
            ValueError: The shape of the contexts is wrong.
        """
        require_contexts("phases", context)
        predicted = {
            phase: model.predict(_input(phase, context), of=rows)
            for phase, model in self._models.items()
        }
        times_s = [y_hat_s for y_hat_s, _ in predicted.values()]
        squares = [width_s**2 for _, width_s in predicted.values()]
        transfer_s: Floats = predicted["download"][0] + predicted["upload"][0]
        return Prediction(
            tau_hat_s=reduce(np.add, times_s) + self._missing_s(rows, times_s),
            width_s=np.sqrt(reduce(np.add, squares)),
            transfer_hat_s=np.maximum(transfer_s, 0.0),
        )

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn from exchanges: rows (K,), their contexts before selection (K, 4).

        A phase that is NaN was not seen: the time of the exchange is then a lower bound.

        Raises:
            ValueError: Shapes disagree, or a number is negative or not finite. Nothing is learned
                then.
        """
        shape = (len(rows), CONTEXT), (len(rows), len(PHASES))
        if (context.shape, measured.phases_s.shape) != shape:
            raise ValueError(
                f"phases: need rows (K,), context (K, 4) and phases (K, 5), got {rows.shape}, "
                f"{context.shape} and {measured.phases_s.shape}; pass one row per exchange"
            )
        phases_s, is_unseen = measured.phases_s, np.isnan(measured.phases_s)
        is_finite = np.isfinite(phases_s) | is_unseen
        if not (np.isfinite(context).all() and is_finite.all()):
            raise ValueError(
                f"phases: contexts and times must be finite, got {context.tolist()} and "
                f"{phases_s.tolist()}; leave invalid exchanges out"
            )
        require_observed_contexts("phases", context)
        for column, (phase, model) in enumerate(self._models.items()):
            seen = ~is_unseen[:, column]
            model.observe(rows[seen], _input(phase, context[seen]), phases_s[seen, column])
        self._bound(rows, measured.tau_s - np.nansum(phases_s, axis=1), is_unseen)

    def _bound(self, rows: Ints, rest_s: Floats, is_unseen: Bools) -> None:
        """Store the lower bounds of unseen phases; a complete exchange removes that of its device.

        Args:
            rows: Device rows, shape (K,).
            rest_s: R, seconds, shape (K,).
            is_unseen: Phases that were not seen, shape (K, 5).
        """
        if rows.size == 0:
            return
        n = int(rows.max()) + 1
        self._rest_s, self._is_unseen = grown(self._rest_s, n), grown(self._is_unseen, n)
        self._rest_s[rows] = np.where(is_unseen.any(axis=1), np.maximum(rest_s, 0.0), 0.0)
        self._is_unseen[rows] = is_unseen

    def _missing_s(self, of: Ints | None, times_s: Sequence[Floats]) -> Floats:
        """Return how much the predicted phases, five of shape (N,), are below R, shape (N,)."""
        missing_s = np.zeros(len(times_s[0]))
        rest_s = entries(self._rest_s, of, len(missing_s))
        at = np.flatnonzero(rest_s)
        rows = at if of is None else of[at]
        bounded_s = np.stack([of_phase_s[at] for of_phase_s in times_s], axis=1)
        unseen_s = np.where(self._is_unseen[rows], bounded_s, 0.0).sum(axis=1)
        missing_s[at] = np.maximum(rest_s[at] - unseen_s, 0.0)
        return missing_s

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        rows = np.flatnonzero(self._rest_s)
        bounds = {
            "rows": rows.tolist(),
            "rest_s": self._rest_s[rows].tolist(),
            "is_unseen": self._is_unseen[rows].tolist(),
        }
        state: dict[str, Any] = {phase: model.to_state() for phase, model in self._models.items()}
        return state | {"bounds": bounds}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned, of an estimator with the same prior."""
        for phase, model in self._models.items():
            model.load_state(state[phase])
        bounds = state["bounds"]
        rows, rest_s = np.array(bounds["rows"], dtype=np.int64), np.array(bounds["rest_s"])
        is_unseen = np.array(bounds["is_unseen"], dtype=np.bool_).reshape(len(rows), len(PHASES))
        self._rest_s, self._is_unseen = np.zeros(0), np.zeros((0, len(PHASES)), dtype=np.bool_)
        self._bound(rows, rest_s, is_unseen)


def _input(phase: Phase, context: Floats) -> Floats:
    """Return c of a phase, shape (N,)."""
    column = _COLUMN[phase]
    return np.ones(len(context)) if column is None else context[:, column]
