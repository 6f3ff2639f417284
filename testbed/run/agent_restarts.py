"""Starts emulated agents again that were killed: by a signal, or because their memory was full.

A physical device has systemd for this. An agent that ends by itself, with an exit status, was
refused or lacks something that a new start lacks, too; it is not started again. The wait doubles
with each death, and after `RESTARTS` deaths in a row the device stays away. An agent that lives for
`STABLE_S` begins anew, so that a run of a week survives any number of single deaths.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import anyio
from anyio.abc import TaskGroup

from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.errors import BackendError

RESTARTS = 5
"""Starts in a row after which an agent that dies again is not started."""

WAIT_S, WAIT_CAP_S = 0.5, 30.0
"""Wait before the first of these starts, and the longest one; seconds."""

STABLE_S = 60.0
"""An agent that has lived so long is as one that never died; seconds."""

Start: TypeAlias = Callable[[str], Awaitable[None]]
"""Starts the agent of a device unless it is alive or an operator keeps it away."""

Note: TypeAlias = Callable[[str, str, str], None]
"""Records a warning: kind, text, device."""


@dataclass(slots=True)
class _Deaths:
    """Deaths of one agent in a row."""

    count: int = 0
    at_s: float = 0.0
    """Time of the last start after a death; meaningless before."""


class AgentRestarts:
    """Restarts of the agents of one run; use it inside `running`.

    Args:
        note: Receives events.
        on_tried: Called after each attempt to start an agent.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        note: Note,
        on_tried: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._note, self._on_tried, self._now = note, on_tried, now
        self._start: Start | None = None
        self._tasks: TaskGroup | None = None
        self._deaths: dict[str, _Deaths] = {}
        self._waiting: set[str] = set()
        """Agents whose start is awaited, or goes on."""
        self._died_in_start: set[str] = set()

    @property
    def is_pending(self) -> bool:
        """Whether an agent waits for its start."""
        return bool(self._waiting)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start agents again while the context lasts."""
        async with anyio.create_task_group() as self._tasks:
            try:
                yield
            finally:
                self._tasks.cancel_scope.cancel()
                self._tasks, self._start = None, None

    def start_with(self, start: Start) -> None:
        """Begin to start agents; those that died before stay away."""
        self._start = start

    def on_end(self, ended: HelperEnded) -> str:
        """Plan the start of an agent that has ended; return what follows, in words."""
        if ended.was_requested or not ended.is_device or ended.status >= 0 or self._start is None:
            return ""
        return self._plan(ended.name)

    def _plan(self, name: str) -> str:
        if name in self._waiting:
            self._died_in_start.add(name)
            return ""
        if self._tasks is None:
            return ""
        deaths = self._deaths.setdefault(name, _Deaths())
        if deaths.count and self._now() - deaths.at_s >= STABLE_S:
            deaths.count = 0
        if deaths.count >= RESTARTS:
            return (
                f"it is not started again after {RESTARTS} starts that each lasted less than "
                f"{STABLE_S:g} s"
            )
        wait_s = min(WAIT_CAP_S, WAIT_S * 2.0**deaths.count)
        deaths.count += 1
        self._waiting.add(name)
        self._tasks.start_soon(self._restart, name, wait_s, name=f"run.restart[{name}]")
        return f"it is started again in {wait_s:g} s"

    async def _restart(self, name: str, wait_s: float) -> None:
        problem = ""
        try:
            await anyio.sleep(wait_s)
            self._deaths[name].at_s = self._now()
            self._died_in_start.discard(name)
            if self._start is not None:
                await self._start(name)
        except BackendError as exc:
            problem = f"the agent cannot be started: {exc}"
        finally:
            self._waiting.discard(name)
        if name in self._died_in_start:
            problem = problem or "the agent ended while it was started"
        if problem:
            then = self._plan(name)
            self._note("died", f"{problem}; {then}" if then else problem, name)
        self._on_tried()
