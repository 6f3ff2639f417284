"""Raises the scheduling priority of processes that shape links: if they are late, links are slow.

With `sched_autogroup` (sched(7)) the kernel first shares the processor between sessions, and the
niceness of a process counts within its session only. Our helpers lead sessions of their own, so
the priority of the session is raised too.
"""

import os
from contextlib import suppress
from pathlib import Path

NICENESS = -10
"""About nine times the share of a process with niceness 0."""

AUTOGROUP = Path("/proc/self/autogroup")


def raise_priority() -> None:
    """Raise the priority of this process and its session, where that is allowed."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    with suppress(OSError):
        AUTOGROUP.write_text(str(NICENESS))
