"""What the devices of a chunk have to tell of their training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Vector
from fairbed.device_agent.trainer import divergence_error
from fairbed.testbed.replay.cohort.base import CohortResult
from fairbed.testbed.replay.cohort.batches import SideBySide


class Progress:
    """What the devices of a chunk have to tell in the end.

    Args:
        steps: Mini-batches of each, not ascending.
    """

    def __init__(self, steps: Sequence[int]) -> None:
        self._steps = steps
        self.last = steps[0]
        """Steps of the longest."""
        self._active = len(steps)
        self._losses = np.zeros((self.last, len(steps)))
        """Mean loss of each mini-batch times its examples, nats."""
        self._counts = np.zeros((self.last, len(steps)), dtype=np.int64)
        self._begun = np.zeros(len(steps), dtype=np.int64)
        """Step with which each began its last epoch."""

    def active(self, step: int) -> int:
        """Return how many devices take step `step`, 0 for the first: the first so many."""
        while self._active and self._steps[self._active - 1] <= step:
            self._active -= 1
        return self._active

    def note(self, step: int, batch: SideBySide, loss: Floats) -> None:
        """Take note of the mean losses of a step, nats, shape (A,)."""
        if batch.begins.size:
            self._begun[batch.begins] = step
        self._counts[step, : len(loss)] = batch.count
        np.multiply(loss, batch.count, out=self._losses[step, : len(loss)])

    def answers(self, chunk: Sequence[int], vectors: Vector) -> CohortResult:
        """Return what the devices answer.

        Args:
            chunk: Which jobs they are.
            vectors: After their last steps, shape (G, n_values).
        """
        problems = [""] * len(self._steps)
        is_finite: Bools = np.isfinite(self._losses)
        for i in np.flatnonzero(~np.logical_and.reduce(is_finite)).tolist():
            step = int(np.argmin(is_finite[:, i]))
            loss = self._losses[step, i] / self._counts[step, i]
            problems[i] = str(divergence_error("the loss", loss, step + 1))
        is_sound: Bools = np.logical_and.reduce(np.isfinite(vectors), axis=1)
        for i in np.flatnonzero(~is_sound).tolist():
            problems[i] = problems[i] or _not_finite(vectors[i], self._steps[i])
        loss_sum, seen = self._last_epoch(self._losses), self._last_epoch(self._counts)
        return CohortResult(
            at=np.array(chunk, dtype=np.int64),
            vectors=vectors,
            steps=np.array(self._steps, dtype=np.int64),
            loss_train=np.maximum(loss_sum / seen, 0.0),
            problems=tuple(problems),
        )

    def _last_epoch(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of each device over its last epoch, added up step by step."""
        is_in = np.arange(self.last)[:, np.newaxis] >= self._begun
        sums: NDArray[Any] = np.add.accumulate(np.where(is_in, values, 0))[-1]
        return sums


def _not_finite(vector: Vector, steps: int) -> str:
    return str(divergence_error("every parameter", vector[~np.isfinite(vector)][0], steps))
