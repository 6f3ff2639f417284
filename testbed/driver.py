"""Has devices follow their courses in real time: one task for the whole fleet.

    while the run lasts:
        sleep until the next tick at which a device changes      an absolute time: no drift
        ask the courses of those devices for their conditions
        hand all that differ to the backend, in one go

Ticks are multiples of `TICK_S` since the run began, in seconds of the fleet. Whoever wakes up late
goes on with the present tick: what was missed is skipped and counted, never caught up. A tick
costs what its devices cost.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import anyio
from anyio.lowlevel import checkpoint

from testbed.emulation.conditions import Conditions
from testbed.emulation.course import Course
from testbed.emulation.stretch import Stretch, StretchLog

TICK_S = 0.1
"""Changes take effect within this time: 10 Hz."""

STRETCH_S = 1.0
"""A device's conditions are written down at most this often, as means."""

SLICE = 16
"""Devices whose conditions are worked out in one go, some 0.3 ms: the loop is a stopwatch."""

KEPT_TICKS = 36_000
"""Lateness is told of the last hour."""

_ROUNDING = 1e-6
"""Of ticks: a moment so close to a tick is at it."""


class Clock(Protocol):
    """What a driver lives by."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    async def sleep_until(self, instant: float) -> None:
        """Return at `instant` or later."""
        ...


class LoopClock:
    """The clock of the event loop."""

    def now(self) -> float:
        """Monotonic seconds."""
        return anyio.current_time()

    async def sleep_until(self, instant: float) -> None:
        """Return at `instant` or later."""
        await anyio.sleep_until(instant)


class Driven(Protocol):
    """What a driver needs of a backend."""

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change devices to these conditions, all of them in one go."""
        ...

    def cpu_s(self, name: str) -> float | None:
        """Return the processor time of a device in this life; None if it is not alive."""
        ...


@dataclass(frozen=True, slots=True)
class Punctuality:
    """How well a driver kept its times."""

    ticks: int
    """At which something was due."""
    changes: int
    """Conditions that were handed to the backend."""
    skipped: int
    """Ticks that were over before they were dealt with."""
    late_p50_s: float
    """From the tick to the moment that its changes held, over the last hour."""
    late_p99_s: float
    late_max_s: float
    """Ever."""

    def __str__(self) -> str:
        return (
            f"{self.changes} changes at {self.ticks} ticks, {self.skipped} skipped; late by "
            f"{1e3 * self.late_p50_s:.1f} ms p50, {1e3 * self.late_p99_s:.1f} ms p99, "
            f"{1e3 * self.late_max_s:.0f} ms at most"
        )


class Driver:
    """Drives a fleet.

    Args:
        backend: Carries conditions out.
        courses: Of the devices, by name.
        dilation: Seconds of this machine in one second of the fleet.
        start_s: Where on the run's clock this begins; a run that goes on goes on in its traces.
        note: Given what a device was meant to have, at most once in `STRETCH_S` each.
        clock: Monotonic seconds of the fleet.
    """

    def __init__(
        self,
        backend: Driven,
        courses: Mapping[str, Course],
        *,
        dilation: float = 1.0,
        start_s: float = 0.0,
        note: Callable[[str, Stretch], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._backend, self._courses = backend, courses
        self._clock = clock or LoopClock()
        self._dilation, self._start_s, self._note = dilation, start_s, note
        self._applied: dict[str, Conditions] = {}
        self._logs: dict[str, StretchLog] = {}
        self._late_s: deque[float] = deque(maxlen=KEPT_TICKS)
        self._late_max_s = 0.0
        self._ticks = self._changes = self._skipped = 0

    @property
    def punctuality(self) -> Punctuality:
        """How well it kept its times so far."""
        ordered = sorted(self._late_s) or [0.0]
        return Punctuality(
            ticks=self._ticks,
            changes=self._changes,
            skipped=self._skipped,
            late_p50_s=ordered[math.ceil(0.5 * len(ordered)) - 1],
            late_p99_s=ordered[math.ceil(0.99 * len(ordered)) - 1],
            late_max_s=self._late_max_s,
        )

    async def run(self) -> None:
        """Drive until cancelled; then write down what held at last.

        Raises:
            BackendError: A condition cannot be had, or the backend is broken.
        """
        begun = self._clock.now() - self._start_s
        tick = _tick_before(self._start_s)
        looks: list[tuple[int, str]] = [(tick, name) for name in self._courses]
        try:
            while looks:
                tick = max(tick, looks[0][0])
                await self._clock.sleep_until(begun + tick * TICK_S)
                present = max(tick, _tick_before(self._clock.now() - begun))
                due = _pop(looks, present)
                await self._apply(due, present * TICK_S)
                self._count(present - tick, self._clock.now() - begun - tick * TICK_S)
                for name in due:
                    look = self._courses[name].next_look(present * TICK_S)
                    if look < math.inf:
                        at = math.ceil(look / TICK_S - _ROUNDING)
                        heapq.heappush(looks, (max(at, present + 1), name))
                tick = present + 1
            await self._clock.sleep_until(math.inf)  # nothing will change any more
        finally:
            self._write_all(self._clock.now() - begun)

    async def _apply(self, due: list[str], t: float) -> None:
        changed: dict[str, Conditions] = {}
        for number, name in enumerate(due, 1):
            if number % SLICE == 0:
                await checkpoint()
            course = self._courses[name]
            if course.asks_load(t):
                course.used(t, self._backend.cpu_s(name))
            wanted = course.conditions(t)
            if wanted != self._applied.get(name):
                changed[name] = wanted
        if changed:
            k = self._dilation
            await self._backend.apply({name: now.dilated(k) for name, now in changed.items()})
            self._applied.update(changed)
            self._changes += len(changed)
        for name, wanted in changed.items():
            self._write(name, t, wanted)

    def _write(self, name: str, t: float, wanted: Conditions) -> None:
        if name not in self._logs:
            self._logs[name] = StretchLog(t, wanted)
            return
        log = self._logs[name]
        log.note(t, wanted)
        if t - log.start >= STRETCH_S and (stretch := log.take(t)) is not None:
            self._tell(name, stretch)

    def _write_all(self, t: float) -> None:
        for name, log in self._logs.items():
            if (stretch := log.take(t)) is not None:
                self._tell(name, stretch)

    def _tell(self, name: str, stretch: Stretch) -> None:
        if self._note is not None:
            self._note(name, stretch)

    def _count(self, skipped: int, late_s: float) -> None:
        self._ticks += 1
        self._skipped += skipped
        self._late_s.append(late_s)
        self._late_max_s = max(self._late_max_s, late_s)


def _tick_before(t: float) -> int:
    return math.floor(t / TICK_S + _ROUNDING)


def _pop(looks: list[tuple[int, str]], tick: int) -> list[str]:
    """Take the devices that are due at a tick or before it off a heap."""
    due = []
    while looks and looks[0][0] <= tick:
        due.append(heapq.heappop(looks)[1])
    return due
