"""Starts the proxy processes, changes their links while they run, and lists the device ports."""

import mmap
import signal
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from fairbed.testbed.backends.helper import (
    ANSWER_TIMEOUT_S,
    HelperEnded,
    OnEnd,
    end_helper,
    open_helper,
)
from fairbed.testbed.backends.proxy.protocol import (
    ChangeReply,
    LinkState,
    Membership,
    ProxySpec,
    Shape,
)
from fairbed.testbed.emulation.cell import DeviceCells
from fairbed.testbed.errors import BackendError

DEVICES_PER_PROCESS = 50
"""A proxy process takes about 1 % of a core per Mbit/s of traffic."""

MAX_LINE_BYTES = 1 << 16
"""Longest reply: 50 names with their ports take 2 kB."""

_PIPE_ERRORS = (
    OSError,
    TimeoutError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    anyio.IncompleteRead,
)


class _ProxyProcess:
    def __init__(self, name: str, spec: ProxySpec, log: Path, on_end: OnEnd) -> None:
        self._name, self._spec, self._log, self._on_end = name, spec, log, on_end
        self._process: Process | None = None
        self._replies: BufferedByteReceiveStream | None = None
        self._is_closing = False
        self._n_unread = 0
        """Replies not read yet, more than one if the caller of a request was cancelled."""
        self.ports: dict[str, int] = {}

    async def open(self) -> None:
        try:
            self._process = await open_helper(
                "fairbed.testbed.backends.proxy.server", log=self._log
            )
            assert self._process.stdout is not None
            self._replies = BufferedByteReceiveStream(self._process.stdout)
            await self._send(msgspec.json.encode(self._spec))
            reply = await self._receive()
        except _PIPE_ERRORS as exc:
            raise BackendError(
                f"{self._name}: cannot be started, {exc!r}; see {self._log}"
            ) from exc
        self.ports = msgspec.json.decode(reply, type=dict[str, int])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def send_changes(self, states: Mapping[str, LinkState]) -> None:
        try:
            await self._send(msgspec.json.encode(states))
        except _PIPE_ERRORS as exc:
            raise self._lost(exc) from exc

    async def receive_lateness_s(self) -> float:
        """Return the largest lateness of the process since the last request, seconds."""
        try:
            return msgspec.json.decode(await self._receive(), type=ChangeReply).late_s
        except _PIPE_ERRORS as exc:
            raise self._lost(exc) from exc

    async def watch(self) -> None:
        assert self._process is not None
        status = await self._process.wait()
        self._on_end(
            HelperEnded(
                name=self._name, status=status, was_requested=self._is_closing, is_device=False
            )
        )

    async def close(self) -> None:
        self._is_closing = True
        if self._process is not None:
            await end_helper(self._process, signal.SIGKILL)

    def _lost(self, exc: BaseException) -> BackendError:
        return BackendError(
            f"{self._name}: must accept changes and reply, got {exc!r}; see {self._log}"
        )

    async def _send(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._n_unread += 1
        with anyio.fail_after(ANSWER_TIMEOUT_S):
            await self._process.stdin.send(line + b"\n")

    async def _receive(self) -> bytes:
        """Return the reply to the last request; skip older replies."""
        assert self._replies is not None
        reply = b""
        with anyio.fail_after(ANSWER_TIMEOUT_S):
            while self._n_unread:
                reply = await self._replies.receive_until(b"\n", MAX_LINE_BYTES)
                self._n_unread -= 1
        return reply


class ShapedLinks:
    """The links of a fleet, shaped by proxy processes; see `shaped_links`."""

    def __init__(self, processes: list[_ProxyProcess], waits: Mapping[str, "_Wait"]) -> None:
        self._processes, self._waits = processes, waits
        self._lock = anyio.Lock()
        self.late_s = 0.0
        """Largest lateness of any process at the last change, seconds."""

    def path(self, name: str) -> list[int]:
        """Return the process id of the proxy of a device, if it has one."""
        return [process.pid for process in self._processes if name in process.ports]

    @property
    def ports(self) -> dict[str, int]:
        """Port at which each device reaches the broker."""
        return {name: port for process in self._processes for name, port in process.ports.items()}

    def counted(self, name: str) -> Mapping[str, float]:
        """Return what was counted of a device so far, by column of the exchange."""
        wait = self._waits.get(name)
        return {} if wait is None else {"cell_wait_s": wait.seconds[wait.number]}

    async def change(self, states: Mapping[str, LinkState]) -> None:
        """Change links; return when all changes are in effect.

        Raises:
            BackendError: A process has ended or does not reply.
        """
        async with self._lock:  # so that each reply belongs to its request
            changed = []
            for process in self._processes:
                own = {name: states[name] for name in process.ports if name in states}
                if own:
                    await process.send_changes(own)
                    changed.append(process)
            self.late_s = max(
                [await process.receive_lateness_s() for process in changed], default=0.0
            )


class _Wait(NamedTuple):
    """Place of the time that a device has lost to others of its cell."""

    seconds: "memoryview[float]"
    number: int


def _map_waits(path: Path, names: Sequence[str]) -> dict[str, _Wait]:
    """Create a file with a double for each device; return the places in it."""
    path.write_bytes(bytes(8 * len(names)))
    with path.open("r+b") as file:
        seconds = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
    return {name: _Wait(seconds, number) for number, name in enumerate(names)}


def devices_by_process(names: Iterable[str], cells: DeviceCells) -> list[list[str]]:
    """Return the devices of each process: at most `DEVICES_PER_PROCESS`, or one more cell.

    One process must know all transfers of a cell, and of the cells behind the same line.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        path = cells.get(name, ((), 0))[0]
        groups.setdefault(f"cell {path[-1].name}" if path else name, []).append(name)
    found = list[list[str]]()
    for group in groups.values():
        if not found or len(found[-1]) + len(group) > DEVICES_PER_PROCESS:
            found.append([])
        found[-1] += group
    return found


@asynccontextmanager
async def shaped_links(
    host: str,
    port: int,
    shapes: Mapping[str, Shape],
    log: Path,
    on_end: OnEnd,
    seed: int = 0,
    listen_host: str = "127.0.0.1",
    cells: DeviceCells = MappingProxyType({}),
    other_nodes: Sequence[tuple[str, int]] = (),
) -> AsyncIterator[ShapedLinks]:
    """Shape the links of devices to a broker.

    Args:
        host: Host of the broker.
        port: Port of the broker.
        shapes: The link of each device; may be empty.
        log: Receives the output of the processes.
        on_end: Called for every process that ends.
        seed: Seed of the jitter.
        listen_host: Address of this machine at which devices find their ports.
        cells: Of each device in a cell, the cell with those in front of it, and its priority.
        other_nodes: Host and port of further nodes of the broker's cluster. A device is connected
            to one of them when the node before does not accept connections.

    Raises:
        BackendError: A process cannot be started.
    """
    groups, waits = devices_by_process(shapes, cells), dict[str, _Wait]()
    files = [log.with_name(f"cells-{index}") for index in range(len(groups))]
    for names, file in zip(groups, files, strict=True):
        if members := [name for name in names if name in cells]:
            waits |= _map_waits(file, members)
    processes = [
        _ProxyProcess(
            f"proxy-{index}",
            ProxySpec(
                nodes=[(host, port), *other_nodes],
                devices={name: shapes[name] for name in names},
                cells={cell.name: cell for name in names for cell in cells.get(name, ((), 0))[0]},
                members={
                    name: Membership(cell=cells[name][0][0].name, priority=cells[name][1])
                    for name in names
                    if name in cells
                },
                waits=str(file) if any(name in cells for name in names) else None,
                seed=seed,
                listen_host=listen_host,
            ),
            log,
            on_end,
        )
        for index, (names, file) in enumerate(zip(groups, files, strict=True))
    ]
    async with anyio.create_task_group() as tasks:
        try:
            for process in processes:
                await process.open()
                tasks.start_soon(process.watch, name="backend.proxy")
            yield ShapedLinks(processes, waits)
        finally:
            for process in processes:
                await process.close()
