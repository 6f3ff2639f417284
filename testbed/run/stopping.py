"""End a run before its last round: on a signal, a closed standard input or a dead process."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import anyio

from fairbed.coordinator.server.service import Coordinator
from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.termination import STOPPING

DETACH = b"d"
"""Written by a TUI to the standard input of its run before it detaches."""


class StopControl:
    """Ends the run gracefully, or with the failure of a part of the testbed."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.coordinator: Coordinator | None = None
        self.failure: Exception | None = None

    def end_gracefully(self) -> None:
        """End the run: the open round is lost, the store is closed."""
        if self.coordinator is not None:
            self.coordinator.stop()
        else:
            self.scope.cancel()

    def on_process_end(self, ended: HelperEnded, then: str = "") -> None:
        """Record the end of a device; end the run if it was a proxy or the fork server.

        Args:
            ended: The process.
            then: What follows, such as a restart; may be empty.
        """
        if ended.was_requested:
            return
        how = f"signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"
        if ended.is_device:
            why = "" if ended.reason is None else f": {ended.reason}"
            text = f"the agent ended with {how}{why}; see its log"
            self.note("died", f"{text}; {then}" if then else text, ended.name)
        else:
            why = ended.reason or f"{ended.name}: ended with {how}; the fleet is lost"
            self.fail(BackendError(why))

    def note(self, kind: str, text: str, device: str | None = None) -> None:
        """Record a warning about a part of the testbed."""
        if self.coordinator is not None:
            self.coordinator.note(kind, text, "warning", device)

    def fail(self, why: Exception) -> None:
        """End the run because of an error; a later one is its consequence."""
        self.failure = self.failure or why
        self.end_gracefully()


@contextmanager
def ended_by_signals(stop: StopControl, interrupted: Callable[[], None]) -> Iterator[None]:
    """End the run gracefully at the first signal, immediately at the second.

    For a command: enter it in an event loop of the main thread. After it the signals do nothing:
    the run has ended, and its process is about to, with the status of the run; a process that goes
    on restores them (`signals_restored`). Handlers of the event loop would leave their default
    action behind, which ends a process that fails or closes with -15.
    """
    loop, count = asyncio.get_running_loop(), 0

    def end() -> None:
        nonlocal count
        count += 1
        interrupted()
        if count == 1:
            stop.end_gracefully()
        else:
            stop.scope.cancel()

    for number in STOPPING:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(end))
    try:
        yield
    finally:
        for number in STOPPING:
            signal.signal(number, _ignore)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Handle a signal; unlike `SIG_IGN`, programs that are started later do not inherit it."""


async def watch_stdin(stop: StopControl) -> None:
    """End the run gracefully when standard input ends, unless `DETACH` was read before."""
    while True:
        await anyio.wait_readable(sys.stdin.fileno())
        data = os.read(sys.stdin.fileno(), 16)
        if data.startswith(DETACH):
            return
        if not data:
            stop.end_gracefully()
            return
