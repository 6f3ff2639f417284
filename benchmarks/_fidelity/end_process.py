"""Starts measuring ends, and sends them commands."""

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
"""Limit of a reply: a minute of arrivals, one per millisecond, takes 2 MB."""

A = TypeVar("A", bound=Replies)
T = TypeVar("T")
U = TypeVar("U")


class EndError(BackendError):
    """A measuring end could not execute a command."""


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
        """A reply is missing: the next one would belong to an earlier command."""

    async def request(self, command: Command, kind: type[A], within_s: float = 60.0) -> A:
        """Send a command and return its reply.

        Args:
            command: The command.
            kind: Type of the reply.
            within_s: Time limit, seconds.

        Raises:
            EndError: The command failed or timed out, or the end has ended.
        """
        async with self._lock:
            if self._is_lost:
                raise EndError("fidelity: an end must reply to every command, one reply is missing")
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
                    f"fidelity: an end must reply, got {exc!r}; its log: {self._last_line()}"
                ) from exc
        self._is_lost = False
        reply = msgspec.json.decode(line, type=Replies)
        if isinstance(reply, Failed):
            raise EndError(f"fidelity: {reply.reason}")
        assert isinstance(reply, kind)
        return reply

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace", encoding="utf-8").splitlines()
        return lines[-1] if lines else "empty"


async def both(one: Awaitable[T], other: Awaitable[U]) -> tuple[T, U]:
    """Run two awaitables concurrently; return both results.

    Raises:
        BackendError: One of them failed.
    """
    done: dict[int, T | U] = {}
    problems: list[BackendError] = []

    async def wait(index: int, awaitable: Awaitable[T] | Awaitable[U]) -> None:
        try:
            done[index] = await awaitable
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
    """Run a measuring end, inside a device or outside.

    Outside it is an instrument with raised priority; inside a device it has none.

    Raises:
        OSError: The machine refuses a process.
    """
    if is_instrument:
        process = await open_helper(MODULE, "first", log=log)
    elif sandbox is None:
        process = await open_helper(MODULE, log=log)
    else:
        argv = (sys.executable, "-m", MODULE, str(os.getpid()))
        encoded = msgspec.json.encode(sandbox).decode()
        process = await open_helper("fairbed.testbed.backends.sandbox", encoded, *argv, log=log)
    try:
        yield EndPipe(process, log)
    finally:
        await end_helper(process, signal.SIGKILL)
