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

from benchmarks._device import Device
from benchmarks._meter import peak_rss_bytes
from benchmarks._orders import (
    Answer,
    Channel,
    Checked,
    Copy,
    Ended,
    Join,
    Order,
    Pull,
    Quit,
    Send,
)
from benchmarks._tcp import copy, sha256
from fairbed.testbed.host.guard import die_with_parent
from fairbed.wire.errors import DecodeError

JOIN_S = 60.0
PHASE_S = 600.0
"""No phase lasts longer; a benchmark that hangs says so."""


class Fleet:
    """All device processes, seen from the benchmark."""

    def __init__(self, pids: Sequence[int], ends: Sequence[socket.socket]) -> None:
        self.pids = list(pids)
        self._ends = list(ends)
        self._channels: list[Channel] = []

    async def open(self) -> None:
        """Open the lines to all processes."""
        self._channels = [await Channel.over(end) for end in self._ends]

    async def tell(self, orders: Order | Sequence[Order]) -> None:
        """Give every process its order, or all of them the same."""
        given = list(orders) if isinstance(orders, Sequence) else [orders] * len(self._channels)
        for channel, order in zip(self._channels, given, strict=True):
            await channel.send(order)

    async def hear(self) -> list[Answer]:
        """Return the answer of every process.

        Raises:
            EOFError: A process has ended.
            TimeoutError: One has not answered in time.
        """
        with anyio.fail_after(PHASE_S):
            return list(await asyncio.gather(*(channel.answer() for channel in self._channels)))

    async def ended(self) -> list[Ended]:
        """Return the ends of a phase."""
        return [answer for answer in await self.hear() if isinstance(answer, Ended)]

    async def checked(self) -> list[Checked]:
        """Return the reports between two phases."""
        return [answer for answer in await self.hear() if isinstance(answer, Checked)]

    def close(self) -> None:
        """Hang up; the processes leave."""
        for channel in self._channels:
            channel.close()

    def kill(self) -> None:
        """End all processes, and wait until they are gone."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def fork_fleet(processes: int) -> Fleet:
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
    return Fleet(pids, ends)


def _child(parent: int, end: socket.socket) -> None:
    """Serve orders and never return: what the parent has on its stack is not ours."""
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
    join = await channel.order()
    if not isinstance(join, Join):
        return
    async with anyio.create_task_group() as group:
        crew = _Crew(join, group)
        await crew.join()
        await channel.send(crew.report())
        while not isinstance(order := await channel.order(), Quit):
            await channel.send(await crew.carry_out(order))
        group.cancel_scope.cancel()


class _Crew:
    """The devices of one process."""

    def __init__(self, join: Join, group: TaskGroup) -> None:
        self._join = join
        self._devices = [
            Device(name, url, group, join.size_bytes, join.drop, join.seed + i)
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

    async def carry_out(self, order: Order) -> Answer:
        started_s = time.process_time()
        match order:
            case Pull(manifest=manifest, names=names):
                seconds = await self._all(names, lambda device: device.pull(manifest))
            case Send(names=names):
                chunk_bytes = self._join.chunk_bytes
                seconds = await self._all(names, lambda device: device.push(chunk_bytes))
            case Copy(names=names):
                seconds = await self._all(names, lambda device: self._copy(device, order))
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
        self, names: Sequence[str], act: Callable[[Device], Awaitable[float]]
    ) -> dict[str, float]:
        devices = [device for device in self._devices if device.name in names]
        times = await asyncio.gather(*(act(device) for device in devices))
        return {device.name: took_s for device, took_s in zip(devices, times, strict=True)}

    async def _copy(self, device: Device, order: Copy) -> float:
        started_s = time.perf_counter()
        vector = await copy(self._join.tcp_port, order.direction, device.update)
        if order.direction == "down":
            self._copies.append((vector, order.sha256))
        return time.perf_counter() - started_s

    def _verify(self) -> None:
        self._is_verified &= all(sha256(vector) == expected for vector, expected in self._copies)
        self._copies.clear()
        try:
            for device in self._devices:
                device.verify()
        except DecodeError:
            self._is_verified = False
