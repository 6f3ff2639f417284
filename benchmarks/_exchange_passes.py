"""The passes of the exchange benchmark: each moves vectors, is timed, then verified."""

import math
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import anyio.to_thread

from benchmarks._device_commands import Copy, Direction, Pull, Send, Verify
from benchmarks._device_processes import PHASE_S, DeviceProcesses
from benchmarks._exchange_coordinator import ExchangeCoordinator
from benchmarks._exchange_device import random_vector
from benchmarks._meter import MEGABYTE, cpu_s, peak_rss_bytes
from benchmarks._non_reading_client import connect_without_reading
from benchmarks._tcp import serve, sha256
from fairbed.wire.chunks import RETAINED_CHUNK_BYTES, manifest_of, suitable_chunk_bytes
from fairbed.wire.messages import Manifest
from fairbed.wire.topics import Topics
from fairbed.wire.transfer import DEFAULT_WINDOW


class RunningBroker(Protocol):
    """The broker of the passes."""

    @property
    def pid(self) -> int | None:
        """Process id; None while it is down."""

    @property
    def url(self) -> str:
        """Address with user and password."""


Step = Callable[[], Coroutine[Any, Any, object]]


@dataclass(frozen=True, slots=True)
class Pass:
    """One vector for each device, one way."""

    wall_s: float
    """From the command to the last byte of the last device."""
    megabytes: float
    """Total of all devices, 10^6 bytes."""
    device_s: dict[str, float]
    coordinator_ms: float
    """Processor time per MB delivered; of a download with its publication."""
    agents_ms: float
    broker_ms: float

    @property
    def mb_s(self) -> float:
        """Total rate of all devices, 10^6 bytes per second."""
        return self.megabytes / self.wall_s


@dataclass(slots=True)
class Findings:
    """Totals of the passes and of the reports between them."""

    is_verified: bool = True
    """Whether every vector so far had the hash of the sent one."""
    repeats: int = 0
    """Chunks requested or sent more than once."""
    dropped: int = 0
    """Chunks dropped on purpose."""
    agent_rss_bytes: int = 0
    broker_rss_bytes: int = 0
    chunk_bytes: int = 0
    """Chunk size of the last download."""
    publish_s: list[float] = field(default_factory=list)


