"""The one thread that writes: takes rows at once, commits them in batches, runs jobs in order."""

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fairbed.coordinator.store.connection import transaction, translated
from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.schema import Values

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

COMMIT_INTERVAL_S = 0.25
"""A crash loses at most this much of what is not a closed round."""
MAX_ROWS = 100_000
"""Rows in memory before the run is told that the disk is dead: minutes of a large fleet."""
MAX_DROPPABLE = 10_000
"""Telemetry rows in memory: 10 s of a thousand devices."""


@dataclass(frozen=True, slots=True)
class _Task:
    job: Job[Any]
    future: Future[Any]


class Writer:
    """Owns the writing connection.

    Full-policy: droppable rows (telemetry) push out their oldest and are counted; other rows
    are never dropped, and when `MAX_ROWS` wait, `put` raises. After one failed commit the
    writer is broken for good: every call raises that one `StoreError`, nothing hangs.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, *, interval_s: float = COMMIT_INTERVAL_S
    ) -> None:
        self._path = path
        self._connection = connection
        self._interval_s = interval_s
        self._rows: deque[tuple[str, Sequence[Values]]] = deque()
        self._waiting = 0
        """Rows in `_rows`, which come in batches."""
        self._droppable: deque[tuple[str, Sequence[Values]]] = deque()
        self._tasks: deque[_Task] = deque()
        self._dropped = 0
        self._failure: StoreError | None = None
        self._is_told = False
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="store.writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Droppable rows pushed out so far."""
        return self._dropped

    @property
    def is_open(self) -> bool:
        """Neither closed nor broken."""
        return self._failure is None and not self._is_closing

    @property
    def backlog(self) -> int:
        """Rows that no commit has begun to write."""
        return self._waiting + len(self._droppable)

    def put(self, sql: str, rows: Sequence[Values], *, is_droppable: bool = False) -> None:
        """Queue rows of one statement, those that are droppable one by one; never waits.

        Raises:
            StoreError: The writer is closed, broken, or `MAX_ROWS` behind.
        """
        with self._changed:
            self._check()
            queue = self._droppable if is_droppable else self._rows
            if is_droppable and len(queue) >= MAX_DROPPABLE:
                queue.popleft()
                self._dropped += 1
            elif not is_droppable:
                if self._waiting + len(rows) > MAX_ROWS:
                    raise StoreError(
                        f"{self._path}: at most {MAX_ROWS} rows may wait for the disk, got more; "
                        "the disk does not keep up"
                    )
                self._waiting += len(rows)
            queue.append((sql, rows))
            if len(queue) == 1:
                self._changed.notify()

    def run(self, job: Job[T], timeout_s: float) -> T:
        """Run `job` on the writer's thread after all rows queued so far, and wait for it.

        Raises:
            StoreError: The writer is closed or broken, the job failed, or time ran out.
        """
        task = _Task(job, Future())
        with self._changed:
            self._check()
            self._tasks.append(task)
            self._changed.notify()
        try:
            result: T = task.future.result(timeout_s)
        except FutureTimeoutError as exc:
            raise StoreError(
                f"{self._path}: must take a write within {timeout_s:g} s, got nothing; "
                "check the disk"
            ) from exc
        return result

    def close(self, timeout_s: float) -> None:
        """Write what is queued and end the thread; a second call does nothing.

        Raises:
            StoreError: A commit failed that nobody was told of, or time ran out.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise StoreError(
                f"{self._path}: must close within {timeout_s:g} s, got stuck; check the disk"
            )
        if self._failure is not None and not self._is_told:
            self._is_told = True
            raise self._failure

    def _check(self) -> None:
        if self._failure is not None:
            self._is_told = True
            raise self._failure
        if self._is_closing:
            raise StoreError(f"{self._path}: must be open, got a write after close")

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_work() or self._is_closing)
                self._changed.wait_for(self._is_urgent, self._interval_s)
                batches = [*self._rows, *self._droppable]
                tasks = list(self._tasks)
                is_closing = self._is_closing
                self._rows.clear()
                self._waiting = 0
                self._droppable.clear()
                self._tasks.clear()
            self._write(batches, tasks)
            if is_closing:
                break
        self._connection.close()

    def _has_work(self) -> bool:
        return bool(self._rows or self._droppable or self._tasks)

    def _is_urgent(self) -> bool:
        return bool(self._tasks or self._is_closing)

    def _write(self, batches: list[tuple[str, Sequence[Values]]], tasks: list[_Task]) -> None:
        try:
            if batches and self._failure is None:
                with translated(self._path), transaction(self._connection):
                    for sql, rows in batches:
                        self._connection.executemany(sql, rows)
        except StoreError as exc:
            self._failure = exc
        for task in tasks:
            self._run(task)

    def _run(self, task: _Task) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            with translated(self._path):
                result = task.job(self._connection)
        except StoreError as exc:
            self._failure, self._is_told = exc, True
            task.future.set_exception(exc)
        except Exception as exc:  # a fault of the job itself belongs to who asked for it
            task.future.set_exception(exc)
        else:
            task.future.set_result(result)
