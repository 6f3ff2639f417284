"""The writer thread of a store: queues rows, commits them in batches, runs jobs in order."""

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
"""Longest time between commits: a crash loses at most this much, and no closed round."""
MAX_ROWS = 100_000
"""Rows in memory at which `put` fails: minutes of a large fleet without a working disk."""
MAX_DROPPABLE = 10_000
"""Telemetry rows in memory: 10 s of a thousand devices."""


@dataclass(frozen=True, slots=True)
class _QueuedJob:
    job: Job[Any]
    future: Future[Any]


class Writer:
    """Owns the writing connection.

    When a queue is full, a new droppable row (telemetry) replaces the oldest one, which is counted
    as dropped; other rows are never dropped: `put` raises when `MAX_ROWS` wait. A failed commit is
    final: from then on every call raises its `StoreError`, and no call blocks.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, *, interval_s: float = COMMIT_INTERVAL_S
    ) -> None:
        self._path = path
        self._connection = connection
        self._interval_s = interval_s
        self._rows: deque[tuple[str, Sequence[Values]]] = deque()
        self._waiting = 0
        """Rows in the batches of `_rows`."""
        self._droppable: deque[tuple[str, Sequence[Values]]] = deque()
        self._jobs: deque[_QueuedJob] = deque()
        self._dropped = 0
        self._failure: StoreError | None = None
        self._is_failure_raised = False
        """A caller has received `_failure`."""
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="store.writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Number of rows dropped so far."""
        return self._dropped

    @property
    def is_open(self) -> bool:
        """The writer is neither closed nor broken."""
        return self._failure is None and not self._is_closing

    @property
    def backlog(self) -> int:
        """Number of rows that wait for a commit."""
        return self._waiting + len(self._droppable)

    def put(self, sql: str, rows: Sequence[Values], *, is_droppable: bool = False) -> None:
        """Queue rows of one statement without waiting; droppable rows come one at a time.

        Raises:
            StoreError: The writer is closed or broken, or `MAX_ROWS` rows wait.
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
        """Run `job` on the writer thread after all rows queued so far, and wait for its result.

        Raises:
            StoreError: The writer is closed or broken, the job failed, or the time ran out.
        """
        queued = _QueuedJob(job, Future())
        with self._changed:
            self._check()
            self._jobs.append(queued)
            self._changed.notify()
        try:
            result: T = queued.future.result(timeout_s)
        except FutureTimeoutError as exc:
            raise StoreError(
                f"{self._path}: must finish a write within {timeout_s:g} s, got no answer; "
                "check the disk"
            ) from exc
        return result

    def close(self, timeout_s: float) -> None:
        """Write all queued rows and end the thread; a second call does nothing.

        Raises:
            StoreError: A commit failed and no call has raised that yet, or the time ran out.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise StoreError(
                f"{self._path}: must close within {timeout_s:g} s, got stuck; check the disk"
            )
        if self._failure is not None and not self._is_failure_raised:
            self._is_failure_raised = True
            raise self._failure

    def _check(self) -> None:
        if self._failure is not None:
            self._is_failure_raised = True
            raise self._failure
        if self._is_closing:
            raise StoreError(f"{self._path}: must be open, got a write after close")

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_work() or self._is_closing)
                self._changed.wait_for(self._is_urgent, self._interval_s)
                batches = [*self._rows, *self._droppable]
                jobs = list(self._jobs)
                is_closing = self._is_closing
                self._rows.clear()
                self._waiting = 0
                self._droppable.clear()
                self._jobs.clear()
            self._write(batches, jobs)
            if is_closing:
                break
        self._connection.close()

    def _has_work(self) -> bool:
        return bool(self._rows or self._droppable or self._jobs)

    def _is_urgent(self) -> bool:
        return bool(self._jobs or self._is_closing)

    def _write(self, batches: list[tuple[str, Sequence[Values]]], jobs: list[_QueuedJob]) -> None:
        try:
            if batches and self._failure is None:
                with translated(self._path), transaction(self._connection):
                    for sql, rows in batches:
                        self._connection.executemany(sql, rows)
        except StoreError as exc:
            self._failure = exc
        for queued in jobs:
            self._run(queued)

    def _run(self, queued: _QueuedJob) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            with translated(self._path):
                result = queued.job(self._connection)
        except StoreError as exc:
            self._failure, self._is_failure_raised = exc, True
            queued.future.set_exception(exc)
        except Exception as exc:  # the job's own error is raised by `run`
            queued.future.set_exception(exc)
        else:
            queued.future.set_result(result)
