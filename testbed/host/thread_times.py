"""Running and waiting times of the threads of a program, between two readings."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fairbed.testbed.host.contention import SHORT_S

HAS_WAITS = os.path.exists("/proc/self/schedstat")
"""Whether this kernel counts the waits of threads."""

_NS = 1e-9


def tasks(pid: int) -> list[str]:
    """Return the folders of the threads of a process in /proc; empty if it has ended."""
    try:
        return [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Times of one thread since it began, seconds."""

    ran_s: float = 0.0
    waited_s: float = 0.0
    """Time for which it was ready and did not run."""
    count: int = 0
    """How often it ran."""


def thread_times(task: str) -> ThreadTimes | None:
    """Return the times of a thread by its folder; None if it has ended or nothing counts them."""
    try:
        with open(f"{task}/schedstat", "rb", buffering=0) as file:
            ran_ns, waited_ns, count = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return ThreadTimes(ran_ns * _NS, waited_ns * _NS, count)


@dataclass(frozen=True, slots=True)
class ThreadWindow:
    """The threads of a program between two readings."""

    waited_s: float = 0.0
    """Of the thread that waited longest, less `SHORT_S` per wait; seconds."""
    ready_s: float = 0.0
    """Of the thread that was longest ready, running or not."""
    concurrency: float = 1.0
    """Threads that were ready at the same time, on average; idle threads do not count."""


class ThreadWindows:
    """Compares readings of the threads of a program.

        concurrency = sum of ready times / the longest of them, at least 1

    Args:
        read: Returns the times of a thread.
    """

    def __init__(self, read: Callable[[str], ThreadTimes | None] = thread_times) -> None:
        self._read = read
        self._before: dict[str, ThreadTimes] = {}

    def update(self, tasks: Iterable[str]) -> ThreadWindow:
        """Return the window since the last update; threads that are new began in it.

        The waits of a thread that has ended since the last update are lost.
        """
        now = {task: times for task in tasks if (times := self._read(task)) is not None}
        waited_s, ready_s = [0.0], list[float]()
        for task, times in now.items():
            before = self._before.get(task, _NOTHING)
            waited = times.waited_s - before.waited_s
            waited_s.append(waited - SHORT_S * (times.count - before.count))
            ready_s.append(times.ran_s - before.ran_s + waited)
        self._before = now
        longest_s = max(ready_s, default=0.0)
        return ThreadWindow(
            waited_s=max(waited_s),
            ready_s=longest_s,
            concurrency=1.0 if longest_s <= 0.0 else sum(ready_s) / longest_s,
        )


_NOTHING = ThreadTimes()
