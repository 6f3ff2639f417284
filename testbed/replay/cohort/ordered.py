"""Work on several threads whose results come in the order of the work."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")


def free_cores() -> int:
    """Return the cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1


class Workers:
    """Threads that are kept from call to call; with one, the caller's own does the work."""

    def __init__(self, threads: int) -> None:
        self._threads = max(1, threads)
        self._pool = ThreadPoolExecutor(self._threads, "cohort") if self._threads > 1 else None

    def run(self, do: Callable[[Work], Result], work: Iterable[Work]) -> Iterator[Result]:
        """Yield `do` of each, in order; at most one result more than there are threads waits."""
        if self._pool is None:
            yield from map(do, work)
            return
        under_way: deque[Future[Result]] = deque()
        try:
            for each in work:
                under_way.append(self._pool.submit(do, each))
                if len(under_way) > self._threads:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()

    def close(self) -> None:
        """Let the threads end with what they do."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
