"""How busy this machine is with other programs, before a run adds its own work."""

import time
from pathlib import Path

SAMPLES, APART_S = 20, 0.01
"""Readings, and the time between them, seconds."""

LOAD = Path("/proc/loadavg")


def runnable_tasks(samples: int = SAMPLES, file: Path = LOAD) -> float:
    """Return how many threads of this machine run or wait for a processor, besides the caller.

    It is a mean over `SAMPLES * APART_S`; 0 where the system does not count them.
    """
    found = 0.0
    for _ in range(samples):
        try:
            running = int(file.read_text(encoding="ascii").split()[3].partition("/")[0])
        except (OSError, ValueError, IndexError):
            return 0.0
        found += max(0, running - 1)
        time.sleep(APART_S)
    return found / samples
