"""The device processes of the exchange benchmark, forked from it before anything else runs."""

import asyncio
import os
import signal
import socket
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from benchmarks._device_commands import (
    Channel,
    Checked,
    Command,
    Copy,
    Ended,
    Join,
    Pull,
    Quit,
    Reply,
    Send,
)
from benchmarks._exchange_device import ExchangeDevice
from benchmarks._meter import peak_rss_bytes
from benchmarks._tcp import copy, sha256
from fairbed.testbed.host.guard import die_with_parent
from fairbed.wire.errors import DecodeError

JOIN_S = 60.0
PHASE_S = 600.0
"""Time limit of a phase; a benchmark that hangs ends with an error."""


class DeviceProcesses:
    """All device processes of the benchmark."""

    def __init__(self, pids: Sequence[int], ends: Sequence[socket.socket]) -> None:
        self.pids = list(pids)
        self._ends = list(ends)
        self._channels: list[Channel] = []

    async def open(self) -> None:
        """Open the channels to all processes."""
        self._channels = [await Channel.over(end) for end in self._ends]

    async def send(self, commands: Command | Sequence[Command]) -> None:
        """Send every process its command, or the same command to all."""
        same = [] if isinstance(commands, Sequence) else [commands] * len(self._channels)
        of_each = commands if isinstance(commands, Sequence) else same
        for channel, command in zip(self._channels, of_each, strict=True):
            await channel.send(command)

    async def replies(self) -> list[Reply]:
        """Return the reply of every process.

        Raises:
            EOFError: A process has ended.
            TimeoutError: A process has not replied in time.
        """
        with anyio.fail_after(PHASE_S):
            return list(await asyncio.gather(*(channel.reply() for channel in self._channels)))

    async def ended(self) -> list[Ended]:
        """Return the ends of a phase."""
        return [reply for reply in await self.replies() if isinstance(reply, Ended)]

    async def checked(self) -> list[Checked]:
        """Return the reports between two phases."""
        return [reply for reply in await self.replies() if isinstance(reply, Checked)]

    def close(self) -> None:
        """Close the channels; the processes end."""
        for channel in self._channels:
            channel.close()

    def kill(self) -> None:
        """Kill all processes and wait for their end."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def fork_device_processes(processes: int) -> DeviceProcesses:
    """Fork the processes; call it while this process has one thread and no event loop."""
    parent = os.getpid()
    pids: list[int] = []
    ends: list[socket.socket] = []
    for _ in range(processes):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for end in (*ends, ours):
                end.close()
            _child(parent, theirs)
        theirs.close()
        pids.append(pid)
        ends.append(ours)
    return DeviceProcesses(pids, ends)


def _child(parent: int, end: socket.socket) -> None:
    """Serve commands and never return: the stack of the parent must not run here."""
    status = 1
    try:
        die_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
        anyio.run(_serve, end)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


async def _serve(end: socket.socket) -> None:
    channel = await Channel.over(end)
    join = await channel.command()
    if not isinstance(join, Join):
        return
    async with anyio.create_task_group() as group:
        devices = _ProcessDevices(join, group)
        await devices.join()
        await channel.send(devices.report())
        while not isinstance(command := await channel.command(), Quit):
            await channel.send(await devices.execute(command))
        group.cancel_scope.cancel()


class _ProcessDevices:
    """The devices of one process."""

    def __init__(self, join: Join, group: TaskGroup) -> None:
        self._join = join
        self._devices = [
            ExchangeDevice(name, url, group, join.size_bytes, join.drop, join.seed + i)
            for i, (name, url) in enumerate(join.urls.items())
        ]
        self._group = group
        self._copies: list[tuple[bytearray, bytes]] = []
        self._is_verified = True

    async def join(self) -> None:
        for device in self._devices:
            device.hash_update(sha256(device.update))
            self._group.start_soon(device.run, name=f"bench.{device.name}")
        for device in self._devices:
            if not await device.linked.wait(JOIN_S):
                raise TimeoutError(f"{device.name}: no link within {JOIN_S:g} s")

    async def execute(self, command: Command) -> Reply:
        started_s = time.process_time()
        match command:
            case Pull(manifest=manifest, names=names):
                seconds = await self._all(names, lambda device: device.pull(manifest))
            case Send(names=names):
                chunk_bytes = self._join.chunk_bytes
                seconds = await self._all(names, lambda device: device.push(chunk_bytes))
            case Copy(names=names):
                seconds = await self._all(names, lambda device: self._copy(device, command))
            case _:  # Verify
                self._verify()
                return self.report()
        return Ended(seconds=seconds, cpu_s=time.process_time() - started_s)

    def report(self) -> Checked:
        rates = [device.link.downlink_bps for device in self._devices]
        return Checked(
            is_verified=self._is_verified and all(device.is_verified for device in self._devices),
            downlink_bps=[rate for rate in rates if rate is not None],
            repeats=sum(device.repeats for device in self._devices),
            dropped=sum(device.dropped for device in self._devices),
            peak_rss_bytes=peak_rss_bytes(os.getpid()),
        )

    async def _all(
        self, names: Sequence[str], act: Callable[[ExchangeDevice], Awaitable[float]]
    ) -> dict[str, float]:
        devices = [device for device in self._devices if device.name in names]
        times = await asyncio.gather(*(act(device) for device in devices))
        return {device.name: took_s for device, took_s in zip(devices, times, strict=True)}

    async def _copy(self, device: ExchangeDevice, command: Copy) -> float:
        started_s = time.perf_counter()
        vector = await copy(self._join.tcp_port, command.direction, device.update)
        if command.direction == "down":
            self._copies.append((vector, command.sha256))
        return time.perf_counter() - started_s

    def _verify(self) -> None:
        self._is_verified &= all(sha256(vector) == expected for vector, expected in self._copies)
        self._copies.clear()
        try:
            for device in self._devices:
                device.verify()
        except DecodeError:
            self._is_verified = False
