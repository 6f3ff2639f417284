"""Opening the database of a run, and saying in one line why it cannot be used."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator.store.errors import RunNotFoundError, StoreError

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
