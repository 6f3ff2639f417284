"""Estimator that weights the last exchange of a device against the regression of its phases.

`phases` is right where a link moves about its usual rate, the last exchange where it has gone
somewhere else. Which of both holds differs between links, and changes on the same link.
"""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import grown
from fairbed.coordinator.algorithms.estimation.base import Measured, Prediction
from fairbed.coordinator.algorithms.estimation.phases import PhaseEstimator

ERROR_DISCOUNT = 0.9
"""Factor on the weight of an error at each later one of the same device."""

FLEET_WEIGHT = 10.0
"""Weight of the errors of all devices in those of a device, in exchanges."""

SHARPNESS = 4.0
"""How fast the weight follows the ratio of the errors: with one that is a fifth larger it falls
from a half to a third."""

LARGEST_ERROR = 1.0
"""Limit of an error, in logarithms: a hole in the coverage does not decide."""

LEAST_ERROR = 1e-3
"""Added to all errors: those of a constant link differ by chance."""

SURPRISE = 4.0
"""An error above so many times the usual error of the device, and above `LEAST_SURPRISE`, is a
surprise."""

LEAST_SURPRISE = 0.3
"""In logarithms: a third longer or shorter."""

SURPRISE_PRIOR = 2.0, 0.5, 0.25
"""Exchanges, and errors of both predictors after a surprise, before any was seen: a device whose
times hardly varied has another link now, and the next time is that of the last exchange."""

_ORDINARY, _SURPRISED = 0, 1


class MixtureEstimator:
    """Combines `phases` and the last exchange time of each device by their recent errors.

        ln tau_hat = (1 - w) ln phases + w ln last
        w = E_phases^p / (E_phases^p + E_last^p),   p = 4
        E = (sum_i g_i e_i + F e) / (sum_i g_i + F),   g_i = 0.9^(k - i),  F = 10

    with e_i the sizes of the errors ln(tau_i / predicted) of a predictor on the device, at most 1,
    and e their mean over all devices. After a surprise, an exchange whose time was far from the
    prediction (`SURPRISE`), other sums count: those of the exchanges after surprises, of all
    devices, with a prior that trusts the last exchange. So a change of the link is followed at
    once, and outliers that pass soon are no reason to, once they have been seen.

    Width and the share of the transfers are those of `phases`.

    Source:
        Own; weights by the inverse of recent errors are those of Bates and Granger, Oper. Res. Q.
        1969.
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
        self._is_surprised: Bools = np.zeros(0, dtype=np.bool_)
        """The last exchange was a surprise, shape (N,)."""
        self._sums: Floats = np.zeros((0, 3))
        """Weight, and weighted errors of `phases` and of the last value, shape (N, 3)."""
        n, of_phases, of_last = SURPRISE_PRIOR
        self._fleet: Floats = np.array([[0.0, 0.0, 0.0], [n, n * of_phases, n * of_last]])
        """The same of all devices, without discount; after ordinary exchanges and surprises."""

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context per device, shape (N, 4).

        Raises:
            ValueError: The shape is wrong.
        """
        made = self._phases.predict(context)
        tau_hat_s = self._mixed(made.tau_hat_s)
        scale = np.divide(
            tau_hat_s, made.tau_hat_s, out=np.ones(len(context)), where=made.tau_hat_s > 0.0
        )
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
        n = int(rows.max()) + 1 if rows.size else 0
        whole = np.zeros((max(n, len(self._last_s)), context.shape[1]))
        whole[rows] = context
        predicted_s = self._phases.predict(whole).tau_hat_s
        self._phases.observe(rows, context, measured)
        self._last_s = grown(self._last_s, n)
        self._is_surprised, self._sums = grown(self._is_surprised, n), grown(self._sums, n)
        mixed_s = self._mixed(predicted_s)
        tau_s = measured.tau_s
        is_whole: Bools = tau_s > 0.0
        if measured.is_bound is not None:
            is_whole = is_whole & ~measured.is_bound
        known = is_whole & (predicted_s[rows] > 0.0) & (self._last_s[rows] > 0.0)
        usual = self._errors(_ORDINARY)[0]
        fleet = self._fleet.copy()
        for row, own_s in zip(rows[known].tolist(), tau_s[known].tolist(), strict=True):
            log = np.log(own_s)
            errors = np.abs(log - np.log([predicted_s[row], self._last_s[row]]))
            counted = np.array([1.0, *np.minimum(errors, LARGEST_ERROR)])
            if self._is_surprised[row]:
                fleet[_SURPRISED] += counted
            else:
                fleet[_ORDINARY] += counted
            error = abs(log - np.log(mixed_s[row]))
            is_surprise = error > max(SURPRISE * float(usual[row]), LEAST_SURPRISE)
            if not is_surprise:
                self._sums[row] *= ERROR_DISCOUNT
                self._sums[row] += counted
            self._is_surprised[row] = is_surprise
        self._fleet = fleet
        self._last_s[rows] = np.where(is_whole, tau_s, 0.0)

    def _errors(self, kind: int) -> Floats:
        """Return E of `phases` and of the last value, shape (2, N)."""
        count, *of_fleet = self._fleet[kind].tolist()
        fleet = np.array(of_fleet) / count if count else np.ones(2)
        if kind == _SURPRISED:
            constant: Floats = np.repeat(fleet[:, None], len(self._sums), axis=1)
            return constant
        weight = self._sums[:, 0] + FLEET_WEIGHT
        errors: Floats = (self._sums[:, 1:].T + FLEET_WEIGHT * fleet[:, None]) / weight
        return errors

    def _mixed(self, predicted_s: Floats) -> Floats:
        """Return tau_hat of each device, shape (N,), given that of `phases`."""
        n = len(predicted_s)
        mixed: Floats = predicted_s.copy()
        rows = np.flatnonzero(grown(self._last_s, n)[:n] > 0.0)
        rows = rows[predicted_s[rows] > 0.0]
        kinds = np.stack([self._errors(_ORDINARY), self._errors(_SURPRISED)])[:, :, rows]
        errors = np.where(self._is_surprised[rows], kinds[_SURPRISED], kinds[_ORDINARY])
        odds = ((errors[1] + LEAST_ERROR) / (errors[0] + LEAST_ERROR)) ** SHARPNESS
        w = 1.0 / (1.0 + odds)
        mixed[rows] = np.exp((1.0 - w) * np.log(predicted_s[rows]) + w * np.log(self._last_s[rows]))
        return mixed

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        rows = np.flatnonzero((self._last_s > 0.0) | (self._sums[:, 0] > 0.0))
        return {
            "phases": self._phases.to_state(),
            "rows": rows.tolist(),
            "last_s": self._last_s[rows].tolist(),
            "is_surprised": self._is_surprised[rows].tolist(),
            "sums": self._sums[rows].tolist(),
            "fleet": self._fleet.tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned, of an estimator with the same prior."""
        self._phases.load_state(state["phases"])
        rows = np.array(state["rows"], dtype=np.int64)
        n = int(rows.max()) + 1 if rows.size else 0
        self._last_s, self._is_surprised = np.zeros(n), np.zeros(n, dtype=np.bool_)
        self._sums = np.zeros((n, 3))
        self._fleet = np.array(state["fleet"], dtype=np.float64)
        if rows.size:
            self._last_s[rows] = state["last_s"]
            self._is_surprised[rows] = state["is_surprised"]
            self._sums[rows] = state["sums"]
