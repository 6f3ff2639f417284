"""What the devices of a chunk have to tell of their training."""

from collections.abc import Sequence

import numpy as np

from coordinator.algorithms.arrays import Bools, Floats, Vector
from device_agent.trainer import diverged
from testbed.replay.cohort.base import Trained
from testbed.replay.cohort.batches import SideBySide


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
        self._loss_sum = np.zeros(len(steps))
        self._seen = np.zeros(len(steps), dtype=np.int64)
        self._problems = [""] * len(steps)

    def active(self, step: int) -> int:
        """Return how many devices take step `step`, 0 for the first: the first so many."""
        while self._active and self._steps[self._active - 1] <= step:
            self._active -= 1
        return self._active

    def note(self, step: int, batch: SideBySide, loss: Floats) -> None:
        """Take note of the mean losses of a step, nats, shape (A,)."""
        loss_sum, seen = self._loss_sum[: len(loss)], self._seen[: len(loss)]
        if batch.begins.size:
            loss_sum[batch.begins] = 0.0
            seen[batch.begins] = 0
        loss_sum += loss * batch.count
        seen += batch.count
        if not np.isfinite(loss).all():
            for i in np.flatnonzero(~np.isfinite(loss)).tolist():
                self._problems[i] = self._problems[i] or str(
                    diverged("the loss", loss[i], step + 1)
                )

    def answers(self, chunk: Sequence[int], vectors: Vector) -> Trained:
        """Return what the devices answer.

        Args:
            chunk: Which jobs they are.
            vectors: After their last steps, shape (G, n_values).
        """
        is_finite: Bools = np.logical_and.reduce(np.isfinite(vectors), axis=1)
        for i in np.flatnonzero(~is_finite).tolist():
            self._problems[i] = self._problems[i] or _not_finite(vectors[i], self._steps[i])
        return Trained(
            at=np.array(chunk, dtype=np.int64),
            vectors=vectors,
            steps=np.array(self._steps, dtype=np.int64),
            loss_train=np.maximum(self._loss_sum / self._seen, 0.0),
            problems=tuple(self._problems),
        )


def _not_finite(vector: Vector, steps: int) -> str:
    return str(diverged("every parameter", vector[~np.isfinite(vector)][0], steps))
