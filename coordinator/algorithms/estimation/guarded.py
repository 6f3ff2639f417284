"""Guard of a plug-in estimator: each violation of the contract is one line that names it."""

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import Estimator, Measured, Prediction
from fairbed.coordinator.algorithms.plugin import Guard
from fairbed.wire.plugins import described

COLUMNS = ("tau_hat_s", "width_s", "transfer_hat_s")
"""Columns of a prediction."""


class GuardedEstimator(Guard):
    """A plug-in estimator whose every result is checked."""

    noun, doctor, page = "estimator", "--estimator", "own-estimator.md"
    verbs = ("predict", "observe")

    def __init__(self, name: str, estimator: Estimator) -> None:
        super().__init__(name, estimator)
        self._estimator = estimator

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context per device, shape (N, 4).

        Raises:
            PluginError: The result is not three columns of N finite numbers, widths and transfer
                times at least 0.
        """
        where = "predict()"
        made = self.call(where, lambda: self._estimator.predict(context.copy()))
        if missing := [name for name in COLUMNS if not hasattr(made, name)]:
            got = f"{described(made)} without {', '.join(missing)}"
            self.fail(where, f"must return a Prediction, got {got}")
        columns = {
            name: self.numbers(f"{where}.{name}", getattr(made, name), (len(context),))
            for name in COLUMNS
        }
        for name in COLUMNS[1:]:
            if (columns[name] < 0.0).any():
                at = int(np.argmin(columns[name]))
                got = f"{columns[name][at]:g} for row {at}"
                self.fail(f"{where}.{name}", f"must return numbers >= 0, got {got}")
        return Prediction(**columns)

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Pass measured exchanges to the plug-in: rows (K,), their contexts (K, 4).

        Raises:
            PluginError: It raised.
        """
        self.call("observe()", lambda: self._estimator.observe(rows, context, measured))
