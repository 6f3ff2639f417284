"""A rule of the weights of updates: Template."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation import Updates, normalised
from fairbed.coordinator.algorithms.arrays import Floats, Ints


class Template:
    """Weights in proportion to p_k (1 + strength F_k), p of `aggregation.weights`.

    Args:
        strength: At least 0; 0 is FedAvg. The keys of `[aggregation.rule_options]` are arguments.
    """

    needs_loss = True  # devices report F_k(w_t), the loss of the model that they are sent
    needs_norms = False  # squared_norms, |D_k|^2
    needs_models = False  # changes, D_k: all models are stored until the last one has arrived

    def __init__(self, strength: float = 1.0) -> None:
        if strength < 0.0:
            raise ValueError(f"strength must be >= 0, got {strength}; 0 is FedAvg")
        self._strength = strength

    def decide(self, updates: Updates) -> Floats:
        """Return the weight of each update, shape (K,), at least 0; all 0: the model stays."""
        return normalised(self._unnormalised(updates))

    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        """Return what the weights are in proportion to: mantissas, and exponents of 2.

        Each depends on its own update only, so that updates are merged as they arrive. A rule that
        compares updates with each other has no `factors`.
        """
        return self._unnormalised(updates), np.zeros(len(updates), dtype=np.int64)

    def _unnormalised(self, updates: Updates) -> Floats:
        return updates.shares * (1.0 + self._strength * updates.losses)

    def to_state(self) -> dict[str, Any]:
        """Return the state for a resumed run, as plain numbers and lists; this rule has none."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
