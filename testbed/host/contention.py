"""Measure contention: the time for which this busy machine keeps emulated devices waiting.

A device that waits for a processor is slower than its profile. So is a device whose bytes wait in
a broker, relay or proxy that waits for a processor. The first time is read from the device. The
second follows from a timeline of the processes on its path, for a span of time in which its bytes
were on their way:

    period k    consecutive readings between which a process never idled: it was behind, and waited
                for w_k seconds in all
    delay       sum of max(0, w_k - QUEUE_S) + max of min(w_k, QUEUE_S) / 2     over the periods

A process that idles has forwarded all that it had received. So waits do not add up: meanwhile the
link, which sends at its rate, continues from its queue of `QUEUE_S`, and is idle only during the
rest of a longer wait. Besides, the last bytes of a transfer arrive late, by half a wait on average
if they arrive at a random instant of it.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fairbed.testbed.emulation.link import QUEUE_S

PERIOD_S = 0.01
"""Time between two readings of the path, seconds."""

READING_S = 2e-3
"""A reading is reused for this long: the devices of a cohort report at the same time."""

REFRESH_S = 1.0
"""A broker that was started again is read after this time at the latest, seconds."""

BUSY_RATIO = 0.9
"""A process that ran or waited for this share of the time between two readings was behind."""

MIN_WAIT_S = 0.5e-3
"""Shorter waits between two readings are not kept."""

KEPT_PERIODS = 20_000
"""Periods that are kept for each process at least: those of the last 200 s, or of a longer time."""

SHORT_S = 20e-6
"""Wait at a wake-up that is not counted. A relay wakes up for every packet: 1,500 waits of 28 us
per second were 4 % of the time, but delayed no packet by more than 28 us."""

_NS = 1e-9


@dataclass(frozen=True, slots=True)
class SchedulerWaits:
    """Time that the threads of a process waited for a processor, and how often they ran."""

    seconds: float = 0.0
    count: int = 0
    ran_s: float = 0.0
    """Time that they ran."""

    @property
    def long_s(self) -> float:
        """Time of the waits without `SHORT_S` each."""
        return max(0.0, self.seconds - SHORT_S * self.count)

    def since(self, before: "SchedulerWaits") -> "SchedulerWaits":
        """Return the waits since an earlier reading."""
        return SchedulerWaits(
            self.seconds - before.seconds, self.count - before.count, self.ran_s - before.ran_s
        )


def waits(pid: int) -> SchedulerWaits:
    """Return the waits of the threads of a process; zero if the system does not count them."""
    total_ns, count, ran_total_ns = 0, 0, 0
    folder = f"/proc/{pid}/task"
    try:
        threads = os.listdir(folder)  # much quicker than `Path.glob`, 100 times a second
    except OSError:  # the process has ended
        return SchedulerWaits()
    for thread in threads:
        try:
            with open(f"{folder}/{thread}/schedstat", "rb", buffering=0) as file:
                ran_ns, waited_ns, runs = map(int, file.read(64).split())
        except (OSError, ValueError):  # the thread has ended
            continue
        total_ns, count, ran_total_ns = total_ns + waited_ns, count + runs, ran_total_ns + ran_ns
    return SchedulerWaits(total_ns * _NS, count, ran_total_ns * _NS)


class WaitCounter:
    """Sums the time for which processes waited for a processor, less `SHORT_S` per wait.

    Args:
        read: Returns the total waits of a process.
    """

    def __init__(self, read: Callable[[int], SchedulerWaits] = waits) -> None:
        self._read = read
        self._before: dict[int, SchedulerWaits] = {}
        self.seconds = 0.0

    def update(self, pids: Iterable[int]) -> None:
        """Add the waits of these processes since the last update."""
        now = {pid: self._read(pid) for pid in pids}
        for pid, found in now.items():
            self.seconds += found.since(self._before.get(pid, found)).long_s
        self._before = now


class WaitTimeline:
    """When a process waited for a processor, and for how long. Pure: instants are arguments.

    A period lasts from one reading to another, and goes on while the process is behind.
    """

    def __init__(self) -> None:
        self._last: tuple[float, SchedulerWaits] | None = None
        self._periods = np.full((3, KEPT_PERIODS * 5 // 4), 0.0)  # resident from the start
        """Start, end and wait of each period, seconds, in order of time. The newest ones move to
        the front when it is full. As objects they took some MB for each process."""
        self._count = 0
        self._is_behind = False
        """At the end of the newest period the process was behind, so that it may go on."""

    def add(self, now: float, found: SchedulerWaits) -> None:
        """Add a reading of all waits so far, at the instant `now`; the first is the reference."""
        last, self._last = self._last, (now, found)
        if last is None or now <= last[0]:
            return
        before, step = last[0], found.since(last[1])
        busy_s = step.ran_s + step.seconds
        is_behind = busy_s >= BUSY_RATIO * (now - before)
        newest = self._periods[:, self._count - 1]
        if is_behind and self._is_behind and newest[1] >= before:
            newest[1:] = now, newest[2] + step.long_s
        elif is_behind or step.long_s >= MIN_WAIT_S:
            # a wait is counted when it ends, so it may have begun before the last reading
            self._append(min(before, now - busy_s), now, step.long_s)
            self._is_behind = is_behind

    def add_wait(self, start: float, end: float) -> None:
        """Add a wait between two instants; one with the same start goes on until the new end."""
        newest = self._periods[:, self._count - 1]
        if self._count and newest[0] == start:
            newest[1:] = end, end - start
        elif end - start >= MIN_WAIT_S:
            self._append(start, end, end - start)
            self._is_behind = False

    def delay_s(self, start: float, end: float) -> float:
        """Return by how much waits between two instants delayed a transfer, seconds."""
        first = np.searchsorted(self._periods[1, : self._count], start, side="right")
        starts, ends, waits_s = self._periods[:, first : self._count]
        overlaps_s = np.minimum(ends, end) - np.maximum(starts, start)
        waited_s = np.maximum(0.0, np.minimum(waits_s, overlaps_s))
        idle_s = np.maximum(0.0, waited_s - QUEUE_S).sum()
        return float(idle_s + min(waited_s.max(initial=0.0), QUEUE_S) / 2.0)

    def _append(self, start: float, end: float, waited_s: float) -> None:
        if self._count == self._periods.shape[1]:
            self._periods[:, :KEPT_PERIODS] = self._periods[:, -KEPT_PERIODS:]
            self._count = KEPT_PERIODS
        self._periods[:, self._count] = start, end, waited_s
        self._count += 1


class RemotePaths(Protocol):
    """Delays of devices on other hosts; instants are those of `time.perf_counter`."""

    def host_delay_s(self, name: str, start: float, end: float) -> float:
        """Return by how much processes of its host delayed a device's bytes, seconds."""
        ...

    def network_delay_s(self, name: str, start: float, end: float) -> float:
        """Return by how much the network to its host delayed a device's bytes, seconds."""
        ...


