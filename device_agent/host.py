"""The one seam between the agent and the machine it runs on.

A real device uses `real_host()`; the testbed's launcher passes another host to emulate a
device inside a process. No other module of the agent knows the difference.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

Section: TypeAlias = Literal["decode", "load", "evaluate", "train", "encode"]


class Clock(Protocol):
    """The agent's clock."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...


class Meter(Protocol):
    """Handed out by a compute section."""

    def step(self, n_examples: int) -> None:
        """Called after each unit of work (a mini-batch); an emulated host sleeps here."""
        ...

    def read(self, n_bytes: int) -> None:
        """Called after reading `n_bytes` from storage; an emulated host sleeps here."""
        ...


class Pace(Protocol):
    """Lets the host slow compute sections down. Sections run in the training thread only."""

    def section(self, name: Section) -> AbstractContextManager[Meter]:
        """Enter a compute section: no credit from before, none left afterwards."""
        ...


class Sensors(Protocol):
    """Measurements of the machine; a reader returns None instead of raising."""

    def cores(self) -> int:
        """Cores of the device that this agent may use: affinity and cgroup quota counted."""
        ...

    def free_cores(self) -> float:
        """Cores that are idle or used by this agent, averaged over the last seconds."""
        ...

    def clock_ratio(self) -> float | None:
        """Current clock / nominal clock."""
        ...

    def throttled(self) -> tuple[str, ...] | None:
        """Causes that throttle the processor, a word each."""
        ...

    def memory_bytes(self) -> int:
        """Memory that this agent may use: cgroup limit counted."""
        ...

    def temperature_celsius(self) -> float | None:
        """Of the processor."""
        ...

    def board(self) -> str:
        """Board name, or an empty string."""
        ...

    def is_willing(self) -> bool:
        """The owner lets this device take part in rounds now."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """Clock, pace and sensors of one device."""

    clock: Clock
    pace: Pace
    sensors: Sensors


class FreePace:
    """A pace that slows nothing: the machine is as fast as it is."""

    @contextmanager
    def section(self, name: Section) -> Iterator[Meter]:
        """Enter a compute section."""
        yield _FreeMeter()


class _FreeMeter:
    def step(self, n_examples: int) -> None:
        pass

    def read(self, n_bytes: int) -> None:
        pass
