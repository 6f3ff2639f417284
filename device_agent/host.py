"""The interface between the agent and its machine: clock, pace, sensors and behaviour.

A real device uses `real_host()`. The testbed passes another host to emulate a device inside a
process; all other modules of the agent are the same in both cases.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from fairbed.wire.messages import FromDevice

if TYPE_CHECKING:  # an agent without a task has no numpy
    import numpy as np
    from numpy.typing import NDArray

    from fairbed.device_agent.privacy import Normals

Section: TypeAlias = Literal["decode", "load", "evaluate", "train", "encode"]


class Clock(Protocol):
    """The agent's clock."""

    def now(self) -> float:
        """Return monotonic seconds."""
        ...


class Meter(Protocol):
    """Counts the work of a compute section."""

    def step(self, n_examples: int, length: int | None = None) -> None:
        """Count one unit of work (a mini-batch); an emulated host sleeps here.

        Args:
            n_examples: Examples that were computed at once.
            length: Their padded length, for a task with buckets (`wire.buckets`).
        """
        ...

    def read(self, n_bytes: int) -> None:
        """Count `n_bytes` read from storage; an emulated host sleeps here."""
        ...


class Pace(Protocol):
    """Speed limit of compute sections, which run in the training thread only."""

    def section(self, name: Section) -> AbstractContextManager[Meter]:
        """Enter a compute section; no processor credit is carried from one section to another."""
        ...


class Sensors(Protocol):
    """Measurements of the machine; a reader returns None instead of raising."""

    def cores(self) -> int:
        """Return the cores that this agent may use, by affinity and cgroup quota."""
        ...

    def free_cores(self) -> float:
        """Return the cores that are idle or used by this agent, averaged over some seconds."""
        ...

    def clock_ratio(self) -> float | None:
        """Return current clock / nominal clock."""
        ...

    def throttled(self) -> tuple[str, ...] | None:
        """Return the causes of processor throttling, one word each."""
        ...

    def memory_bytes(self) -> int:
        """Return the memory that this agent may use, by machine and cgroup limit."""
        ...

    def temperature_celsius(self) -> float | None:
        """Return the temperature of the processor."""
        ...

    def board(self) -> str:
        """Return the board name, or an empty string."""
        ...

    def is_willing(self) -> bool:
        """Return whether the owner lets this device take part in rounds now."""
        ...


class Behaviour(Protocol):
    """What a device sends of its results; a real device is `Honest`.

    No message and no key of the configuration selects another behaviour.
    """

    def update(
        self,
        sent: "NDArray[np.float32]",
        trained: "NDArray[np.float32]",
        n_params: int,
        seed: int,
    ) -> "NDArray[np.float32]":
        """Return the model to send, shape (n_values,).

        Args:
            sent: The model of the round, shape (n_values,); not changed.
            trained: The model after local training, shape (n_values,); not changed.
            n_params: Number of parameters; the other values are buffers.
            seed: Seed of this training (`wire.messages.Train`).
        """
        ...

    def message(self, message: FromDevice) -> FromDevice:
        """Return the message to send."""
        ...


class EnergyMeter(Protocol):
    """Measures the energy of the whole device in the phases of a round."""

    async def run(self) -> None:
        """Read the sensor while a round is on, until cancelled."""
        ...

    def begin(self, started_s: float) -> None:
        """Begin the first phase of a round, which began at this instant of the clock."""
        ...

    def lap(self, phase: str, duration_s: float) -> float | None:
        """End a phase; return its energy in joules, None if it is unknown. Any thread calls it."""
        ...

    def range_j(self, joules: Mapping[str, float]) -> tuple[float, float] | None:
        """Return the least and the greatest sum of the energy of phases, joules.

        None if the energy has no such interval.
        """
        ...

    def end(self) -> None:
        """End the round."""
        ...


class Honest:
    """Sends every result as it is."""

    def update(
        self,
        sent: "NDArray[np.float32]",
        trained: "NDArray[np.float32]",
        n_params: int,
        seed: int,
    ) -> "NDArray[np.float32]":
        """Return the model after local training."""
        return trained

    def message(self, message: FromDevice) -> FromDevice:
        """Return the message."""
        return message


class NoiseSource(Protocol):
    """Draws the noise of `device_agent.privacy`."""

    def stream(self, seed: int) -> "Normals":
        """Return the source of the noise of one update.

        Args:
            seed: Seed of this training (`wire.messages.Train`), for noise that must repeat.
        """
        ...


class SecureNoise:
    """Noise from the random numbers of the operating system; that of every real device.

    Each number is drawn from it, not only a seed. Some values of an update are known to be 0, such
    as the weights of pixels that are always black: there the receiver sees the noise itself. The
    generators of numpy can be continued from what they returned, so it could then subtract the
    noise from all other values.
    """

    def stream(self, seed: int) -> "Normals":
        """Return the source of the noise of one update; the seed is not used."""
        from fairbed.device_agent.privacy import secure_normals

        return secure_normals


class ClientPlace(Protocol):
    """Where the process of a client runs, and how fast (`device_agent.clients`)."""

    address: str | None
    """Socket of a server of clients that devices share; None: the agent starts its own."""
    groups: tuple[str, ...]
    """`cgroup.procs` files of the control groups that it joins; empty: it is in those already."""
    network: str | None
    """File of the network namespace that it enters; None: it is there already."""

    dilation: float
    """Seconds of this machine in a second of the device."""

    def imported(self, cpu_s: float) -> None:
        """Wait as long as this device needs for imports that a shared server has done.

        Args:
            cpu_s: Their processor time, seconds.
        """
        ...

    def running(self, pid: int) -> AbstractContextManager[None]:
        """Limit a client and its descendants to the speed of this device while it works."""
        ...


class OwnProcess:
    """The place of clients on a real machine: a server of its own, inside the agent's limits."""

    address: str | None = None
    groups: tuple[str, ...] = ()
    network: str | None = None
    dilation: float = 1.0

    def imported(self, cpu_s: float) -> None:
        """Return at once: the import itself took its time."""

    def running(self, pid: int) -> AbstractContextManager[None]:
        """Limit nothing."""
        return nullcontext()


@dataclass(frozen=True, slots=True)
class Host:
    """Clock, pace, sensors, behaviour and noise of one device."""

    clock: Clock
    pace: Pace
    sensors: Sensors
    behaviour: Behaviour = field(default_factory=Honest)
    energy: EnergyMeter | None = None
    """None if its power is unknown."""
    noise: NoiseSource = field(default_factory=SecureNoise)
    clients: ClientPlace = field(default_factory=OwnProcess)


class UnlimitedPace:
    """The pace of a real machine: no speed limit."""

    @contextmanager
    def section(self, name: Section) -> Iterator[Meter]:
        """Enter a compute section."""
        yield _NullMeter()


class _NullMeter:
    def step(self, n_examples: int, length: int | None = None) -> None:
        pass

    def read(self, n_bytes: int) -> None:
        pass