class ContentionMonitor:
    """Measures the waits of emulated devices; satisfies `coordinator.ports.HostMonitor`.

    Args:
        emulated: Names of the devices that have a profile.
        contended_s: Returns the total time that a device was kept waiting, seconds; None: unknown.
        path: Returns the processes that relay the bytes of a device: the broker, its proxy.
        dilation: Seconds of this machine in one second of the fleet.
        counted: Returns what was counted of a device so far, by column of the exchange.
        remote: Delays beyond this machine; None if all devices run on it.
        now: Monotonic clock of this machine, seconds.
        read: Returns the waits of a process.
    """

    def __init__(
        self,
        emulated: Collection[str],
        contended_s: Callable[[str], float | None],
        path: Callable[[str], Iterable[int]],
        *,
        dilation: float = 1.0,
        counted: Callable[[str], Mapping[str, float]] = lambda _: {},
        remote: RemotePaths | None = None,
        now: Callable[[], float] = time.perf_counter,
        read: Callable[[int], SchedulerWaits] = waits,
    ) -> None:
        self._emulated, self._contended_s, self._path = frozenset(emulated), contended_s, path
        self._counted, self._remote = counted, remote
        self._dilation, self._now, self._read = dilation, now, read
        self._pids: frozenset[int] = frozenset()
        self._read_at = self._refreshed_at = -math.inf
        self._timelines: dict[int, WaitTimeline] = {}
        self._lock = threading.Lock()
        """Of the timelines: a thread adds to them."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read the processes on the path while the context lasts, in a thread."""
        is_over = threading.Event()
        thread = threading.Thread(
            target=self._read_until, args=(is_over,), name="testbed.contention", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def waited_s(self, device: str) -> float | None:
        """Return how long `device` has waited to compute; None if it is not emulated."""
        if device not in self._emulated:
            return None
        return (self._contended_s(device) or 0.0) / self._dilation

    def counted(self, device: str) -> Mapping[str, float]:
        """Return what was counted of a device so far, times in seconds of the fleet."""
        counted = self._counted(device)
        return {k: n / self._dilation if k.endswith("_s") else n for k, n in counted.items()}

    def path_delay_s(self, device: str, spans: Sequence[tuple[float, float]]) -> float:
        """Return by how much waits on its path can have delayed the bytes of a device.

        Args:
            device: Its name.
            spans: Start and end of each of its transfers, on the fleet's clock.
        """
        self.read_path()
        scale, delay_s = self._dilation, 0.0
        with self._lock:
            for pid in set(self._path(device)) & self._timelines.keys():
                timeline = self._timelines[pid]
                delay_s += sum(timeline.delay_s(scale * a, scale * b) for a, b in spans)
        if self._remote is not None:
            delay_s += sum(
                self._remote.host_delay_s(device, scale * a, scale * b) for a, b in spans
            )
        return delay_s / scale

    def network_delay_s(self, device: str, spans: Sequence[tuple[float, float]]) -> float:
        """Return by how much the network to its host can have delayed the bytes of a device.

        Args:
            device: Its name.
            spans: Start and end of each of its transfers, on the fleet's clock.
        """
        if self._remote is None:
            return 0.0
        scale = self._dilation
        delays_s = (self._remote.network_delay_s(device, scale * a, scale * b) for a, b in spans)
        return sum(delays_s) / scale

    def read_path(self) -> None:
        """Read the processes on the paths of all devices."""
        with self._lock:
            now = self._now()
            if now - self._read_at < READING_S:
                return
            self._read_at = now
            if now - self._refreshed_at >= REFRESH_S:
                self._pids = frozenset(pid for name in self._emulated for pid in self._path(name))
                self._refreshed_at = now
                for pid in self._timelines.keys() - self._pids:
                    del self._timelines[pid]
            for pid in self._pids:
                if pid not in self._timelines:
                    self._timelines[pid] = WaitTimeline()
                self._timelines[pid].add(self._now(), self._read(pid))

    def _read_until(self, is_over: threading.Event) -> None:
        while not is_over.wait(PERIOD_S):
            self.read_path()
