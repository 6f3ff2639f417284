"""Baseline estimators: the last value, the mean of a device, the mean of all devices."""

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.columns import grown
from fairbed.coordinator.algorithms.estimation.base import Measured, Prediction


class LastValue:
    """Predicts that each exchange takes as long as the device's last one."""

    def __init__(self) -> None:
        self._last_s: Floats = np.zeros(0)

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context per device, shape (N, 4); 0 s for a device never measured."""
        return _certain(grown(self._last_s, len(context))[: len(context)].copy())

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn from exchanges: rows (K,); contexts do not matter."""
        if rows.size:
            self._last_s = grown(self._last_s, int(rows.max()) + 1)
            self._last_s[rows] = measured.tau_s


class DeviceMean:
    """Predicts the mean of all exchanges of the device so far."""

    def __init__(self) -> None:
        self._sum_s: Floats = np.zeros(0)
        self._count: Ints = np.zeros(0, dtype=np.int64)

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context per device, shape (N, 4); 0 s for a device never measured."""
        n = len(context)
        count = np.maximum(grown(self._count, n)[:n], 1)
        return _certain(grown(self._sum_s, n)[:n] / count)

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn from exchanges: rows (K,); contexts do not matter."""
        if rows.size:
            n = int(rows.max()) + 1
            self._sum_s, self._count = grown(self._sum_s, n), grown(self._count, n)
            np.add.at(self._sum_s, rows, measured.tau_s)
            np.add.at(self._count, rows, 1)


class GlobalMean:
    """Predicts the mean of all exchanges of all devices so far."""

    def __init__(self) -> None:
        self._sum_s, self._count = 0.0, 0

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context per device, shape (N, 4); 0 s before the first exchange."""
        return _certain(np.full(len(context), self._sum_s / max(self._count, 1)))

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn from exchanges: rows (K,); contexts do not matter."""
        self._sum_s += float(measured.tau_s.sum())
        self._count += len(rows)


def _certain(tau_hat_s: Floats) -> Prediction:
    """Return predictions of width 0."""
    nothing = np.zeros(len(tau_hat_s))
    return Prediction(tau_hat_s=tau_hat_s, width_s=nothing, transfer_hat_s=nothing)
