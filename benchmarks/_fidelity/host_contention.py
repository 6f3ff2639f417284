"""What this machine gives to whom, as the kernel counts it."""

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
    """Filled in at the end of a watch."""

    wall_s: float = 0.0
    stolen_s: float = 0.0
    waited_s: float = 0.0
    """The process that waited most."""
    contended_s: float = 0.0


@contextmanager
def watch(path: Iterable[int], contended_s: Callable[[], float]) -> Iterator[HostContention]:
    """Watch the machine while something is measured.

    Args:
        path: Processes that bytes pass.
        contended_s: Tells for how long the device was kept waiting so far, seconds.
    """
    host, pids = HostContention(), list(path)
    before = {pid: waits(pid) for pid in pids}
    stolen, contended, begun = stolen_s(), contended_s(), time.monotonic()
    yield host
    host.wall_s = time.monotonic() - begun
    host.contended_s = contended_s() - contended
    host.stolen_s = stolen_s() - stolen
    host.waited_s = max((_long_s(before[pid], waits(pid)) for pid in pids), default=0.0)


def _long_s(before: SchedulerWaits, after: SchedulerWaits) -> float:
    """Return what a process waited, but for the short waits of waking up."""
    return after.seconds - before.seconds - SHORT_S * (after.count - before.count)


def stolen_s() -> float:
    """Return the time that the host has taken from this virtual machine, by core, seconds."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return 0.0
    return int(first.split()[8]) / _TICKS / (os.cpu_count() or 1)


def children() -> list[int]:
    """Return all processes that this one has started, and theirs."""
    return [child.pid for child in psutil.Process().children(recursive=True)]
