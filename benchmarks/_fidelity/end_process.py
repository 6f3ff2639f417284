"""Starts measuring ends, and gives them end_commands."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, cast

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks._fidelity.end_commands import Command, Failed, Replies
from fairbed.testbed.backends.helper import end_helper, open_helper
from fairbed.testbed.backends.sandbox import Sandbox
from fairbed.testbed.errors import BackendError

MODULE = "benchmarks._fidelity.end"

MAX_ANSWER_BYTES = 1 << 26
"""A minute of arrivals, one a millisecond, takes 2 MB."""

A = TypeVar("A", bound=Replies)
T = TypeVar("T")
U = TypeVar("U")


class EndError(BackendError):
    """A measuring end could not do as it was told."""


class EndPipe:
    """One measuring end; made by `open_end`."""

    def __init__(self, process: Process, log: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._stdin, self._log = process.stdin, log
        self._stdout = BufferedByteReceiveStream(process.stdout)
        self._lock = anyio.Lock()
        self._is_lost = False
        """It owes an answer: the next one would be that to an earlier command."""

    async def request(self, command: Command, kind: type[A], within_s: float = 60.0) -> A:
        """Have an command carried out.

        Args:
            command: What to do.
            kind: Of the answer.
            within_s: For all of it.

        Raises:
            EndError: It was not carried out in time, or the end is gone.
        """
        async with self._lock:
            if self._is_lost:
                raise EndError("fidelity: an end did not answer before")
            self._is_lost = True
            try:
                with anyio.fail_after(within_s):
                    await self._stdin.send(msgspec.json.encode(command) + b"\n")
                    line = await self._stdout.receive_until(b"\n", MAX_ANSWER_BYTES)
            except (
                OSError,
                TimeoutError,
                anyio.BrokenResourceError,
                anyio.EndOfStream,
                anyio.IncompleteRead,
            ) as exc:
                raise EndError(
                    f"fidelity: an end must answer, got {exc!r}; {self._said()}"
                ) from exc
        self._is_lost = False
        answer = msgspec.json.decode(line, type=Replies)
        if isinstance(answer, Failed):
            raise EndError(f"fidelity: {answer.reason}")
        assert isinstance(answer, kind)
        return answer

    def _said(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"


async def both(one: Awaitable[T], other: Awaitable[U]) -> tuple[T, U]:
    """Have two things done at the same time; return when both are.

    Raises:
        BackendError: One of them could not be done.
    """
    done: dict[int, T | U] = {}
    problems: list[BackendError] = []

    async def wait(index: int, spec: Awaitable[T] | Awaitable[U]) -> None:
        try:
            done[index] = await spec
        except BackendError as exc:
            problems.append(exc)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, 0, one)
        tasks.start_soon(wait, 1, other)
    if problems:
        raise problems[0]
    return cast(T, done[0]), cast(U, done[1])


@asynccontextmanager
async def open_end(
    log: Path, sandbox: Sandbox | None = None, *, is_instrument: bool = False
) -> AsyncIterator[EndPipe]:
    """Keep a measuring end at work, inside a device or outside.

    Outside it is an instrument and goes before others; a device does not.

    Raises:
        OSError: The machine refuses a process.
    """
    if is_instrument:
        process = await open_helper(MODULE, "first", log=log)
    elif sandbox is None:
        process = await open_helper(MODULE, log=log)
    else:
        argv = (sys.executable, "-m", MODULE, str(os.getpid()))
        told = msgspec.json.encode(sandbox).decode()
        process = await open_helper("fairbed.testbed.backends.sandbox", told, *argv, log=log)
    try:
        yield EndPipe(process, log)
    finally:
        await end_helper(process, signal.SIGKILL)
