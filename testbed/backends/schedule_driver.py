"""Applies the schedules of devices in real time, in one task for the whole fleet.

    while the run lasts:
        sleep until the next tick at which a device changes      an absolute time: no drift
        get the conditions of those devices from their followers
        apply all changes by one call of the backend

Ticks are multiples of `TICK_S` since the run began, in seconds of the fleet. The conditions of a
tick are the means of the schedule until the next one, so traces with shorter steps, and steps that
begin between two ticks, keep their volume. A driver that wakes
up late continues with the current tick; it skips and counts missed ticks. The cost of a tick is
proportional to its devices.
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
"""Interval of changes, seconds: 10 Hz."""

RECORD_INTERVAL_S = 1.0
"""Shortest interval between two records of a device's mean conditions, seconds."""

SLICE = 50
"""Devices between two checkpoints, some 0.7 ms: the coordinator times exchanges on this loop."""

KEPT_TICKS = 36_000
"""Ticks of which lateness is kept: one hour."""

_ROUNDING = 1e-6
"""Tolerance in ticks: a time this close to a tick counts as that tick."""


class DriverClock(Protocol):
    """The time source of a driver."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    async def sleep_until(self, instant: float) -> None:
        """Sleep until `instant`."""
        ...


class LoopClock:
    """The clock of the event loop."""

    def now(self) -> float:
        """Monotonic seconds."""
        return anyio.current_time()

    async def sleep_until(self, instant: float) -> None:
        """Sleep until `instant`."""
        await anyio.sleep_until(instant)


class Driven(Protocol):
    """The part of a backend that a driver uses."""

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change the given devices to these conditions in one step."""
        ...

    def cpu_s(self, name: str) -> float | None:
        """Return the processor time of a device since its last start; None if it is not alive."""
        ...


@dataclass(frozen=True, slots=True)
class Punctuality:
    """How late a driver applied changes."""

    ticks: int
    """Ticks at which a device was due."""
    changes: int
    """Changes of one device that the backend applied."""
    skipped: int
    """Ticks that were missed."""
    late_p50_s: float
    """Time from a tick until its changes were applied, over the last hour."""
    late_p99_s: float
    late_max_s: float
    """Maximum over the whole run."""

    def __str__(self) -> str:
        return (
            f"{self.changes} changes at {self.ticks} ticks, {self.skipped} skipped; late by "
            f"{1e3 * self.late_p50_s:.1f} ms p50, {1e3 * self.late_p99_s:.1f} ms p99, "
            f"{1e3 * self.late_max_s:.0f} ms at most"
        )


class ScheduleDriver:
    """Applies the schedules of a fleet through a backend.

    Args:
        backend: Applies conditions.
        followers: Schedule followers of the devices, by name.
        dilation: Seconds of this machine per second of the fleet.
        start_s: The time of the schedules when the driver is made, such as the clock of a run.
        note: Receives the mean conditions of a device, at most once per `RECORD_INTERVAL_S`.
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
        self._devices = [_ScheduledDevice(name, follower) for name, follower in followers.items()]
        self._clock = clock or LoopClock()
        self._dilation, self._start_s, self._note = dilation, start_s, note
        self._begun = self._clock.now() - start_s
        self._late_s: deque[float] = deque(maxlen=KEPT_TICKS)
        self._late_max_s = 0.0
        self._ticks = self._changes = self._skipped = 0

    @property
    def punctuality(self) -> Punctuality:
        """How late changes have been applied so far."""
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
        """Apply schedules until cancelled; then record the last conditions.

        Raises:
            BackendError: The backend cannot apply a condition, or has failed.
        """
        begun, tick = self._begun, _tick_before(self._start_s)
        queue = _TickQueue({tick: self._devices} if self._devices else {})
        try:
            while queue:
                tick = max(tick, queue.next)
                await self._clock.sleep_until(begun + tick * TICK_S)
                present = max(tick, _tick_before(self._clock.now() - begun))
                await self._apply(queue.pop(present), present, queue)
                self._count(present - tick, self._clock.now() - begun - tick * TICK_S)
                tick = present + 1
            await self._clock.sleep_until(math.inf)  # there are no more changes
        finally:
            self._record_all(self._clock.now() - begun)

    async def _apply(self, due: list["_ScheduledDevice"], tick: int, queue: "_TickQueue") -> None:
        """Apply the conditions of due devices, and queue each device for its next update."""
        t, changed = tick * TICK_S, dict[str, Conditions]()
        for number, device in enumerate(due, 1):
            if number % SLICE == 0:
                await checkpoint()
            follower = device.follower
            if follower.needs_cpu_time(t):
                follower.update_heat(t, self._backend.cpu_s(device.name))
            wanted = follower.conditions(t, TICK_S)
            if wanted != device.now:
                changed[device.name] = device.now = wanted
                self._log_conditions(device, t, wanted)
            update_at = follower.next_update(t)
            if update_at < math.inf:
                queue.add(max(_tick_before(update_at), tick + 1), device)
        if changed:
            await self._backend.apply(self._dilated(changed))
            self._changes += len(changed)

    def _dilated(self, conditions: dict[str, Conditions]) -> dict[str, Conditions]:
        k = self._dilation
        if k == 1.0:
            return conditions
        return {name: now.dilated(k) for name, now in conditions.items()}

    def _log_conditions(self, device: "_ScheduledDevice", t: float, wanted: Conditions) -> None:
        log = device.log
        if log is None:
            device.log = ConditionLog(t, wanted)
            return
        log.record(t, wanted)
        if t - log.start >= RECORD_INTERVAL_S and (means := log.take(t)) is not None:
            self._record(device.name, means)

    def _record_all(self, t: float) -> None:
        for device in self._devices:
            if device.log is not None and (means := device.log.take(t)) is not None:
                self._record(device.name, means)

    def _record(self, name: str, means: ConditionMeans) -> None:
        if self._note is not None:
            self._note(name, means)

    def _count(self, skipped: int, late_s: float) -> None:
        self._ticks += 1
        self._skipped += skipped
        self._late_s.append(late_s)
        self._late_max_s = max(self._late_max_s, late_s)


def _tick_before(t: float) -> int:
    return math.floor(t / TICK_S + _ROUNDING)


@dataclass(slots=True)
class _ScheduledDevice:
    """One device, and the conditions that were applied to it."""

    name: str
    follower: ScheduleFollower
    now: Conditions | None = None
    log: ConditionLog | None = None


class _TickQueue:
    """Devices by the tick at which they are due; many devices share a tick.

    Args:
        due: Devices by tick; no list may be empty.
    """

    def __init__(self, due: dict[int, list[_ScheduledDevice]]) -> None:
        self._due = due
        self._ticks = sorted(due)

    def __bool__(self) -> bool:
        """Return whether a device is queued."""
        return bool(self._ticks)

    @property
    def next(self) -> int:
        """The first tick."""
        return self._ticks[0]

    def add(self, tick: int, device: _ScheduledDevice) -> None:
        """Queue a device for a tick."""
        if tick not in self._due:
            self._due[tick] = []
            heapq.heappush(self._ticks, tick)
        self._due[tick].append(device)

    def pop(self, tick: int) -> list[_ScheduledDevice]:
        """Remove and return the devices that are due at a tick or before it."""
        due: list[_ScheduledDevice] = []
        while self._ticks and self._ticks[0] <= tick:
            due += self._due.pop(heapq.heappop(self._ticks))
        return due
