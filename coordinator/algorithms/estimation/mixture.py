"""Estimator that weights the last exchange of a device against the regression of its phases.

`phases` is right where a link moves about its usual rate, the last exchange where it has gone
somewhere else. Which of both holds differs between links, and changes on the same link.
"""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import entries, grown
from fairbed.coordinator.algorithms.estimation.base import Measured, Prediction
from fairbed.coordinator.algorithms.estimation.phases import PhaseEstimator

SHARES: Floats = np.linspace(0.0, 1.0, 5)
"""Shares v of the last exchange in the mixes that are compared, ascending from `phases` alone."""

ERROR_DISCOUNT = 0.95
"""Factor on the weight of an error at each later one of the same device."""

FLEET_WEIGHT = 20.0
"""Weight of the errors of all devices in those of a device, in exchanges."""

FLEET_MEMORY = 1000.0
"""Largest weight of the errors of all devices so far, in exchanges: older ones are forgotten."""

SHARPNESS = 40.0
"""p: a mix with an error that is 2 % larger has half the weight."""

LARGEST_ERROR = 1.0
"""Limit of an error, in logarithms: a hole in the coverage does not decide."""

LEAST_ERROR = 1e-3
"""Added to all errors: those of a constant link differ by chance."""

APART, LEAST_APART = 2.0, 0.2
"""Both predictors are apart if the logarithm of their ratio is above so many times the usual error
of `phases` on the device, and above a fifth."""

APART_PRIOR = 2.0, 0.5, 0.25
"""Exchanges, and errors of both predictors while they are apart, before any was seen: a device
whose times hardly varied has another link now, and the next time is that of the last exchange."""

_CLOSE, _APART = 0, 1


