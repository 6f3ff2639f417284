"""Watches how busy this machine is while it emulates devices.

A device that is kept from running is slower than its profile, and so is one whose bytes wait in a
broker or a proxy that is kept from running. Nobody would notice: so it is counted.
"""

import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from coordinator.ports import Waiting

KEEP_S = 2e-3
"""Readings of the same processes within this time are one: a cohort is dispatched at once."""

_NS = 1e-9


def run_delay_s(pid: int) -> float:
    """Return for how long the threads of a process were ready to run and did not, seconds in all.

    0 where the system does not tell.
    """
    total_ns = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total_ns += int(thread.read_text().split()[1])
        except (OSError, ValueError, IndexError):  # it has ended meanwhile
            continue
    return total_ns * _NS


class FleetWatch:
    """Tells what emulated devices have suffered; `coordinator.ports.HostWatch`.

    Args:
        emulated: Names of the devices that have a profile to be true to.
        starved_s: For how long a device was kept waiting, seconds in all; None is unknown.
        path: Processes that every byte passes: the broker, proxies.
        dilation: Seconds of this machine in one second of the fleet.
        now: Seconds.
    """

    def __init__(
        self,
        emulated: Collection[str],
        starved_s: Callable[[str], float | None],
        path: Callable[[], Iterable[int]],
        *,
        dilation: float = 1.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._emulated, self._starved_s, self._path = frozenset(emulated), starved_s, path
        self._dilation, self._now = dilation, now
        self._path_s, self._read_at = 0.0, -KEEP_S

    def waiting(self, device: str) -> Waiting | None:
        """Return what `device` has suffered so far; None if it is not emulated."""
        if device not in self._emulated:
            return None
        device_s = self._starved_s(device)
        now = self._now()
        if now - self._read_at >= KEEP_S:
            self._path_s, self._read_at = sum(map(run_delay_s, self._path())), now
        return Waiting(
            device_s=(device_s or 0.0) / self._dilation, path_s=self._path_s / self._dilation
        )
