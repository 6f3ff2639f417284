"""Runs work on several threads; the results come in the order of the work."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")


def free_cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1


@dataclass(slots=True)
class _Task(Generic[Work, Result]):
    work: Work
    future: Future[Result]


class OrderedThreads:
    """Threads that persist between calls; the caller's own thread is one of them.

    A caller that waits for a result does work that no thread has begun, so that all threads stay
    busy.
    """

    def __init__(self, threads: int) -> None:
        self._threads = max(1, threads)
        others = self._threads - 1
        self._pool = ThreadPoolExecutor(others, "cohort") if others else None

    def run(
        self,
        do: Callable[[Work], Result],
        work: Iterable[Work],
        elsewhere: Callable[[Work], Result] | None = None,
    ) -> Iterator[Result]:
        """Yield the result of `do` for each piece of work, in order.

        At most twice as many results as threads wait to be taken.

        Args:
            do: Does one piece of work.
            work: Pieces of work.
            elsewhere: Replaces `do` in the other threads.
        """
        if self._pool is None:
            yield from map(do, work)
            return
        elsewhere = elsewhere or do
        pending: deque[_Task[Work, Result]] = deque()
        try:
            for each in work:
                pending.append(_Task(each, self._pool.submit(elsewhere, each)))
                if len(pending) > 2 * self._threads:
                    yield _first(pending, do)
            while pending:
                yield _first(pending, do)
        finally:
            for task in pending:
                task.future.cancel()

    def close(self) -> None:
        """End the threads; each finishes the work that it has begun."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _first(pending: deque[_Task[Work, Result]], do: Callable[[Work], Result]) -> Result:
    """Return the result of the first task; do other tasks while waiting."""
    while not pending[0].future.done():
        left = next((task for task in pending if task.future.cancel()), None)
        if left is None:
            break
        left.future = _done(do, left.work)
    return pending.popleft().future.result()


def _done(do: Callable[[Work], Result], work: Work) -> Future[Result]:
    """Do work in this thread and return its outcome."""
    outcome: Future[Result] = Future()
    try:
        outcome.set_result(do(work))
    except Exception as exc:
        outcome.set_exception(exc)
    return outcome
