"""The process of the command: forwards signals to it, and mirrors its stops and its end.

The command is in the process group of `fairbed shape`, so that it keeps the terminal and its place
in a pipeline:

    Ctrl-C, Ctrl-Z, a closed terminal    the kernel signals the command itself
    a signal to this process id          is forwarded to the command
    the command stops (Ctrl-Z)           this process stops too, and the shell shows its prompt
    the command ends                     this process ends with the same status or signal
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress

import anyio

from fairbed.testbed.errors import BackendError
from fairbed.testbed.shape.pacer import Pacer
from fairbed.testbed.shape.signals import ReceivedSignal, Signals, stop_this_process


class ShapedProcess:
    """One command; `start` it once."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._pid: int | None = None
        self._status: int | None = None
        self._is_over = anyio.Event()
        self.interrupted_by: int | None = None
        """Signal that arrived before the command was started."""
        self.pacer: Pacer | None = None
        """Slows the command by stopping it; with a pacer, its stops do not stop this process."""

    @property
    def has_begun(self) -> bool:
        """Whether the command was started; it may have ended."""
        return self._pid is not None or self._status is not None

    def start(self, argv: list[str], environ: Mapping[str, str]) -> int:
        """Start the command with the open descriptors of this process; return its process id.

        Call it from the main thread: the command is killed when that thread ends.

        Raises:
            BackendError: The command cannot be started.
        """
        try:
            self._pid = pid = os.posix_spawn(argv[0], argv, environ)
        except OSError as exc:
            raise BackendError(f"{argv[0]}: cannot be started, {exc.strerror}") from exc
        return pid

    async def wait(self) -> int:
        """Wait for the end of the command; return its status in the form of `os.waitpid`."""
        await self._is_over.wait()
        assert self._status is not None
        return self._status

    def kill(self) -> None:
        """Send SIGKILL to the command."""
        self._send(signal.SIGKILL)

    async def forward_signals(self, cancel: anyio.CancelScope) -> None:
        """Forward signals until cancelled.

        Args:
            cancel: Cancelled when a terminating signal arrives before the command was started.
        """
        while True:
            sent = await self._signals.receive()
            if sent.number == signal.SIGCHLD:
                self._update_status()
            elif self._pid is not None:
                self._forward(sent)
            elif sent.number == signal.SIGTSTP:
                stop_this_process()
            elif sent.number != signal.SIGCONT and self._status is None:
                self.interrupted_by = sent.number
                cancel.cancel()

    def _forward(self, sent: ReceivedSignal) -> None:
        if self.pacer is not None and sent.number == signal.SIGTSTP:
            with suppress(BackendError):  # the pacer raises the same error
                self.pacer.suspend()
            return
        is_received = sent.is_from_kernel or sent.sender == self._pid
        if not is_received or sent.number == signal.SIGCONT:
            self._send(sent.number)

    def _send(self, number: int) -> None:
        if self._pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, number)

    def _update_status(self) -> None:
        """Read the status; one SIGCHLD may stand for several changes, or for other children."""
        while self._pid is not None:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if not os.WIFSTOPPED(status):
                self._pid, self._status = None, status
                self._is_over.set()
            elif self.pacer is None:
                stop_this_process()