class ExchangePasses:
    """Runs passes over one broker, one coordinator and one fleet, one at a time.

    Args:
        processes: The device processes, joined.
        coordinator: The coordinator's side, connected.
        broker: The broker between them.
        server: Listens for the plain copy.
        n_bytes: Size of a vector.
        chunk_bytes: Chunk size of downloads; None follows the measured rates.
        n_deaf: Number of clients that request the first chunks of the first model and never read.
    """

    def __init__(
        self,
        processes: DeviceProcesses,
        coordinator: ExchangeCoordinator,
        broker: RunningBroker,
        server: socket.socket,
        n_bytes: int,
        chunk_bytes: int | None,
        n_deaf: int = 0,
    ) -> None:
        self.findings = Findings()
        self._processes, self._coordinator, self._broker, self._server = (
            processes,
            coordinator,
            broker,
            server,
        )
        self._n_bytes, self._chunk_bytes = n_bytes, chunk_bytes
        self._n_deaf = n_deaf
        self._non_readers: list[socket.socket] = []
        self._model: bytes | None = None
        """The model in the broker; it stays until the next one is published, as in a run."""
        self._slowest_bps: float | None = None
        self._seed = 1 << 32
        """Seed of the last model: each pass has a new model."""

    async def down(self, names: Sequence[str], disturb: Step | None = None) -> Pass:
        """Publish a new model instead of the last one; let devices pull it and run `disturb`."""
        self._seed += 1
        model = random_vector(self._n_bytes, self._seed)
        # A run knows the rates before its first model; here the first pass stands for the probes.
        rate_bps = self._slowest_bps or math.inf
        chunk_bytes = self._chunk_bytes or suitable_chunk_bytes(
            rate_bps, len(model), RETAINED_CHUNK_BYTES
        )
        manifest = manifest_of(model, "model", chunk_bytes)
        self.findings.chunk_bytes = chunk_bytes

        async def publish() -> None:
            started_s = time.perf_counter()
            if self._model is not None:
                await self._coordinator.public.retire(self._model)
            await self._coordinator.public.publish(manifest, model)
            self._model = manifest.id
            if len(self._non_readers) < self._n_deaf:
                await anyio.to_thread.run_sync(self._connect_non_readers, manifest)
            self.findings.publish_s.append(time.perf_counter() - started_s)

        command = Pull(manifest=manifest, names=list(names))
        return await self._pass(command, before=publish, during=disturb)

    def close(self) -> None:
        """Close the connections of the clients that never read."""
        for link in self._non_readers:
            link.close()

    def _connect_non_readers(self, manifest: Manifest) -> None:
        requested = range(min(DEFAULT_WINDOW, manifest.chunk_count))
        topics = [Topics().chunk(manifest.id.hex(), index) for index in requested]
        for i in range(self._n_deaf):
            self._non_readers.append(connect_without_reading(self._broker.url, f"deaf-{i}", topics))

    async def up(self, names: Sequence[str], disturb: Step | None = None) -> Pass:
        """Let every device send its update; run `disturb` meanwhile."""
        self._coordinator.expect(names)

        async def check() -> None:
            self.findings.is_verified &= await self._coordinator.check()

        command = Send(names=list(names))
        return await self._pass(
            command, during=disturb, arrived=self._coordinator.wait_complete, after=check
        )

    async def copy(self, direction: Direction, names: Sequence[str]) -> Pass:
        """Copy over plain TCP, as fast as asyncio can."""
        self._seed += 1
        vector = random_vector(self._n_bytes, self._seed)
        command = Copy(direction=direction, sha256=sha256(vector), names=list(names))

        async def move() -> float:
            await serve(self._server, direction, vector, len(names))
            return time.perf_counter()

        if direction == "down":
            return await self._pass(command, during=move)
        return await self._pass(command, arrived=move)

    async def _pass(
        self,
        command: Pull | Send | Copy,
        *,
        before: Step | None = None,
        during: Step | None = None,
        arrived: Callable[[], Awaitable[float]] | None = None,
        after: Step | None = None,
    ) -> Pass:
        """Send a command and time it, until the devices have ended or `arrived` returns."""
        n_devices = len(command.names)
        ours_s, brokers_s = time.process_time(), self._broker_cpu_s()
        if before is not None:
            await before()
        started_s = time.perf_counter()
        with anyio.fail_after(PHASE_S):
            async with anyio.create_task_group() as group:
                if during is not None:
                    group.start_soon(during)
                await self._processes.send(command)
                if arrived is not None:
                    ended_s = await arrived()
                else:
                    ended = await self._processes.ended()
                    ended_s = time.perf_counter()
        ours_s, brokers_s = time.process_time() - ours_s, self._broker_cpu_s() - brokers_s
        if after is not None:
            await after()
        if arrived is not None:
            ended = await self._processes.ended()
        await self._verify()
        megabytes = n_devices * self._n_bytes / MEGABYTE
        return Pass(
            wall_s=ended_s - started_s,
            megabytes=megabytes,
            device_s={name: took_s for end in ended for name, took_s in end.seconds.items()},
            coordinator_ms=1e3 * ours_s / megabytes,
            agents_ms=1e3 * sum(end.cpu_s for end in ended) / megabytes,
            broker_ms=1e3 * brokers_s / megabytes,
        )

    async def _verify(self) -> None:
        """Let the processes hash all vectors, and note their reports."""
        await self._processes.send(Verify())
        reports, found = await self._processes.checked(), self.findings
        found.is_verified &= all(report.is_verified for report in reports)
        found.repeats = sum(report.repeats for report in reports)
        found.dropped = self._coordinator.dropped + sum(report.dropped for report in reports)
        found.agent_rss_bytes = max(report.peak_rss_bytes for report in reports)
        if self._broker.pid is not None:
            rss = peak_rss_bytes(self._broker.pid)
            found.broker_rss_bytes = max(found.broker_rss_bytes, rss)
        rates = [rate for report in reports for rate in report.downlink_bps]
        self._slowest_bps = min(rates, default=None)

    def _broker_cpu_s(self) -> float:
        return cpu_s(self._broker.pid) if self._broker.pid is not None else 0.0