class MixtureEstimator:
    """Combines `phases` and the last exchange time of each device by their recent errors.

        ln tau_v = (1 - v) ln phases + v ln last,   v = 0, 1/4, .., 1
        e_v,i = min(|ln(tau_i / tau_v)|, 1)
        E_v = (sum_i g_i e_v,i + F e_v) / (sum_i g_i + F),   g_i = 0.95^(k - i),  F = 20
        w = sum_v v E_v^-p / sum_v E_v^-p,   p = 40,   tau_hat = tau_w

    over the exchanges i = 1..k of a device, with e_v the mean over those of all devices. While
    both predictors are apart (`APART`), other sums count: those of the exchanges in which they were
    apart, of all devices, with a prior that trusts the last exchange. So a change of the link is
    followed at once and until `phases` has learned it; and outliers that pass soon are no reason
    to, once they have been seen.

    Width and the share of the transfers are those of `phases`.

    Source:
        Own; weights by the inverse of recent errors are those of Bates and Granger, Oper. Res. Q.
        1969, here of both predictors and of mixes of them.
    """

    def __init__(self, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior of `phases`; see `PhaseEstimator`.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        self._phases = PhaseEstimator(lambda_, discount)
        self._last_s: Floats = np.zeros(0)
        """Time of the last exchange of each device, seconds, shape (N,); 0 before the first, and
        after one that did not end."""
        self._sums: Floats = np.zeros((0, 1 + len(SHARES)))
        """Weight, and weighted errors of each mix, of each device, shape (N, 6)."""
        count, of_phases, of_last = APART_PRIOR
        prior = count * ((1.0 - SHARES) * of_phases + SHARES * of_last)
        self._fleet: Floats = np.zeros((2, 1 + len(SHARES)))
        """The same of all devices, shape (2, 6): of predictors that were close, and apart."""
        self._fleet[_APART] = count, *prior

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context per device, shape (N, 4).

        Raises:
            ValueError: The shape is wrong.
        """
        made = self._phases.predict(context)
        of_phases_s = made.tau_hat_s
        last_s = entries(self._last_s, None, len(context))
        rows = np.flatnonzero((last_s > 0.0) & (of_phases_s > 0.0))
        tau_hat_s, scale = of_phases_s.copy(), np.ones(len(context))
        mixes = _mixes(of_phases_s[rows], last_s[rows])
        errors = self._errors(rows)
        errors[:, _are_apart(mixes, errors)] = self._fleet_errors(_APART)[:, None]
        tau_hat_s[rows] = np.exp(_weighted(mixes, errors))
        scale[rows] = tau_hat_s[rows] / of_phases_s[rows]
        return Prediction(
            tau_hat_s=tau_hat_s,
            width_s=made.width_s,
            transfer_hat_s=made.transfer_hat_s * scale,
        )

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn from exchanges: rows (K,), their contexts before selection (K, 4).

        The time of an exchange that did not end is a lower bound: only `phases` learns from it, and
        predicts the next one alone.

        Raises:
            ValueError: As `PhaseEstimator.observe`. Nothing is learned then.
        """
        of_phases_s = self._phases.predict_of(rows, context).tau_hat_s
        self._phases.observe(rows, context, measured)
        if rows.size == 0:
            return
        n = int(rows.max()) + 1
        self._last_s, self._sums = grown(self._last_s, n), grown(self._sums, n)
        tau_s, last_s = measured.tau_s, self._last_s[rows]
        has_ended: Bools = tau_s > 0.0
        if measured.is_bound is not None:
            has_ended = has_ended & ~measured.is_bound
        known = np.flatnonzero(has_ended & (of_phases_s > 0.0) & (last_s > 0.0))
        if known.size:
            mixes = _mixes(of_phases_s[known], last_s[known])
            self._learn(rows[known], mixes, np.log(tau_s[known]))
        self._last_s[rows] = np.where(has_ended, tau_s, 0.0)

    def _learn(self, rows: Ints, mixes: Floats, log_s: Floats) -> None:
        """Count the errors of each mix, given ln tau_v (5, K) and ln tau (K,)."""
        sizes = np.minimum(np.abs(log_s - mixes), LARGEST_ERROR)
        counted = np.concatenate([np.ones((1, len(rows))), sizes]).T
        are_apart = _are_apart(mixes, self._errors(rows))
        for kind, chosen in ((_CLOSE, ~are_apart), (_APART, are_apart)):
            added = self._fleet[kind] + counted[chosen].sum(axis=0)
            self._fleet[kind] = added * min(1.0, FLEET_MEMORY / max(float(added[0]), 1.0))
        close = rows[~are_apart]
        np.multiply.at(self._sums, close, ERROR_DISCOUNT)  # a device may be in `rows` twice
        np.add.at(self._sums, close, counted[~are_apart])

    def _errors(self, rows: Ints) -> Floats:
        """Return E of each mix on some devices, shape (5, K), as long as both are close."""
        weight, *own = self._sums[rows].T
        fleet = FLEET_WEIGHT * self._fleet_errors(_CLOSE)
        errors: Floats = (np.stack(own) + fleet[:, None]) / (weight + FLEET_WEIGHT)
        return errors

    def _fleet_errors(self, kind: int) -> Floats:
        """Return the mean error of each mix on all devices, shape (5,); 1 before the first."""
        count = float(self._fleet[kind, 0])
        mean: Floats = self._fleet[kind, 1:] / count if count else np.ones(len(SHARES))
        return mean

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        rows = np.flatnonzero((self._last_s > 0.0) | (self._sums[:, 0] > 0.0))
        return {
            "phases": self._phases.to_state(),
            "rows": rows.tolist(),
            "last_s": self._last_s[rows].tolist(),
            "sums": self._sums[rows].tolist(),
            "fleet": self._fleet.tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned, of an estimator with the same prior."""
        self._phases.load_state(state["phases"])
        rows = np.array(state["rows"], dtype=np.int64)
        n = int(rows.max(initial=-1)) + 1
        self._last_s, self._sums = np.zeros(n), np.zeros((n, 1 + len(SHARES)))
        self._fleet = np.array(state["fleet"], dtype=np.float64)
        self._last_s[rows] = state["last_s"]
        self._sums[rows] = np.array(state["sums"]).reshape(len(rows), 1 + len(SHARES))


def _mixes(of_phases_s: Floats, last_s: Floats) -> Floats:
    """Return ln tau_v of each mix, shape (5, K), given both predictions, seconds, shape (K,)."""
    of_phases = np.log(of_phases_s)
    mixes: Floats = of_phases + SHARES[:, None] * (np.log(last_s) - of_phases)
    return mixes


def _are_apart(mixes: Floats, errors: Floats) -> Bools:
    """Return whether the predictors of each device are apart, shape (K,), given E (5, K)."""
    between: Floats = np.abs(mixes[-1] - mixes[0])
    are_apart: Bools = between > np.maximum(APART * errors[0], LEAST_APART)
    return are_apart


def _weighted(mixes: Floats, errors: Floats) -> Floats:
    """Return ln tau_hat, shape (K,), given ln tau_v and E of each mix, (5, K)."""
    smoothed = errors + LEAST_ERROR
    weights = (smoothed.min(axis=0) / smoothed) ** SHARPNESS
    log_s: Floats = (weights * mixes).sum(axis=0) / weights.sum(axis=0)
    return log_s
