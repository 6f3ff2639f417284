"""A pseudo-gradient, the combination of the changes of the devices: Template."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation import Updates
from fairbed.coordinator.algorithms.arrays import Floats


class Template:
    """The weighted sum of the changes, each of at most a given length.

        d = sum_k a_k min(1, longest / |D_k|) D_k

    Args:
        longest: Largest Euclidean length of a change, above 0. The keys of
            `[aggregation.pseudo_gradient_options]` are arguments.
    """

    def __init__(self, longest: float = 1.0) -> None:
        if not longest > 0.0:
            raise ValueError(f"longest must be above 0, got {longest}; 1e9 shortens nothing")
        self._longest = longest

    def combine(self, updates: Updates, a: Floats) -> Floats:
        """Return d, shape (n_values,): of the parameters, then of the buffers.

        Args:
            updates: Their `changes` are D_k, shape (n_values,) each, as they are read.
            a: Weights of the rule, shape (K,), not all 0; their sum need not be 1.
        """
        changes = updates.changes
        assert changes is not None, "a pseudo-gradient always gets the changes"
        n, d = changes.n_params, np.zeros(changes.n_values)
        shares = a / a.sum()  # buffers are averaged, whatever the length of the step
        for a_k, share, change in zip(a, shares, changes, strict=True):
            length = np.sqrt(np.square(change[:n]).sum())
            d[:n] += a_k * min(1.0, self._longest / max(length, 1e-12)) * change[:n]
            d[n:] += share * change[n:]
        return d

    def to_state(self) -> dict[str, Any]:
        """Return the state for a resumed run, as plain numbers and lists; this one has none."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
