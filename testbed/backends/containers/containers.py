"""The agent containers of a run: starts, watches and ends them, in place of a fork server.

A container starts the launcher, which imports what an agent needs and then opens a FIFO. Then its
process is moved into the control groups of the device, from outside, and receives its parameters:
a device does not slow the start of its interpreter, as it does not slow a fork. The control group
of the quota is mounted into the container, for the pace of compute sections.
"""

import errno
import os
import signal
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup

from fairbed.testbed.backends.agents import STOP_TIMEOUT_S
from fairbed.testbed.backends.containers.cleanup import removed_at_end, sweep
from fairbed.testbed.backends.containers.engine import LIMITS, ContainerEngine
from fairbed.testbed.backends.helper import ANSWER_TIMEOUT_S, HelperEnded, OnEnd
from fairbed.testbed.backends.launcher import Launch
from fairbed.testbed.backends.sandbox import Sandbox, admit
from fairbed.testbed.errors import BackendError

AT_ONCE = 4
"""Containers that start at the same time; each takes some 0.1 s of processor time in podman."""

QUOTA_INSIDE = "/run/fairbed/quota"
"""Path inside a container of the control group that has its quota."""

POLL_S = 0.01
"""Interval of attempts to open the FIFO of a launcher, seconds."""


@dataclass(slots=True)
class _RunningContainer:
    pid: int
    """Process id of the container's first process, outside of the container."""
    ended: anyio.Event
    """Set when the container has ended."""
    is_ending: bool = False
    """Whether the backend has requested its end."""


