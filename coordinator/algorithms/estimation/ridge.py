"""Ridge regression of whole exchange times, as RBCS-F has it."""

from typing import Any

import numpy as np

from coordinator.algorithms.arrays import Floats, Ints
from coordinator.algorithms.estimation.base import (
    COLD,
    DOWN,
    INVERSE_MU,
    UP,
    Measured,
    Prediction,
    require_contexts,
)
from coordinator.algorithms.estimation.linear import LinearModels

FEATURES = 3
TRANSFER = 2
"""The feature that is the transfer of the model."""


class Ridge:
    """Learns tau = c . theta of each device from its own exchanges only.

        c = [1/mu, s, M_down/B_down + M_up/B_up],   tau_hat = c . theta_hat

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783).
    Deviates:
        The paper counts the upload only; here the model travels both ways.
    """

    def __init__(self, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior: see `LinearModels`.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        self._models = LinearModels(FEATURES, lambda_, discount)

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context a device, shape (N, 4).

        Raises:
            ValueError: The shape is wrong.
        """
        features = _features(context)
        tau_hat_s, width_s = self._models.predict(features)
        transfer_s = np.maximum(self._models.share(TRANSFER, features), 0.0)
        return Prediction(tau_hat_s=tau_hat_s, width_s=width_s, transfer_hat_s=transfer_s)

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn from exchanges: rows (K,), their contexts before selection (K, 4).

        Raises:
            ValueError: Shapes disagree, or a number is not finite. Nothing is learned then.
        """
        self._models.observe(rows, _features(context), measured.tau_s)

    def theta(self, n: int) -> Floats:
        """Return theta_hat of the first `n` rows, seconds per unit of each feature, (n, 3)."""
        return self._models.theta(n)

    def seen(self, n: int) -> Ints:
        """Return from how many exchanges each of the first `n` rows was learned, shape (n,)."""
        return self._models.seen(n)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        return self._models.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned, of an estimator with the same prior."""
        self._models.load_state(state)


def _features(context: Floats) -> Floats:
    require_contexts("ridge", context)
    return np.stack(
        [context[:, INVERSE_MU], context[:, COLD], context[:, DOWN] + context[:, UP]], axis=1
    )
