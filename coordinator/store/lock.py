"""A run belongs to one process at a time; the kernel forgets the lock when that process dies."""

import fcntl
import os
import time
from pathlib import Path

from coordinator.store.errors import RunInUseError

LOCK_FILE = "lock"
PATIENCE_S = 0.5
"""A reader that asks whether the run is alive holds the lock for microseconds."""


class RunLock:
    """Exclusive ownership of a run folder, until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            RunInUseError: Another process has it.
        """
        self._fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        give_up = time.monotonic() + PATIENCE_S
        while not _try(self._fd, fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                owner = os.pread(self._fd, 20, 0).decode(errors="replace").strip() or "unknown"
                os.close(self._fd)
                raise RunInUseError(
                    f"{folder}: a run must have one coordinator, got a second one while process "
                    f"{owner} runs it; stop that one first"
                )
            time.sleep(0.01)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the run up; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_locked(folder: Path) -> bool:
    """Tell whether a living process owns the run."""
    try:
        fd = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _try(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _try(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
