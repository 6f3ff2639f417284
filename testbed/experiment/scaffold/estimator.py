"""An estimator of exchange times: Template."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.estimation import Measured, Prediction


class Template:
    """Predicts the moving average of each device: m <- m + rate (tau - m).

    Args:
        rate: Above 0, at most 1; 1 is the last value. The keys of `[selection.estimator_options]`
            are arguments.
    """

    def __init__(self, rate: float = 0.3) -> None:
        if not 0.0 < rate <= 1.0:
            raise ValueError(f"rate must be above 0 and at most 1, got {rate}; 1 is the last value")
        self._rate = rate
        self._mean_s: dict[int, float] = {}
        """Moving average of each row, seconds."""

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context per device, shape (N, 4): 1/mu, cold start, seconds down and up.

        A device without an exchange is predicted at 0 s, so that it is tried.
        """
        known_s = [self._mean_s.get(row, 0.0) for row in range(len(context))]
        tau_hat_s, is_known = np.array(known_s), np.array(known_s) > 0.0
        return Prediction(
            tau_hat_s=tau_hat_s,
            width_s=np.where(is_known, 0.1 * tau_hat_s, 1.0),
            transfer_hat_s=np.minimum(context[:, 2] + context[:, 3], tau_hat_s),
        )

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn from exchanges: rows (K,), their contexts before the selection, their times.

        Where `measured.is_bound`, the exchange did not end, and took at least this time.
        """
        for row, tau_s in zip(rows.tolist(), measured.tau_s.tolist(), strict=True):
            before_s = self._mean_s.get(row, tau_s)
            self._mean_s[row] = before_s + self._rate * (tau_s - before_s)

    def to_state(self) -> dict[str, Any]:
        """Return the state for a resumed run, as plain numbers and lists."""
        return {"mean_s": sorted(self._mean_s.items())}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._mean_s = {int(row): float(mean_s) for row, mean_s in state["mean_s"]}
