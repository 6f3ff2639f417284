"""Interfaces that the testbed implements for the coordinator, which never imports the testbed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.wire.evaluation import ClassCounts, Quality, Scores, Spread, Targets
from fairbed.wire.messages import OperatorAnswer, OperatorCommand
from fairbed.wire.shard import Shard

if TYPE_CHECKING:
    from fairbed.coordinator.store.tables import ExchangeRow, MetricRow


class ShardSource(Protocol):
    """Training data for devices without data of their own."""

    def shard(self, device: str) -> Shard | None:
        """Return the training data of `device`, always the same for the same name.

        None: all shards are assigned. Called off the event loop.
        """
        ...


class Places(Protocol):
    """Numbers of devices, for a client that divides data itself."""

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def number(self, device: str) -> int | None:
        """Return the number of `device` from 0, always the same for the same name.

        None: all are taken. Called off the event loop.
        """
        ...


class RunWatcher(Protocol):
    """Examines a live run for people, and changes nothing of it; called on the event loop."""

    def set_link(self, down_reason: str | None) -> None:
        """Note whether the link to the broker is up (None), or why it is down."""
        ...

    def begin_training(self) -> None:
        """Note that the devices of round 1 are ready: from here on a device is expected."""
        ...

    def close_round(
        self, round_id: int, exchanges: "Sequence[ExchangeRow]", rounds_empty: int
    ) -> None:
        """Examine what a round shows: its exchanges, and earlier ones that ended in it."""
        ...

    def evaluate(self, metric: "MetricRow") -> None:
        """Examine an evaluation of the global model."""
        ...

    async def run(self) -> None:
        """Examine what lies between rounds until cancelled."""
        ...

    def close(self) -> None:
        """End what is over as the run ends."""
        ...


class HostMonitor(Protocol):
    """Measures contention on the host that emulates devices; called on the event loop."""

    def waited_s(self, device: str) -> float | None:
        """Return how long `device` has waited so far although it had work and quota left.

        None: the device is not emulated.
        """
        ...

    def counted(self, device: str) -> Mapping[str, float]:
        """Return what was counted of `device` so far, by column of the exchange (`Source.HOST`).

        A number grows while the device runs; a column that is not measured is absent. An exchange
        during which the count began anew has no number.
        """
        ...

    def path_delay_s(self, device: str, spans: Sequence[tuple[float, float]]) -> float:
        """Return by how much the path can have delayed the bytes of `device`, seconds.

        The path is the broker and the process that relays the device's bytes to it. `spans` are
        start and end of each of its transfers, on the coordinator's clock.
        """
        ...

    def network_delay_s(self, device: str, spans: Sequence[tuple[float, float]]) -> float:
        """Return by how much the network to its host can have delayed the bytes of `device`.

        Seconds; 0 where the host is this machine. `spans` are as in `path_delay_s`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Predictions:
    """Targets and scores of examples (`wire.evaluation`), each of shape (n,)."""

    y: Targets
    scores: Scores


@dataclass(frozen=True, slots=True)
class Score:
    """Evaluation of a model on one device's held-out data."""

    n: int
    """Held-out examples."""
    quality: Quality
    """What the task measures."""
    loss_sum: float
    """Mean loss, times the positions of the examples."""
    bytes_down: int | None = None
    """Bytes of the model that the device downloaded to evaluate it; None if the coordinator
    evaluated it."""
    metrics: Mapping[str, float] = field(default_factory=dict, compare=False)
    """What the client of the device measured, by its own names."""
    predictions: Predictions | None = field(default=None, compare=False, repr=False)
    """Of the examples; None if the device evaluated it, and for three classes or more."""
    class_counts: ClassCounts | None = field(default=None, compare=False, repr=False)
    """Of classes at positions; None if the device evaluated it, and for other tasks."""
    spread: Spread | None = field(default=None, compare=False, repr=False)
    """Of the targets of regression at positions; None if the device evaluated it, and for others.
    """
    has_own_loss: bool = False
    """The loss is not that of the task: error and perplexity do not follow from it."""
    is_in_loss: bool = True
    """An example has a weight in the loss; else the loss is undefined, which is no divergence."""

    @property
    def positions(self) -> int:
        """Positions that have a target: the examples, if each has one."""
        return self.n if self.quality.positions is None else self.quality.positions

    @property
    def correct(self) -> int:
        """Positions that are classified correctly; 0 for regression."""
        return self.quality.correct or 0


class Evaluator(Protocol):
    """Evaluates the global model on every device's held-out data, outside all measured times."""

    def evaluate(self, vector: Vector) -> Mapping[str, Score]:
        """Return the score of each device by name. Called off the event loop; may be slow."""
        ...

    def test(self, vector: Vector) -> Score:
        """Return the score on the held-out examples of all shards, also of those without a device.

        Called off the event loop; may be slow.
        """
        ...


class CommandRefusedError(Exception):
    """A command of an operator cannot be executed; the message is one line."""


class DeviceControl(Protocol):
    """Changes emulated devices while they run."""

    async def execute(self, command: OperatorCommand) -> str:
        """Execute a throttle, profile, link or fault; return what was done, in one line.

        Raises:
            CommandRefusedError: The device is not emulated, or its backend cannot do it.
        """
        ...


Audit: TypeAlias = Callable[[OperatorCommand, str, OperatorAnswer], None]
"""Notes a command, its operator and the answer outside of the run."""


TaskKeyOf: TypeAlias = Callable[[str], str | None]
"""Returns the task key of a device by its name (`wire.signature`); None if it has none. Raises
LookupError if that is not known now. Called off the event loop."""


def no_task_key(device: str) -> None:
    """Return no key: no device of the run has one."""


EarlierNames: TypeAlias = Callable[[str], Sequence[str]]
"""Returns the names that a device had before, which no other device has now. Called off the event
loop."""


def no_earlier_names(device: str) -> Sequence[str]:
    """Return no names: nothing renames devices."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostServices:
    """Services that the testbed provides to a coordinator."""

    shards: ShardSource | None
    """None: devices get no data, as the client of the run has its own."""
    evaluator: Evaluator | None
    """None: no evaluation."""
    places: Places | None = None
    """Numbers of the devices; None: the task needs none."""
    host_monitor: HostMonitor | None = None
    """None: no device is emulated."""
    audit: Audit = lambda command, operator, answer: None
    on_watch: Callable[[], None] = lambda: None
    """Called when a viewer on another machine asks for rows of the store."""
    on_flood: Callable[[str], None] = lambda device: None
    """Called with the name of a device that sends far more than its limits allow."""
    task_key_of: TaskKeyOf = no_task_key
    """Keys of the devices that take signed messages only."""
    earlier_names: EarlierNames = no_earlier_names
    """Former names of a renamed device."""
    devices: DeviceControl | None = None
    """None: no device is emulated."""
