"""Processor time of other processes, in nanosecond resolution where the kernel has CPU clocks."""

import sys
import time

import psutil

_HAS_CLOCKS = sys.platform == "linux"
_CPUCLOCK_SCHED = 2
"""From include/linux/posix-timers.h: the clock that counts scheduled time."""


def cpu_s(pid: int) -> float | None:
    """Return the processor time of a process and all its threads, seconds; None if it has ended.

    On Linux this is one system call of a microsecond. The id of a process's CPU clock follows from
    the process id (clock_getcpuclockid(3)); the clock includes ended threads.
    """
    if _HAS_CLOCKS:
        try:
            return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
        except OSError:
            return None
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)
