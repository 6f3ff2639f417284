"""Client of the fork server: starts agent processes, tracks them by name, ends them."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from fairbed.testbed.backends.fork_protocol import (
    Exited,
    NotStarted,
    Reply,
    Request,
    Signal,
    Start,
    Started,
)
from fairbed.testbed.backends.helper import (
    ANSWER_TIMEOUT_S,
    HelperEnded,
    OnEnd,
    end_helper,
    open_helper,
)
from fairbed.testbed.backends.launcher import Launch
from fairbed.testbed.errors import BackendError

if sys.version_info >= (3, 11):
    from typing import assert_never
else:
    from typing_extensions import assert_never

STOP_TIMEOUT_S = 1.5
"""Time for agents to disconnect and end after SIGTERM, seconds; then they are killed."""

MAX_LINE_BYTES = 1 << 16
"""Longest reply of the fork server."""


@dataclass(slots=True)
class _Agent:
    pid: int | None = None
    """None before the start and after the end."""
    has_started: bool = False
    refusal: str | None = None
    """Why the agent could not be started."""
    is_ending: bool = False
    """Whether this process has requested its end."""


class AgentProcesses:
    """The agents that a fork server has started; see `open_agents`."""

    def __init__(self, fork_server: Process, on_end: OnEnd) -> None:
        self._fork_server, self._on_end = fork_server, on_end
        self._agents: dict[str, _Agent] = {}
        self._changed = anyio.Event()
        self._sending = anyio.Lock()
        self._is_closing = False
        self._is_lost = False

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the agents that are alive."""
        return {name: agent.pid for name, agent in self._agents.items() if agent.pid is not None}

    async def start(self, launches: Sequence[Launch]) -> None:
        """Start agents, all at once; return when every process exists.

        Raises:
            BackendError: An agent cannot be started, or the fork server has ended or does not
                reply.
        """
        requested = {launch.agent.name: _Agent() for launch in launches}
        self._agents.update(requested)
        await self._request([Start(launch=launch) for launch in launches])
        await self._until(lambda: all(a.has_started or a.refusal for a in requested.values()))
        for name, agent in requested.items():
            if agent.refusal is not None:
                raise BackendError(f"{name}: cannot be started, {agent.refusal}; use fewer devices")

    async def end(self, names: Iterable[str], number: int) -> None:
        """Send a signal to the agents that are alive; return when they have ended.

        Raises:
            BackendError: The fork server has ended or does not reply.
        """
        requested = [name for name in names if name in self.pids]
        for name in requested:
            self._agents[name].is_ending = True
        await self._request([Signal(name=name, number=number) for name in requested])
        await self._until(lambda: not any(name in self.pids for name in requested))

    async def signal(self, names: Iterable[str], number: int) -> None:
        """Send a signal to the agents that are alive; return at once.

        Raises:
            BackendError: The fork server has ended or does not reply.
        """
        requested = [name for name in names if name in self.pids]
        if requested:
            await self._request([Signal(name=name, number=number) for name in requested])

    async def listen(self) -> None:
        """Read the replies of the fork server until it ends."""
        assert self._fork_server.stdout is not None
        lines = BufferedByteReceiveStream(self._fork_server.stdout)
        decoder = msgspec.json.Decoder(Reply)
        try:
            while True:
                self._handle(decoder.decode(await lines.receive_until(b"\n", MAX_LINE_BYTES)))
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            status = await self._fork_server.wait()
        self._is_lost = True
        for agent in self._agents.values():
            agent.pid = None  # agents end with the fork server
        self._notify()
        self._on_end(
            HelperEnded(
                name="fork server", status=status, was_requested=self._is_closing, is_device=False
            )
        )

    async def close(self) -> None:
        """End all agents, by SIGTERM, then by SIGKILL."""
        self._is_closing = True
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(STOP_TIMEOUT_S):
                with suppress(BackendError):  # the fork server has ended, and all agents with it
                    await self.end(list(self.pids), signal.SIGTERM)
            await end_helper(self._fork_server, signal.SIGKILL)

    def _handle(self, reply: Reply) -> None:
        agent = self._agents[reply.name]
        match reply:
            case Started(pid=pid):
                agent.pid, agent.has_started = pid, True
            case NotStarted(reason=reason):
                agent.refusal = reason
            case Exited(name=name, status=status):
                agent.pid = None
                self._on_end(
                    HelperEnded(
                        name=name, status=status, was_requested=agent.is_ending, is_device=True
                    )
                )
            case _:
                assert_never(reply)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        with anyio.move_on_after(ANSWER_TIMEOUT_S):
            while not is_so():
                if self._is_lost:
                    raise BackendError(f"fork server: ended unexpectedly; {self._advice}")
                await self._changed.wait()
            return
        raise BackendError(
            f"fork server: must reply within {ANSWER_TIMEOUT_S:.0f} s; {self._advice}"
        )

    _advice = "see logs/fork-server.log in the run's folder"

    async def _request(self, requests: Iterable[Request]) -> None:
        assert self._fork_server.stdin is not None
        lines = b"".join(msgspec.json.encode(request) + b"\n" for request in requests)
        try:
            with anyio.fail_after(ANSWER_TIMEOUT_S):
                async with self._sending:
                    await self._fork_server.stdin.send(lines)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError) as exc:
            raise BackendError(f"fork server: accepts no more requests; {self._advice}") from exc


Method: TypeAlias = Literal["auto", "fork", "spawn"]
"""How a fork server starts agents; auto forks on Linux, where that is safe."""


@asynccontextmanager
async def warm_fork_server(logs: Path, method: Method = "auto") -> AsyncIterator[Process]:
    """Start a fork server, which imports what agents need; leaving ends it.

    Args:
        logs: Folder that receives its output.
        method: How it starts agents.

    Raises:
        BackendError: It cannot be started.
    """
    if method == "auto":
        method = "fork" if sys.platform == "linux" else "spawn"
    try:
        os.makedirs(logs, exist_ok=True)
        log = logs / "fork-server.log"
        process = await open_helper("fairbed.testbed.backends.fork_server", method, log=log)
    except OSError as exc:
        raise BackendError(f"fork server: cannot be started, {exc}; end other processes") from exc
    try:
        yield process
    finally:
        await end_helper(process, signal.SIGKILL)


@asynccontextmanager
async def open_agents(fork_server: Process, on_end: OnEnd) -> AsyncIterator[AgentProcesses]:
    """Use a fork server; leaving ends it and all its agents.

    Args:
        fork_server: It may be importing still.
        on_end: Called for every process that ends.
    """
    agents = AgentProcesses(fork_server, on_end)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agents.listen, name="backend.fork-server")
        try:
            yield agents
        finally:
            await agents.close()
