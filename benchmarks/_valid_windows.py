"""Measurements that count only if this machine kept none of those who took part waiting."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from fairbed.testbed.host.contention import waits

WAIT_LIMIT = 0.05
"""Share of the time for which one may have waited, as in the runs themselves."""

PAUSE_S = 0.5
"""Before the next try, when this machine was busy."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was measured once, and how busy this machine was meanwhile."""

    value: float
    waited: float
    """Share of the time that one of the processes was kept waiting, the worst of them; or that
    the hypervisor took away, if that is more."""

    @property
    def counts(self) -> bool:
        """Nobody was kept waiting for long."""
        return self.waited <= WAIT_LIMIT


def measure(what: Callable[[], float]) -> Window:
    """Measure something; this process and all that it has started take part."""
    here = psutil.Process()
    pids = [here.pid, *(child.pid for child in here.children(recursive=True))]
    delays_s, stolen_s, began = [waits(pid).seconds for pid in pids], _stolen_s(), time.monotonic()
    value = what()
    wall_s = time.monotonic() - began
    waited = [waits(pid).seconds - before for pid, before in zip(pids, delays_s, strict=True)]
    worst_s = max(*waited, (_stolen_s() - stolen_s) / (os.cpu_count() or 1))
    return Window(value, worst_s / wall_s)


def repeat(what: Callable[[], float], repeats: int, late_limit_s: float) -> list[float]:
    """Return what was measured in so many windows that count, or fewer when patience ends."""
    found: list[float] = []
    deadline = time.monotonic() + late_limit_s
    while len(found) < repeats and time.monotonic() < deadline:
        window = measure(what)
        if window.counts:
            found.append(window.value)
        else:
            time.sleep(PAUSE_S)
    return found


def _stolen_s() -> float:
    first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    return float(first.split()[8]) / os.sysconf("SC_CLK_TCK")
