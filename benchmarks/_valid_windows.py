"""Measurements that are valid only if no participating process had to wait for the processor."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from fairbed.testbed.host.contention import waits

WAIT_LIMIT = 0.05
"""Greatest share of the time for which a process may wait, as in runs."""

PAUSE_S = 0.5
"""Time before the next attempt when this machine was busy."""


@dataclass(frozen=True, slots=True)
class Window:
    """One measurement, and the waiting time during it."""

    value: float
    waited: float
    """Largest share of the time for which one of the processes waited, or which the hypervisor
    took."""

    @property
    def is_valid(self) -> bool:
        """Whether no process waited for long."""
        return self.waited <= WAIT_LIMIT


def measure(quantity: Callable[[], float]) -> Window:
    """Measure a quantity; this process and its child processes take part."""
    here = psutil.Process()
    pids = [here.pid, *(child.pid for child in here.children(recursive=True))]
    delays_s, stolen_s, began = [waits(pid).seconds for pid in pids], _stolen_s(), time.monotonic()
    value = quantity()
    wall_s = time.monotonic() - began
    waited = [waits(pid).seconds - before for pid, before in zip(pids, delays_s, strict=True)]
    worst_s = max(*waited, (_stolen_s() - stolen_s) / (os.cpu_count() or 1))
    return Window(value, worst_s / wall_s)


def repeat(quantity: Callable[[], float], repeats: int, late_limit_s: float) -> list[float]:
    """Return the values of `repeats` valid windows, or of fewer after a time limit."""
    found: list[float] = []
    deadline = time.monotonic() + late_limit_s
    while len(found) < repeats and time.monotonic() < deadline:
        window = measure(quantity)
        if window.is_valid:
            found.append(window.value)
        else:
            time.sleep(PAUSE_S)
    return found


def _stolen_s() -> float:
    first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    return float(first.split()[8]) / os.sysconf("SC_CLK_TCK")
