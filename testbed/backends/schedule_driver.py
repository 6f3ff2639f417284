"""Has devices follow their followers in real time: one task for the whole fleet.

    while the run lasts:
        sleep until the next tick at which a device changes      an absolute time: no drift
        ask the followers of those devices for their conditions
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

from fairbed.testbed.emulation.condition_log import ConditionLog, ConditionMeans
from fairbed.testbed.emulation.conditions import Conditions
from fairbed.testbed.emulation.schedule import ScheduleFollower

TICK_S = 0.1
"""Changes take effect within this time: 10 Hz."""

STRETCH_S = 1.0
"""A device's conditions are written down at most this often, as means."""

SLICE = 50
"""Devices whose conditions are worked out in one go, some 0.7 ms: the loop is a stopwatch."""

KEPT_TICKS = 36_000
"""Lateness is told of the last hour."""

_ROUNDING = 1e-6
"""Of ticks: a moment so close to a tick is at it."""


class DriverClock(Protocol):
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


class ScheduleDriver:
    """Drives a fleet.

    Args:
        backend: Carries conditions out.
        followers: Of the devices, by name.
        dilation: Seconds of this machine in one second of the fleet.
        start_s: Where on the run's clock this begins; a run that goes on goes on in its traces.
        note: Given what a device was meant to have, at most once in `STRETCH_S` each.
        clock: Monotonic seconds of the fleet.
    """

    def __init__(
        self,
        backend: Driven,
        followers: Mapping[str, ScheduleFollower],
        *,
        dilation: float = 1.0,
        start_s: float = 0.0,
        note: Callable[[str, ConditionMeans], None] | None = None,
        clock: DriverClock | None = None,
    ) -> None:
        self._backend = backend
        self._devices = [_Device(name, follower) for name, follower in followers.items()]
        self._clock = clock or LoopClock()
        self._dilation, self._start_s, self._note = dilation, start_s, note
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
        queue = _TickQueue({tick: self._devices} if self._devices else {})
        try:
            while queue:
                tick = max(tick, queue.next)
                await self._clock.sleep_until(begun + tick * TICK_S)
                present = max(tick, _tick_before(self._clock.now() - begun))
                await self._apply(queue.pop(present), present, queue)
                self._count(present - tick, self._clock.now() - begun - tick * TICK_S)
                tick = present + 1
            await self._clock.sleep_until(math.inf)  # nothing will change any more
        finally:
            self._write_all(self._clock.now() - begun)

    async def _apply(self, due: list["_Device"], tick: int, queue: "_TickQueue") -> None:
        """Bring devices to what they are meant to be, and note when to look again.

        All that concerns one device is done at once, while its numbers are in the caches.
        """
        t, changed = tick * TICK_S, dict[str, Conditions]()
        for number, device in enumerate(due, 1):
            if number % SLICE == 0:
                await checkpoint()
            follower = device.follower
            if follower.needs_load(t):
                follower.used(t, self._backend.cpu_s(device.name))
            wanted = follower.conditions(t)
            if wanted != device.now:
                changed[device.name] = device.now = wanted
                self._write(device, t, wanted)
            look = follower.next_update(t)
            if look < math.inf:
                queue.add(max(math.ceil(look / TICK_S - _ROUNDING), tick + 1), device)
        if changed:
            await self._backend.apply(self._dilated(changed))
            self._changes += len(changed)

    def _dilated(self, conditions: dict[str, Conditions]) -> dict[str, Conditions]:
        k = self._dilation
        if k == 1.0:
            return conditions
        return {name: now.dilated(k) for name, now in conditions.items()}

    def _write(self, device: "_Device", t: float, wanted: Conditions) -> None:
        log = device.log
        if log is None:
            device.log = ConditionLog(t, wanted)
            return
        log.note(t, wanted)
        if t - log.start >= STRETCH_S and (stretch := log.take(t)) is not None:
            self._tell(device.name, stretch)

    def _write_all(self, t: float) -> None:
        for device in self._devices:
            if device.log is not None and (stretch := device.log.take(t)) is not None:
                self._tell(device.name, stretch)

    def _tell(self, name: str, stretch: ConditionMeans) -> None:
        if self._note is not None:
            self._note(name, stretch)

    def _count(self, skipped: int, late_s: float) -> None:
        self._ticks += 1
        self._skipped += skipped
        self._late_s.append(late_s)
        self._late_max_s = max(self._late_max_s, late_s)


def _tick_before(t: float) -> int:
    return math.floor(t / TICK_S + _ROUNDING)


@dataclass(slots=True)
class _Device:
    """One device, and what it was brought to."""

    name: str
    follower: ScheduleFollower
    now: Conditions | None = None
    log: ConditionLog | None = None


class _TickQueue:
    """Which devices are to be looked at, by tick: most of a fleet shares its ticks.

    Args:
        looks: Devices by tick, no list empty.
    """

    def __init__(self, looks: dict[int, list[_Device]]) -> None:
        self._looks = looks
        self._ticks = sorted(looks)

    def __bool__(self) -> bool:
        """Tell whether anything is to come."""
        return bool(self._ticks)

    @property
    def next(self) -> int:
        """The first tick."""
        return self._ticks[0]

    def add(self, tick: int, device: _Device) -> None:
        """Look at a device at a tick."""
        if tick not in self._looks:
            self._looks[tick] = []
            heapq.heappush(self._ticks, tick)
        self._looks[tick].append(device)

    def pop(self, tick: int) -> list[_Device]:
        """Take the devices that are due at a tick or before it."""
        due: list[_Device] = []
        while self._ticks and self._ticks[0] <= tick:
            due += self._looks.pop(heapq.heappop(self._ticks))
        return due
