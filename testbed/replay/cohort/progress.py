"""Steps, losses and failures of the devices of a chunk during training."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, Vector
from fairbed.device_agent.trainer import divergence_error
from fairbed.testbed.replay.cohort.base import CohortResult
from fairbed.testbed.replay.cohort.batches import StackedBatch


class Progress:
    """Collects the steps and losses of a chunk, and returns the results of its devices.

    Args:
        steps: Mini-batches of each device, in descending order.
        x_of: Returns the examples of a device, for the message of a failure.
    """

    def __init__(self, steps: Sequence[int], x_of: Callable[[int], Vector | Ints]) -> None:
        self._steps, self._x_of = steps, x_of
        self.last = steps[0]
        """Largest number of steps."""
        self._active = len(steps)
        self._losses = np.zeros((self.last, len(steps)))
        """Mean loss of each mini-batch times its examples, nats."""
        self._counts = np.zeros((self.last, len(steps)), dtype=np.int64)
        self._begun = np.zeros(len(steps), dtype=np.int64)
        """Step at which each device began its last epoch."""

    def active(self, step: int) -> int:
        """Return the number of devices that take step `step` (0 is the first); they come first."""
        while self._active and self._steps[self._active - 1] <= step:
            self._active -= 1
        return self._active

    def record(self, step: int, batch: StackedBatch, loss: Floats) -> None:
        """Record the mean losses of a step, nats, shape (A,)."""
        if batch.begins.size:
            self._begun[batch.begins] = step
        self._counts[step, : len(loss)] = batch.count
        np.multiply(loss, batch.count, out=self._losses[step, : len(loss)])

    @property
    def steps(self) -> Ints:
        """Mini-batches of each device, shape (G,)."""
        return np.array(self._steps, dtype=np.int64)

    def results(
        self,
        chunk: Sequence[int],
        vectors: Vector,
        kept: Mapping[str, Vector],
        returned: Mapping[str, Vector],
        states: Vector | None = None,
    ) -> CohortResult:
        """Return the results of the devices.

        Args:
            chunk: Indices of their jobs.
            vectors: Models after the last steps, shape (G, n_values).
            kept: Vectors of the local rule that stay on the devices, each (G, n_params).
            returned: Vectors of the local rule that go with the updates, each (G, n_params).
            states: States of the optimiser, shape (G, n_state); None if none is kept.
        """
        problems = [""] * len(self._steps)
        is_finite: Bools = np.isfinite(self._losses)
        for i in np.flatnonzero(~np.logical_and.reduce(is_finite)).tolist():
            step = int(np.argmin(is_finite[:, i]))
            loss = self._losses[step, i] / self._counts[step, i]
            problems[i] = str(divergence_error("the loss", loss, step + 1, self._x_of(i)))
        has_finite_values: Bools = np.logical_and.reduce(np.isfinite(vectors), axis=1)
        for i in np.flatnonzero(~has_finite_values).tolist():
            problems[i] = problems[i] or self._not_finite(vectors[i], i)
        loss_sum, seen = self._last_epoch(self._losses), self._last_epoch(self._counts)
        return CohortResult(
            at=np.array(chunk, dtype=np.int64),
            vectors=vectors,
            steps=self.steps,
            loss_train=np.maximum(loss_sum / seen, 0.0),
            problems=tuple(problems),
            kept=kept,
            returned=returned,
            states=states,
        )

    def _not_finite(self, vector: Vector, i: int) -> str:
        value = vector[~np.isfinite(vector)][0]
        return str(divergence_error("every parameter", value, self._steps[i], self._x_of(i)))

    def _last_epoch(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of each device over its last epoch, added step by step."""
        is_in = np.arange(self.last)[:, np.newaxis] >= self._begun
        sums: NDArray[Any] = np.add.accumulate(np.where(is_in, values, 0))[-1]
        return sums
