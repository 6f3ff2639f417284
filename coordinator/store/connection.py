"""Opening the database of a run, and saying in one line why it cannot be used.

A run belongs to one process at a time; the kernel forgets the lock when that process dies.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairbed.coordinator.store.errors import RunInUseError, RunNotFoundError, StoreError

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


DATABASE = "run.db"
CONFIG = "experiment.toml"
BUSY_TIMEOUT_S = 10.0
"""How long to wait for another program's write lock; a healthy one lasts milliseconds."""

CACHE_KIB = 65_536
"""Most memory for pages of the database; a small run's takes what it has."""
JOURNAL_PAGES = 8_000
"""Of 4 KiB, after which the journal is folded into the database. Rows of a device lie far apart in
the indices, so each folding touches much of them, and the usual 1,000 pages fold several times in a
round of a thousand devices."""

_ADVICE = {
    "full": "free space and resume the run",
    "locked": "close the program that holds it",
    "readonly": "make the folder writable",
    "unable to open": "check that the folder exists and is writable",
    "malformed": "the file is damaged; restore a copy of the run folder",
    "not a database": "the file is damaged; restore a copy of the run folder",
    "disk i/o": "check the disk",
}


def open_writable(path: Path, busy_timeout_s: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    """Open a database for the one writer, in WAL mode; transactions are explicit."""
    with translated(path):
        connection = sqlite3.connect(
            path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
        )
        with closed_on_error(connection):
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {JOURNAL_PAGES}")
        return connection


def open_readonly(path: Path, busy_timeout_s: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    """Open an existing database for reading beside a writer."""
    if not path.is_file():
        raise RunNotFoundError(f"{path.parent}: must be a run folder, got none with {path.name}")
    with translated(path):
        return sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=ro",
            uri=True,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn an error of SQLite into a `StoreError` that says what to do."""
    try:
        yield
    except sqlite3.Error as exc:
        cause = str(exc)
        advice = next((a for key, a in _ADVICE.items() if key in cause.lower()), "see the cause")
        raise StoreError(f"{path}: the store must be usable, got {cause!r}; {advice}") from exc


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """All or nothing."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled back by itself
            connection.execute("ROLLBACK")
        raise


@contextmanager
def closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Close a connection that its new owner could not take over."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