class Containers:
    """Starts agents in containers and tracks them; see `open_containers`.

    Args:
        engine: Runs the containers.
        names: Name of the container of each device.
        folder: Folder of the run, mounted into each container.
        tasks: Task group for the tasks that watch the containers.
        on_end: Called for every agent that ends.
    """

    def __init__(
        self,
        engine: ContainerEngine,
        names: Mapping[str, str],
        folder: Path,
        tasks: TaskGroup,
        on_end: OnEnd,
    ) -> None:
        self._engine, self._names, self._folder = engine, names, folder
        self._tasks, self._on_end = tasks, on_end
        self._running: dict[str, _RunningContainer] = {}
        self._limiter = anyio.CapacityLimiter(AT_ONCE)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the agents that are alive."""
        return {name: container.pid for name, container in self._running.items()}

    async def start(self, launches: Sequence[Launch]) -> None:
        """Start agents, some at a time; return when each is in its control groups.

        Raises:
            BackendError: podman cannot start a container, or its launcher ended at once.
        """
        problems: list[BackendError] = []

        async def start(launch: Launch) -> None:
            try:
                await self._start(launch)
            except BackendError as exc:
                problems.append(exc)

        async with anyio.create_task_group() as tasks:
            for launch in launches:
                tasks.start_soon(start, launch, name=f"container[{launch.agent.name}]")
        if problems:
            raise problems[0]

    async def end(self, names: Iterable[str], number: int) -> None:
        """Send a signal to the agents that are alive; return when they have ended.

        Raises:
            BackendError: An agent does not end.
        """
        requested = {name: self._running[name] for name in names if name in self._running}
        for container in requested.values():
            container.is_ending = True
            _send(container.pid, number)
        with anyio.move_on_after(ANSWER_TIMEOUT_S) as scope:
            for container in requested.values():
                await container.ended.wait()
        if scope.cancelled_caught:
            left = next(
                name for name, container in requested.items() if not container.ended.is_set()
            )
            raise BackendError(
                f"{left}: must end within {ANSWER_TIMEOUT_S:.0f} s of signal {number}; "
                f"{self._advice}"
            )

    async def signal(self, names: Iterable[str], number: int) -> None:
        """Send a signal to the agents that are alive; return at once."""
        for name in names:
            if name in self._running:
                _send(self._running[name].pid, number)

    async def close(self) -> None:
        """End all agents, by SIGTERM, then by SIGKILL."""
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(STOP_TIMEOUT_S):
                await self.end(list(self._running), signal.SIGTERM)
            with suppress(BackendError):  # `removed_at_end` removes the rest
                await self.end(list(self._running), signal.SIGKILL)

    async def _start(self, launch: Launch) -> None:
        name, sandbox = launch.agent.name, launch.sandbox
        assert sandbox is not None
        async with self._limiter:
            pipe = self._folder / f"{name}.pipe"
            pipe.unlink(missing_ok=True)
            try:
                os.mkfifo(pipe, 0o600)
                await self._run(name, sandbox, pipe)
                inside = msgspec.structs.replace(
                    sandbox, procs=(), network=None, quota_folder=QUOTA_INSIDE
                )
                await self._admit(
                    name, sandbox, pipe, msgspec.structs.replace(launch, sandbox=inside)
                )
            except OSError as exc:
                raise BackendError(f"{name}: cannot send its parameters, {exc}") from exc
            finally:
                pipe.unlink(missing_ok=True)

    async def _run(self, name: str, sandbox: Sandbox, pipe: Path) -> None:
        """Start a container, in place of an earlier one of the device."""
        engine, called = self._engine, self._names[name]
        found = pipe.with_suffix(".pid")
        await engine(
            "run",
            "--detach",
            f"--name={called}",
            "--replace",
            f"--pidfile={found}",
            f"--network=ns:{sandbox.network}",
            "--no-hosts",
            "--log-driver=none",
            "--workdir=/",
            *LIMITS,
            *engine.mounts,
            f"--volume={self._folder}:{self._folder}",
            f"--volume={sandbox.quota_folder}:{QUOTA_INSIDE}",
            *engine.source,
            engine.python,
            *("-m", "fairbed.testbed.backends.launcher", "0", str(pipe)),
        )
        try:
            pid = int(found.read_text(encoding="utf-8"))
            descriptor = os.pidfd_open(pid)
        except (OSError, ValueError) as exc:
            raise BackendError(
                f"{name}: its container must stay running, got: {exc}; {self._advice}"
            ) from exc
        finally:
            found.unlink(missing_ok=True)
        self._running[name] = _RunningContainer(pid, anyio.Event())
        self._tasks.start_soon(self._watch, name, descriptor, name=f"watch[{name}]")

    async def _admit(self, name: str, sandbox: Sandbox, pipe: Path, launch: Launch) -> None:
        """Move a launcher that reads its FIFO into its control groups, and send its parameters."""
        with anyio.move_on_after(ANSWER_TIMEOUT_S):
            while name in self._running:
                descriptor = _opened(pipe)
                if descriptor is not None:
                    try:
                        admit(self._running[name].pid, sandbox)
                        os.write(descriptor, msgspec.json.encode(launch) + b"\n")
                    finally:
                        os.close(descriptor)
                    return
                await anyio.sleep(POLL_S)
        raise BackendError(f"{name}: its container must start the launcher; {self._advice}")

    async def _watch(self, name: str, descriptor: int) -> None:
        container = self._running[name]
        try:
            await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        del self._running[name]
        status = await self._status(name)
        container.ended.set()
        self._on_end(
            HelperEnded(name=name, status=status, was_requested=container.is_ending, is_device=True)
        )

    async def _status(self, name: str) -> int:
        """Return the exit status of an agent, minus the signal number if a signal killed it."""
        with anyio.CancelScope(shield=True):
            try:
                status = int(await self._engine("wait", self._names[name]))
            except BackendError:  # the container was removed already
                return -signal.SIGKILL
        return 128 - status if status > 128 else status

    _advice = "see logs/podman.log in the run's folder"


@asynccontextmanager
async def open_containers(
    engine: ContainerEngine, names: Mapping[str, str], folder: Path, on_end: OnEnd
) -> AsyncIterator[Containers]:
    """Run agents in containers; leaving removes all of them.

    Leftovers of dead runs are removed first.

    Args:
        engine: Runs the containers.
        names: Name of the container of each device.
        folder: Folder of the run, mounted into each container.
        on_end: Called for every agent that ends.

    Raises:
        BackendError: podman fails.
    """
    await sweep(engine)
    log = folder / "logs" / "podman.log"
    async with (
        removed_at_end(engine, list(names.values()), log),
        anyio.create_task_group() as tasks,
    ):
        containers = Containers(engine, names, folder, tasks, on_end)
        try:
            yield containers
        finally:
            await containers.close()
            tasks.cancel_scope.cancel()


def _opened(pipe: Path) -> int | None:
    """Open a FIFO to write; None if no process has opened it to read."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as exc:
        if exc.errno != errno.ENXIO:
            raise
        return None


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
