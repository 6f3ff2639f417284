"""Has what only watches go after others: nobody who is measured shall wait for a screen.

Where the kernel shares the processor out by session first (`sched_autogroup`, sched(7)), the
niceness of a process counts within its session only. A screen's session is that of the shell it
was started from: so it is told as well, and told otherwise when the screen is left.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from testbed.backends.priority import AUTOGROUP

NICENESS = 10
"""About a tenth of the share of a process that was not told anything; keys are still heeded."""

TRIES, PAUSE_S = 5, 0.1
"""To tell the session, and the time between two tries, seconds."""


@contextmanager
def going_last() -> Iterator[None]:
    """Have this process, and meanwhile its session, go after others; who is started keeps that."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), NICENESS))
    before = _of_session()
    if before is None or before >= NICENESS:
        yield
        return
    _tell_session(NICENESS)
    try:
        yield
    finally:
        _tell_session(before)


def _of_session() -> int | None:
    """Return the niceness of the session; None where sessions have none."""
    with suppress(OSError):
        if found := re.search(r"nice (-?\d+)$", AUTOGROUP.read_text().strip()):
            return int(found[1])
    return None


def _tell_session(niceness: int) -> None:
    for _ in range(TRIES):
        try:
            AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:  # all sessions together are told ten times a second at most
            time.sleep(PAUSE_S)
        except OSError:
            return
        else:
            return
