"""Pseudo-gradients: how the weighted changes of the devices become one change of the model."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Updates
from fairbed.coordinator.algorithms.arrays import Floats


class Average:
    """The weighted sum of the changes, d = sum_k a_k D_k."""

    def factors(self, updates: Updates) -> Floats:
        """Return 1 for each update, shape (K,)."""
        return np.ones(len(updates))

    def coefficients(self, updates: Updates, a: Floats) -> Floats:
        """Return the weights, shape (K,)."""
        return a

    def combine(self, updates: Updates, a: Floats) -> Floats:
        """Return d, shape (n_values,)."""
        return weighted_sum(updates, self.coefficients(updates, a))

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""


def weighted_sum(updates: Updates, b: Floats) -> Floats:
    """Return sum_k b_k D_k, shape (n_values,), from updates with their changes."""
    assert updates.changes is not None, "a weighted sum needs the changes"
    d = np.zeros_like(updates.changes[0])
    for k, b_k in enumerate(b.tolist()):
        d += b_k * updates.changes[k]
    return d
