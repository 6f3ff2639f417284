"""Waiting and stolen time during a measurement, from the kernel."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from fairbed.testbed.host.contention import SHORT_S, SchedulerWaits, waits

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class HostContention:
    """Totals of a measurement, set at its end."""

    wall_s: float = 0.0
    stolen_s: float = 0.0
    waited_s: float = 0.0
    """Time of the process that waited longest."""
    contended_s: float = 0.0


@contextmanager
def watch(path: Iterable[int], contended_s: Callable[[], float]) -> Iterator[HostContention]:
    """Watch the machine during a measurement.

    Args:
        path: Processes on the path of the bytes.
        contended_s: Returns the waiting time of the device so far, seconds.
    """
    contention, pids = HostContention(), list(path)
    before = {pid: waits(pid) for pid in pids}
    stolen, contended, begun = stolen_s(), contended_s(), time.monotonic()
    yield contention
    contention.wall_s = time.monotonic() - begun
    contention.contended_s = contended_s() - contended
    contention.stolen_s = stolen_s() - stolen
    contention.waited_s = max((_long_s(before[pid], waits(pid)) for pid in pids), default=0.0)


def _long_s(before: SchedulerWaits, after: SchedulerWaits) -> float:
    """Return the waiting time of a process without the short waits of wake-ups."""
    return after.seconds - before.seconds - SHORT_S * (after.count - before.count)


def stolen_s() -> float:
    """Return the time that the host took from this virtual machine, per core, seconds."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return 0.0
    return int(first.split()[8]) / _TICKS / (os.cpu_count() or 1)


def children() -> list[int]:
    """Return all descendants of this process."""
    return [child.pid for child in psutil.Process().children(recursive=True)]
