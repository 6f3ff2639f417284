"""Runs the guest and stands in for it: what is sent to us goes to it, what becomes of it to us.

Guest and we are one process group, so that it keeps the terminal, and its place in a pipeline:

    Ctrl-C, Ctrl-Z, a closed terminal    the kernel tells the guest itself; we take note
    kill of our process id               passed on
    the guest stops (Ctrl-Z)             we stop too, so that the shell has its prompt back
    the guest ends                       so do we, with its status or by its signal
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress

import anyio

from fairbed.testbed.errors import BackendError
from fairbed.testbed.shape.pacer import Pacer
from fairbed.testbed.shape.signals import Sent, Signals, stop_ourselves


class ShapedProcess:
    """One command; `run` it once."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._pid: int | None = None
        self._status: int | None = None
        self._is_over = anyio.Event()
        self.interrupted_by: int | None = None
        """A signal that came while there was no guest."""
        self.pacer: Pacer | None = None
        """Who stops the guest all the time: its stops are nobody else's business then."""

    @property
    def has_begun(self) -> bool:
        """It was started, whatever became of it."""
        return self._pid is not None or self._status is not None

    def start(self, argv: list[str], environ: Mapping[str, str]) -> int:
        """Start it, return its process id; all that is inherited, it inherits.

        To be called from the main thread: that one's death is the guest's.

        Raises:
            BackendError: The machine refused.
        """
        try:
            self._pid = pid = os.posix_spawn(argv[0], argv, environ)
        except OSError as exc:
            raise BackendError(f"{argv[0]}: cannot be started, {exc.strerror}") from exc
        return pid

    async def end(self) -> int:
        """Wait for its end; return its status as `os.waitpid` tells it."""
        await self._is_over.wait()
        assert self._status is not None
        return self._status

    def kill(self) -> None:
        """End it at once."""
        self._send(signal.SIGKILL)

    async def attend(self, cancel: anyio.CancelScope) -> None:
        """Pass signals on for ever.

        Args:
            cancel: Cancelled by a signal that asks us to end while there is no guest.
        """
        while True:
            sent = await self._signals.receive()
            if sent.number == signal.SIGCHLD:
                self._look()
            elif self._pid is not None:
                self._pass_on(sent)
            elif sent.number == signal.SIGTSTP:
                stop_ourselves()
            elif sent.number != signal.SIGCONT and self._status is None:
                self.interrupted_by = sent.number
                cancel.cancel()

    def _pass_on(self, sent: Sent) -> None:
        if self.pacer is not None and sent.number == signal.SIGTSTP:
            with suppress(BackendError):  # who paces finds the same, and says it
                self.pacer.suspend()
            return
        is_its_own = sent.is_from_kernel or sent.sender == self._pid
        if not is_its_own or sent.number == signal.SIGCONT:
            self._send(sent.number)

    def _send(self, number: int) -> None:
        if self._pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, number)

    def _look(self) -> None:
        """See what has become of it; a SIGCHLD may stand for several changes, or for others."""
        while self._pid is not None:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if not os.WIFSTOPPED(status):
                self._pid, self._status = None, status
                self._is_over.set()
            elif self.pacer is None:
                stop_ourselves()
