"""Server steps: how the pseudo-gradient moves the parameters of the model."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Vector


class Plain:
    """w' = w + eta_s d.

    Source:
        McMahan et al., AISTATS 2017 (arXiv:1602.05629), with eta_s = 1; Reddi et al., ICLR 2021,
        Algorithm 1 (arXiv:2003.00295).
    """

    def __init__(self, learning_rate: float = 1.0) -> None:
        self.learning_rate = learning_rate
        """eta_s."""

    def step(self, params: Vector, d: Floats) -> Vector:
        """Return w + eta_s d, shape (n_params,)."""
        d *= self.learning_rate
        d += params
        with np.errstate(over="ignore"):  # diverged models are sent as such
            return d.astype(np.float32)

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""
