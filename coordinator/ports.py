"""What the coordinator receives from the testbed instead of importing it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.wire.shard import Shard


class ShardSource(Protocol):
    """Training data for devices that bring none of their own."""

    def shard(self, device: str) -> Shard | None:
        """Return the training data of `device`, always the same for the same name.

        None means that there is no shard left for it. Called off the event loop.
        """
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """For how long the machine that emulates devices has kept others waiting, seconds in all."""

    device_s: float
    """The device, when it had work and was allowed to do it."""
    path_s: float
    """The broker, or what carries the device's bytes to it."""


class HostWatch(Protocol):
    """Watches the machine that emulates devices."""

    def waiting(self, device: str) -> Waiting | None:
        """Return what `device` has suffered so far; None where nothing is emulated.

        Called on the event loop, at the dispatch and at the end of each exchange.
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
