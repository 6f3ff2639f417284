"""What every way to train a cohort takes and gives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, Vector
from fairbed.wire.artifact import TaskSpec
from fairbed.wire.messages import Hyperparameters


@dataclass(frozen=True, slots=True)
class CohortJob:
    """What one device is asked to do in a round."""

    device: int
    """Number of its shard."""
    seed: int
    """Of the order of its mini-batches, as in `wire.messages.Train`."""


@dataclass(frozen=True, slots=True)
class CohortResult:
    """What G devices answer, side by side; columns of shape (G,)."""

    at: Ints
    """Which of the jobs."""
    vectors: Vector
    """`[params | buffers]` after the last step, shape (G, n_values); gone with the next answer."""
    steps: Ints
    """Mini-batches taken."""
    loss_train: Floats
    """Mean loss of the last epoch begun, nats per example; NaN when no step was taken."""
    problems: tuple[str, ...]
    """Why there is no update, in the words of the device; empty where there is one."""

    @property
    def has_failed(self) -> Bools:
        """There is no update."""
        return np.array([bool(problem) for problem in self.problems], dtype=np.bool_)


class Trainer(Protocol):
    """Trains many devices from one model. One call at a time."""

    name: str
    """How it is done, for people."""
    spec: TaskSpec

    def train(
        self, vector: Vector, jobs: Sequence[CohortJob], hyperparameters: Hyperparameters
    ) -> Iterator[CohortResult]:
        """Yield the answers to all jobs, in an order that depends on the jobs alone.

        Every device does what `device_agent.trainer.train` does: the same mini-batches in the
        same order, the same steps.

        Args:
            vector: The global model w_t, shape (n_values,); not changed.
            jobs: Any number, each device at most once.
            hyperparameters: Of the round.
        """
        ...

    def losses(self, vector: Vector, devices: Sequence[int]) -> Floats:
        """Return F_k(w), nats per example, on the training data of each device, shape (K,).

        A loss that is not finite is infinite: no answer of a device may carry it.
        """
        ...

    def close(self) -> None:
        """Let its threads go."""
        ...
