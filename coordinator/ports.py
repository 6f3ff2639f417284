"""Interfaces that the testbed implements for the coordinator, which never imports the testbed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.wire.shard import Shard


class ShardSource(Protocol):
    """Training data for devices that bring none of their own."""

    def shard(self, device: str) -> Shard | None:
        """Return the training data of `device`, always the same for the same name.

        None means that all shards are given out. Called off the event loop.
        """
        ...


@dataclass(frozen=True, slots=True)
class WaitTimes:
    """How long the busy host has kept an emulated device waiting so far, seconds in total."""

    device_s: float
    """The device waited although it had work within its quota."""
    path_s: float
    """The broker waited, or the process that carries the device's bytes to it."""


class HostMonitor(Protocol):
    """Measures contention on the host that emulates devices."""

    def waiting(self, device: str) -> WaitTimes | None:
        """Return how long `device` has waited so far; None where nothing is emulated.

        Called on the event loop, at the dispatch and at the end of each exchange.
        """
        ...


@dataclass(frozen=True, slots=True)
class Score:
    """Result of a model on one device's held-out data."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostServices:
    """The services that the testbed gives to a coordinator."""

    shards: ShardSource
    evaluator: Evaluator | None
    """None evaluates nothing."""
    host_monitor: HostMonitor | None = None
    """None where nothing is emulated."""
