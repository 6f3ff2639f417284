"""Raises the scheduling priority of processes that shape links, because their lateness slows links.

With `sched_autogroup` (sched(7)) the kernel first divides the processor between sessions, and
niceness counts only within a session. Helper processes lead their own sessions, so the priority of
the session is raised too.
"""

import os
from contextlib import suppress
from pathlib import Path

NICENESS = -10
"""Gives about nine times the processor share of niceness 0."""

AUTOGROUP = Path("/proc/self/autogroup")


def raise_priority() -> None:
    """Raise the priority of this process and its session, if the kernel allows it."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    with suppress(OSError):
        AUTOGROUP.write_text(str(NICENESS))
