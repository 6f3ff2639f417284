"""Long-running `ip` and `tc` processes inside the hub; a change is a line that costs microseconds.

Neither program acknowledges a line, so each batch ends with a fence: an invalid line with a number.
The error about the fence on stderr means that all lines before it were executed; earlier output
has their errors.
"""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from fairbed.testbed.backends.helper import ANSWER_TIMEOUT_S, end_helper
from fairbed.testbed.errors import BackendError

LINES_AT_ONCE = 200
"""Lines between two fences. An error takes up to 300 bytes and a pipe holds 64 KiB, so the program
never blocks on stderr while this process waits for it."""

MAX_ERROR_BYTES = 1 << 14
"""Longest line on stderr."""

MAX_LISTED = 3
"""Errors of one batch that are listed in the exception."""


class BatchPipe:
    """One running `ip` or `tc`; see `open_batch_pipe`."""

    def __init__(self, program: str, process: Process) -> None:
        assert process.stdin is not None
        assert process.stderr is not None
        self._program, self._process = program, process
        self._stdin = process.stdin
        self._stderr = BufferedByteReceiveStream(process.stderr)
        self._n_fences = 0
        self._n_lines = 0
        self._errors: list[str] = []
        """Lines on stderr since the last failure."""
        self._lock = anyio.Lock(fast_acquire=True)

    @property
    def pid(self) -> int:
        """Process id of the program, which is in the hub."""
        return self._process.pid

    async def run(self, lines: Sequence[str]) -> None:
        """Run lines in order; return when all are in effect.

        Lines after a failed one are run too. Cancellation does not interrupt it, so that no line is
        written in part.

        Raises:
            BackendError: The kernel refused a line, or the program has ended.
        """
        if not lines:
            return
        failures: list[str] = []
        async with self._lock:
            try:
                with anyio.CancelScope(shield=True), anyio.fail_after(ANSWER_TIMEOUT_S):
                    for start in range(0, len(lines), LINES_AT_ONCE):
                        failures += await self._run_some(lines[start : start + LINES_AT_ONCE])
            except (
                OSError,
                TimeoutError,
                anyio.BrokenResourceError,
                anyio.ClosedResourceError,
                anyio.EndOfStream,
                anyio.IncompleteRead,
                anyio.DelimiterNotFound,
            ) as exc:
                why = self._errors[-1] if self._errors else repr(exc)
                raise BackendError(
                    f"network: {self._program} must stay alive and reply, got {why}; "
                    "check whether it was killed"
                ) from exc
        if failures:
            more = f" (and {len(failures) - MAX_LISTED} more)" if len(failures) > MAX_LISTED else ""
            raise BackendError(f"network: {'; '.join(failures[:MAX_LISTED])}{more}")

    async def _run_some(self, lines: Sequence[str]) -> list[str]:
        self._n_fences += 1
        fence = f"fence-{self._n_fences}"
        first = self._n_lines + 1
        self._n_lines += len(lines) + 1
        await self._stdin.send("\n".join([*lines, fence, ""]).encode())
        failures: list[str] = []
        while True:
            line = await self._stderr.receive_until(b"\n", MAX_ERROR_BYTES)
            text = line.decode(errors="replace").strip()
            if not text.startswith("Command failed -:"):
                self._errors.append(text)
                continue
            failed = int(text.rpartition(":")[2]) - first
            if failed >= len(lines):  # the fence
                self._errors.clear()
                return failures
            failures.append(f"{self._program} {lines[failed]}: {' '.join(self._errors)}")
            self._errors.clear()


@asynccontextmanager
async def open_batch_pipe(
    program: Literal["ip", "tc"], namespace: Path, host: str
) -> AsyncIterator[BatchPipe]:
    """Keep a program running inside a namespace.

    Args:
        program: The program.
        namespace: Path of the namespace.
        host: `identity` of the host's namespace, which is refused.

    Raises:
        BackendError: The program cannot be started.
    """
    inside = [
        sys.executable,
        "-m",
        "fairbed.testbed.backends.network.enter",
        str(os.getpid()),
        host,
    ]
    try:
        process = await anyio.open_process(
            [*inside, str(namespace), "--", program, "-force", "-batch", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as exc:
        raise BackendError(
            f"network: {program} cannot be started, {exc!r}; end other processes"
        ) from exc
    try:
        yield BatchPipe(program, process)
    finally:
        await end_helper(process, signal.SIGKILL)
