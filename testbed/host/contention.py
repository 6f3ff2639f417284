"""Measure contention: the time for which this busy machine keeps emulated devices waiting.

A device that waits for a processor is slower than its profile. So is a device whose bytes wait
in a broker or proxy that waits for a processor. Both times are counted for each device.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from fairbed.coordinator.ports import WaitTimes

READING_S = 2e-3
"""A reading of the relaying processes is reused for this long: a cohort is dispatched at once."""

SHORT_S = 20e-6
"""Wait at a wake-up that is not counted. A relay wakes up for every packet: 1,500 waits of 28 us
per second were 4 % of the time, but delayed no packet by more than 28 us."""

_NS = 1e-9


@dataclass(frozen=True, slots=True)
class SchedulerWaits:
    """Time that the threads of a process waited for a processor, and how often they ran."""

    seconds: float = 0.0
    count: int = 0


def waits(pid: int) -> SchedulerWaits:
    """Return the waits of the threads of a process; zero if the system does not count them."""
    total_ns, count = 0, 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            _, waited_ns, runs = map(int, thread.read_text().split())
        except (OSError, ValueError):  # the thread has ended
            continue
        total_ns, count = total_ns + waited_ns, count + runs
    return SchedulerWaits(total_ns * _NS, count)


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
            before = self._before.get(pid, found)
            long_s = found.seconds - before.seconds - SHORT_S * (found.count - before.count)
            self.seconds += max(0.0, long_s)
        self._before = now


class ContentionMonitor:
    """Counts the waits of emulated devices; satisfies `coordinator.ports.HostMonitor`.

    Args:
        emulated: Names of the devices that have a profile.
        contended_s: Returns the total time that a device was kept waiting, seconds; None: unknown.
        path: Returns the processes that relay every byte: the broker, proxies.
        dilation: Seconds of this machine in one second of the fleet.
        now: Monotonic clock, seconds.
    """

    def __init__(
        self,
        emulated: Collection[str],
        contended_s: Callable[[str], float | None],
        path: Callable[[], Iterable[int]],
        *,
        dilation: float = 1.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._emulated, self._contended_s, self._path = frozenset(emulated), contended_s, path
        self._dilation, self._now = dilation, now
        self._waited, self._read_at = WaitCounter(), -READING_S

    def waiting(self, device: str) -> WaitTimes | None:
        """Return how long `device` and its bytes have waited; None if `device` is not emulated."""
        if device not in self._emulated:
            return None
        device_s = self._contended_s(device)
        now = self._now()
        if now - self._read_at >= READING_S:
            self._waited.update(self._path())
            self._read_at = now
        return WaitTimes(
            device_s=(device_s or 0.0) / self._dilation,
            path_s=self._waited.seconds / self._dilation,
        )
