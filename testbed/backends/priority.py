"""The scheduling priority of processes that shape links, and of those that only read a run.

Links are slow if the first are late; the second must not delay what is measured. With
`sched_autogroup` (sched(7)) the kernel first divides the processor between sessions, and niceness
counts only within a session. Helper processes lead their own sessions, so the priority of the
session changes too.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NICENESS = -10
"""Gives about nine times the processor share of niceness 0."""

LOW_NICENESS = 10
"""Gives about a tenth of the processor share of niceness 0, enough to react to keys."""

AUTOGROUP_TRIES, AUTOGROUP_RETRY_S = 5, 0.1
"""Attempts to set the priority of the session, and the seconds between them."""

AUTOGROUP = Path("/proc/self/autogroup")


def raise_priority() -> None:
    """Raise the priority of this process and its session, if the kernel allows it."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    with suppress(OSError):
        AUTOGROUP.write_text(str(NICENESS), encoding="utf-8")


def run_first() -> None:
    """Run this process before all that have no real-time priority, if the kernel allows it.

    For a process that is awake for microseconds at a time. The kernel leaves 5 % of each core to
    the others (`sched_rt_runtime_us`).
    """
    raise_priority()
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


@contextmanager
def low_priority() -> Iterator[None]:
    """Lower the priority of this process, and of its session until the context ends.

    The process and its children keep the lower priority.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), LOW_NICENESS))
    before = _session_niceness()
    if before is None or before >= LOW_NICENESS:
        yield
        return
    _set_session_niceness(LOW_NICENESS)
    try:
        yield
    finally:
        _set_session_niceness(before)


def _session_niceness() -> int | None:
    """Return the niceness of the session; None if this system has no autogroups."""
    with suppress(OSError):
        if found := re.search(r"nice (-?\d+)$", AUTOGROUP.read_text(encoding="utf-8").strip()):
            return int(found[1])
    return None


def _set_session_niceness(niceness: int) -> None:
    for _ in range(AUTOGROUP_TRIES):
        try:
            AUTOGROUP.write_text(str(niceness), encoding="utf-8")
        except BlockingIOError:  # the kernel allows ten changes per second for all sessions
            time.sleep(AUTOGROUP_RETRY_S)
        except OSError:
            return
        else:
            return
