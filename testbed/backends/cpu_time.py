"""Processor time of other processes, in nanoseconds where the kernel has CPU clocks."""

import sys
import time

import psutil

_HAS_CLOCKS = sys.platform == "linux"
_CPUCLOCK_SCHED = 2
"""include/linux/posix-timers.h: the clock that counts what the scheduler gave."""


def cpu_s(pid: int) -> float | None:
    """Return the processor time of a process and all its threads, seconds; None if it is gone.

    On Linux one system call of a microsecond: the CPU clock of a process has an id made of its
    process id (clock_getcpuclockid(3)), and counts threads that have ended too.
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
