"""FedAvg: the average of the models, weighted by how much data is behind each."""

from typing import Any, Literal

import numpy as np

from coordinator.algorithms.aggregation.base import Merge, Reports
from coordinator.algorithms.aggregation.guard import normalised, usable, weighted_sum
from coordinator.algorithms.aggregation.participation import Participation
from coordinator.algorithms.arrays import Vector


class FedAvg:
    """Averages client models.

        w' = sum_k p_k w_k,   p_k = n_k / n,   or p_k proportional to n_k / pi_k

    Parameters and buffers alike. `weights="n_over_pi"` divides by the device's running rate of
    merged updates, which undoes the preference of a biased selector (RBCS-F prefers the quick).

    Source:
        McMahan et al., AISTATS 2017, Algorithm 1 (arXiv:1602.05629); inverse probability
        weights after Horvitz & Thompson (1952), normalised.
    """

    needs_loss = False

    def __init__(self, weights: Literal["n", "n_over_pi"] = "n") -> None:
        self._weights = weights
        self._participation = Participation()

    def merge(self, vector: Vector, n_params: int, reports: Reports) -> Merge:
        """Return the next model, shape (n_values,), or the same one if no report is usable."""
        weights = np.zeros(len(reports.models))
        at = usable(vector, reports)
        if at.size == 0:
            return Merge(vector.copy(), weights)
        n_k = reports.n_k[at].astype(np.float64)
        if self._weights == "n_over_pi":
            n_k = n_k / self._participation.observe(reports.rows[at])
        weights[at] = normalised(n_k)
        merged = weighted_sum([reports.models[k] for k in at], weights[at])
        return Merge(merged.astype(np.float32), weights)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return self._participation.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        self._participation.load_state(state)
