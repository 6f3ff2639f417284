"""Opens and locks the database of a run; errors of SQLite become one line with advice.

A run belongs to one process at a time; the kernel releases the lock when that process dies.
"""

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from fairbed.coordinator.store.damage import check_rounds
from fairbed.coordinator.store.errors import RunInUseError, RunNotFoundError, StoreError
from fairbed.wire.printable import printable, printable_values

LOCK_FILE = "lock"
LOCK_WAIT_S = 0.5
"""How long to try for the lock; a reader that checks for a live run holds it for microseconds."""


class RunLock:
    """Exclusive lock of a run folder, until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            RunInUseError: Another process holds it.
        """
        self._fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        give_up = time.monotonic() + LOCK_WAIT_S
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
        """Release the lock; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class StartLock:
    """Exclusive claim of a folder from the start of a run to its end; of the folder itself.

    A process that starts a run writes files and starts a broker before it has a store to lock.
    """

    def __init__(self, folder: Path) -> None:
        """Claim the folder; on a file system without locks of folders this does nothing.

        Raises:
            RunInUseError: Another process starts or runs a run there.
        """
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):
            if not _try(self._fd, fcntl.LOCK_EX):
                self.release()
                raise RunInUseError(
                    f"{folder}: a run must have one process, got a second one while another starts "
                    f"or runs it; watch that one: fairbed watch {folder}"
                )

    def release(self) -> None:
        """Release the claim; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_locked(folder: Path) -> bool:
    """Return whether a live process holds the lock of a run."""
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
"""How long to wait for another program's write lock; it is normally held for milliseconds."""

END_WAIT_S = 2.0
"""How long the end of a run waits for readers in a snapshot; a snapshot lasts milliseconds."""

CACHE_KIB = 512
"""Page cache of the writer. It is full after some 150 rounds, so the memory of a long run does
not grow with its database. A larger one saves little: the writer takes 43 ms for a round of a
thousand devices (240 rounds, two contexts of each device in a round), with 64 MiB 37 ms."""
CHECKPOINT_PAGES = 8_000
"""Pages of 4 KiB in the write-ahead log that trigger a WAL checkpoint. Rows of one device are far
apart in the indices, so each checkpoint rewrites many pages; the default of 1,000 would trigger
several in a round of a thousand devices."""

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
    """Open a database for its only writer, in WAL mode; transactions are explicit."""
    with translated(path):
        connection = sqlite3.connect(
            path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
        )
        with closed_on_error(connection):
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        return connection


MAX_TEXT_BYTES = 4 << 20
"""Longest text of a cell; the longest that a run writes are its provenance and its settings."""

MAX_LEVELS = 64
"""Levels of JSON that need no check."""


def open_readonly(path: Path, busy_timeout_s: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    """Open an existing database for reading beside a writer; its texts are printable."""
    if not path.is_file():
        raise RunNotFoundError(
            f"{path.parent}: must be the folder of a run, got one without {path.name}; `fairbed "
            "runs` lists the runs"
        )
    _roll_back(path, busy_timeout_s)
    with translated(path):
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=ro",
            uri=True,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
    connection.text_factory = partial(_text, path)
    return connection


def _text(path: Path, cell: bytes) -> str:
    """Return a text of the database: one printable line, also of a foreign file.

    Raises:
        StoreError: It is longer, or nests deeper, than Fairbed writes.
    """
    text = cell.decode()
    if text.isprintable() and not text.startswith(("{", "[")) and len(cell) <= MAX_TEXT_BYTES:
        return text
    if len(cell) > MAX_TEXT_BYTES:
        raise StoreError(
            f"{path}: a text must have at most {MAX_TEXT_BYTES >> 10} KiB, got {len(cell) >> 10} "
            "KiB; the file is damaged, or Fairbed did not write it"
        )
    text = str(printable(text))
    if not text.startswith(("{", "[")):
        return text
    if "\\" not in text and text.count("[") + text.count("{") <= MAX_LEVELS:
        return text
    try:  # JSON may escape what is not printable
        return json.dumps(printable_values(json.loads(text)), ensure_ascii=False)
    except ValueError:
        return text
    except RecursionError as exc:
        raise StoreError(
            f"{path}: JSON must have at most {MAX_LEVELS} levels, got hundreds; the file is "
            "damaged, or Fairbed did not write it"
        ) from exc


def _roll_back(path: Path, busy_timeout_s: float) -> None:
    """Undo a change that a killed process did not finish; a reader can do nothing without that.

    Such a change is that to WAL mode when a process opens a run, and back when it ends. SQLite
    leaves the change of a live process alone. Without the permission to write nothing is done.
    """
    if not path.with_name(f"{path.name}-journal").exists():
        return
    uri = f"{path.resolve().as_uri()}?mode=rw"
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(uri, uri=True, timeout=busy_timeout_s)) as connection,
    ):
        connection.execute("PRAGMA schema_version")


def complete(connection: sqlite3.Connection) -> None:
    """Move all rows into the database file, so that a copy of it alone is the whole run.

    No other file is left, unless a reader has the database open; one in a snapshot for longer than
    `END_WAIT_S` keeps the rows in the write-ahead log.
    """
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as exc:
        if "locked" not in str(exc):
            raise
        connection.execute(f"PRAGMA busy_timeout = {round(1000 * END_WAIT_S)}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def complete_abandoned(path: Path) -> None:
    """Complete the database of a run without a process, if it has a write-ahead log.

    Does nothing without the permission or the space to write, because reading a run needs neither,
    and if the log is damaged.
    """
    if not path.with_name(f"{path.name}-wal").exists() or is_locked(path.parent):
        return
    with suppress(sqlite3.Error, StoreError):
        with closing(open_readonly(path, 0.0)) as connection:
            check_rounds(path.parent, connection)  # the rest of a damaged log may be rescued
        with closing(open_writable(path, 0.0)) as connection:
            complete(connection)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn an error of SQLite into a `StoreError` that states what to do.

    Raises:
        StoreError: The error; a message of SQLite that quotes a damaged file may be no UTF-8.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as exc:
        cause = str(exc)
        advice = next((a for key, a in _ADVICE.items() if key in cause.lower()), "see the cause")
        raise StoreError(f"{path}: the store must be usable, got {cause!r}; {advice}") from exc


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Commit what the block writes, or roll all of it back."""
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
    """Close the connection if the block fails."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
