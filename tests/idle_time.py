"""An event loop on which idle time costs nothing: its clock jumps to the next timer.

Deadlines, back-offs and repetitions keep their values and their order, but nothing waits for
them. Time passes as on this machine while a worker thread computes, and jumps while all tasks
wait. A module of tests opts in by `pytestmark = pytest.mark.idle_time_skipped`; nothing in it may
wait for a socket or a process, which such a loop takes for idle.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio.from_thread
import anyio.to_thread
import pytest

from fairbed.device_agent.host import Clock


class IdleSkippingLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait for its timers unless a thread is busy."""

    def __init__(self) -> None:
        self.busy_threads = 0
        """Calls of `anyio.to_thread.run_sync` under way, but for those that wait for the loop."""
        self._skipped_s = 0.0
        super().__init__(_SkippingSelector(self))

    def time(self) -> float:
        """Monotonic seconds, skipped ones included; may be called from any thread."""
        return time.monotonic() + self._skipped_s

    def skip(self, duration_s: float) -> None:
        """Set the clock forward."""
        self._skipped_s += duration_s


class StillLoop(IdleSkippingLoop):
    """An event loop whose clock stands still but for the timers that it skips to."""

    def time(self) -> float:
        """Seconds that were skipped."""
        return self._skipped_s


class _SkippingSelector(selectors.BaseSelector):
    """Skips a wait during which only a timer can become due."""

    def __init__(self, loop: IdleSkippingLoop) -> None:
        self._inner = selectors.DefaultSelector()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0.0 or self._loop.busy_threads:
            return self._inner.select(timeout)
        ready = self._inner.select(0)
        if not ready:
            self._loop.skip(timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def close(self) -> None:
        self._inner.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()


class LoopClock(Clock):
    """The clock of the running event loop, for devices on it."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time

    def now(self) -> float:
        """Monotonic seconds of the loop."""
        return self._time()


def add_busy_threads(count: int) -> None:
    """Change the number of busy threads; no effect on an ordinary loop."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, IdleSkippingLoop):
        loop.busy_threads += count


def sleep_in_thread(duration_s: float) -> None:
    """Sleep in a worker thread by the clock of the event loop."""

    async def sleep() -> None:
        add_busy_threads(-1)
        try:
            await anyio.sleep(duration_s)
        finally:
            add_busy_threads(+1)

    anyio.from_thread.run(sleep)


@contextmanager
def busy_threads_counted() -> Iterator[None]:
    """Count the worker threads of the loops that skip idle time."""
    run_sync = anyio.to_thread.run_sync

    async def run_counted(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        add_busy_threads(+1)
        try:
            return await run_sync(work, *args, **options)
        finally:
            add_busy_threads(-1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anyio.to_thread, "run_sync", run_counted)
        yield
