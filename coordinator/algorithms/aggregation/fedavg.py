"""FedAvg: the weighted average of the models."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import (
    Merge,
    Report,
    Reports,
    Stack,
    merge_one_by_one,
)
from fairbed.coordinator.algorithms.aggregation.guard import normalised, usable
from fairbed.coordinator.algorithms.aggregation.running_sum import RunningSum, total_of
from fairbed.coordinator.algorithms.aggregation.weighting import Weighting, Weights
from fairbed.coordinator.algorithms.arrays import Vector


class FedAvg:
    """Averages client models.

        w' = w + eta (sum_k p_k w_k - w),   p_k = n_k / n (`weights="n"`), 1 / K or ~ n_k / pi_k

    With eta = 1, parameters and buffers are the plain average, without w; another server learning
    rate changes the parameters only. `Weighting` describes the other weights.

    Source:
        McMahan et al., AISTATS 2017, Algorithm 1 (arXiv:1602.05629).
    """

    needs_loss = False

    def __init__(self, weights: Weights = "n", server_learning_rate: float = 1.0) -> None:
        self._weighting = Weighting(weights)
        self._eta = server_learning_rate

    def begin(
        self, vector: Vector, n_params: int, learning_rate: float, registered: int = 0
    ) -> "Average":
        """Return the empty average of a round in which `vector`, shape (n_values,), was sent."""
        return Average(vector, self._weighting, n_params, self._eta, registered)

    def merge(self, vector: Vector, n_params: int, reports: Reports) -> Merge:
        """Return the next model, shape (n_values,), or the same one if no report is usable."""
        begun = self.begin(vector, n_params, reports.learning_rate, reports.registered)
        return merge_one_by_one(begun, reports)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return self._weighting.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._weighting.load_state(state)


class Average:
    """One round of FedAvg as the fraction sum_k a_k w_k / sum_k a_k, a_k of `Weighting`."""

    def __init__(
        self, sent: Vector, weighting: Weighting, n_params: int, eta: float, registered: int
    ) -> None:
        self._sent, self._registered = sent, registered
        self._weighting = weighting
        self._n_params, self._eta = n_params, eta
        self._sum = RunningSum(sent.size)
        self._rows: list[int] = []
        self._weights: list[float] = []

    def add(self, report: Report) -> None:
        """Add an update to the sum, with weight 0 if it is not usable."""
        self.add_all(Stack.of(report))

    def add_all(self, stack: Stack) -> None:
        """Add updates to the sum; one that is not usable has weight 0."""
        is_usable = usable(self._sent, stack)
        weights, rows = np.zeros(len(stack.rows)), stack.rows[is_usable]
        if rows.size:
            weights[is_usable] = self._weighting.of(rows, stack.n_k[is_usable])
            models = stack.models if is_usable.all() else stack.models[is_usable]
            self._sum.add_all(weights[is_usable], models)
        self._rows += rows.tolist()
        self._weights += weights.tolist()

    def finish(self) -> Merge:
        """Return the next model, shape (n_values,), or the same one if no update was usable."""
        weights = np.array(self._weights)
        if not self._rows:
            return Merge(self._sent.copy(), weights)
        self._weighting.observe(np.array(self._rows, dtype=np.int64), self._registered)
        average = self._sum.divided_by(total_of(weights))
        if self._eta != 1.0:
            params = average[: self._n_params]
            with np.errstate(over="ignore", invalid="ignore"):  # diverged models are sent as such
                params -= self._sent[: self._n_params]
                params *= np.float32(self._eta)
                params += self._sent[: self._n_params]
        return Merge(average, normalised(weights))
