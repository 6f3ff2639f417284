"""What the coordinator receives from the testbed instead of importing it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from coordinator.algorithms.arrays import Vector
from wire.shard import Shard


class ShardSource(Protocol):
    """Training data for devices that bring none of their own."""

    def shard(self, device: str) -> Shard | None:
        """Return the training data of `device`, always the same for the same name.

        None means that there is no shard left for it. Called off the event loop.
        """
        ...


@dataclass(frozen=True, slots=True)
class Score:
    """How a model does on one device's held-out data."""

    n: int
    """Held-out examples."""
    correct: int
    loss_sum: float
    """Nats, summed over the examples."""


class Evaluator(Protocol):
    """Evaluates the global model on every device's held-out data, off the record."""

    def evaluate(self, vector: Vector) -> Mapping[str, Score]:
        """Return the score of each device by name; called off the event loop, may be slow."""
        ...
