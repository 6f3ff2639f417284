"""What the exchange benchmark does over and over: a pass of one kind, timed, then verified."""

import math
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread

from benchmarks._deaf import deafen
from benchmarks._desk import Desk
from benchmarks._device import random_vector
from benchmarks._fleet import PHASE_S, Fleet
from benchmarks._meter import MEGABYTE, cpu_s, peak_rss_bytes
from benchmarks._orders import Copy, Direction, Pull, Send, Verify
from benchmarks._tcp import serve, sha256
from fairbed.testbed.run.broker import Broker
from fairbed.wire.chunks import RETAINED_CHUNK_BYTES, manifest_of, suitable_chunk_bytes
from fairbed.wire.messages import Manifest
from fairbed.wire.topics import Topics
from fairbed.wire.transfer import DEFAULT_WINDOW

Step = Callable[[], Coroutine[Any, Any, object]]


@dataclass(frozen=True, slots=True)
class Pass:
    """One vector for each device, one way."""

    wall_s: float
    """From the order to the last byte of the last device."""
    megabytes: float
    """All devices together, 10^6 bytes."""
    device_s: dict[str, float]
    coordinator_ms: float
    """CPU per MB delivered; of a download with its publication."""
    agents_ms: float
    broker_ms: float

    @property
    def mb_s(self) -> float:
        """All devices together, 10^6 bytes a second."""
        return self.megabytes / self.wall_s


@dataclass(slots=True)
class Findings:
    """What the passes and the reports between them add up to."""

    is_verified: bool = True
    """Every vector so far had the hash of what was sent."""
    repeats: int = 0
    """Chunks asked for or sent more than once."""
    dropped: int = 0
    """Chunks lost on purpose."""
    agent_rss_bytes: int = 0
    broker_rss_bytes: int = 0
    chunk_bytes: int = 0
    """Of the last download."""
    publish_s: list[float] = field(default_factory=list)


class Passes:
    """Runs passes over one broker, one desk and one fleet; one at a time.

    Args:
        fleet: The device processes, joined.
        desk: The coordinator's side, linked.
        broker: Between them.
        server: Listens for the plain copy.
        n_bytes: Of a vector.
        chunk_bytes: Of downloads; None follows what the devices measured.
        n_deaf: Clients that ask for the first chunks of the first model and never read them.
    """

    def __init__(
        self,
        fleet: Fleet,
        desk: Desk,
        broker: Broker,
        server: socket.socket,
        n_bytes: int,
        chunk_bytes: int | None,
        n_deaf: int = 0,
    ) -> None:
        self.findings = Findings()
        self._fleet, self._desk, self._broker, self._server = fleet, desk, broker, server
        self._n_bytes, self._chunk_bytes = n_bytes, chunk_bytes
        self._n_deaf = n_deaf
        self._deaf: list[socket.socket] = []
        self._model: bytes | None = None
        """In the broker until the next one is, as in a run."""
        self._slowest_bps: float | None = None
        self._seed = 1 << 32
        """Every model is a new one: nothing of the last stays in the broker."""

    async def down(self, names: Sequence[str], disturb: Step | None = None) -> Pass:
        """Retire the last model, publish a new one and have it pulled; `disturb` runs meanwhile."""
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
                await self._desk.public.retire(self._model)
            await self._desk.public.publish(manifest, model)
            self._model = manifest.id
            if len(self._deaf) < self._n_deaf:
                await anyio.to_thread.run_sync(self._deafen, manifest)
            self.findings.publish_s.append(time.perf_counter() - started_s)

        order = Pull(manifest=manifest, names=list(names))
        return await self._pass(order, before=publish, during=disturb)

    def close(self) -> None:
        """Let the deaf go."""
        for link in self._deaf:
            link.close()

    def _deafen(self, manifest: Manifest) -> None:
        asked = range(min(DEFAULT_WINDOW, manifest.chunk_count))
        topics = [Topics().chunk(manifest.id.hex(), index) for index in asked]
        for i in range(self._n_deaf):
            self._deaf.append(deafen(self._broker.url, f"deaf-{i}", topics))

    async def up(self, names: Sequence[str], disturb: Step | None = None) -> Pass:
        """Have every update sent; `disturb` runs meanwhile."""
        self._desk.expect(names)

        async def check() -> None:
            self.findings.is_verified &= await self._desk.check()

        order = Send(names=list(names))
        return await self._pass(
            order, during=disturb, arrived=self._desk.wait_complete, after=check
        )

    async def copy(self, direction: Direction, names: Sequence[str]) -> Pass:
        """Copy over plain TCP, as fast as asyncio can."""
        self._seed += 1
        vector = random_vector(self._n_bytes, self._seed)
        order = Copy(direction=direction, sha256=sha256(vector), names=list(names))

        async def move() -> float:
            await serve(self._server, direction, vector, len(names))
            return time.perf_counter()

        if direction == "down":
            return await self._pass(order, during=move)
        return await self._pass(order, arrived=move)

    async def _pass(
        self,
        order: Pull | Send | Copy,
        *,
        before: Step | None = None,
        during: Step | None = None,
        arrived: Callable[[], Awaitable[float]] | None = None,
        after: Step | None = None,
    ) -> Pass:
        """Give an order and time it, until the devices have ended or `arrived` says when."""
        n_devices = len(order.names)
        ours_s, brokers_s = time.process_time(), self._broker_cpu_s()
        if before is not None:
            await before()
        started_s = time.perf_counter()
        with anyio.fail_after(PHASE_S):
            async with anyio.create_task_group() as group:
                if during is not None:
                    group.start_soon(during)
                await self._fleet.tell(order)
                if arrived is not None:
                    ended_s = await arrived()
                else:
                    ended = await self._fleet.ended()
                    ended_s = time.perf_counter()
        ours_s, brokers_s = time.process_time() - ours_s, self._broker_cpu_s() - brokers_s
        if after is not None:
            await after()
        if arrived is not None:
            ended = await self._fleet.ended()
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
        """Have everything hashed, and take note of what the processes report."""
        await self._fleet.tell(Verify())
        reports, found = await self._fleet.checked(), self.findings
        found.is_verified &= all(report.is_verified for report in reports)
        found.repeats = sum(report.repeats for report in reports)
        found.dropped = self._desk.dropped + sum(report.dropped for report in reports)
        found.agent_rss_bytes = max(report.peak_rss_bytes for report in reports)
        if self._broker.pid is not None:
            rss = peak_rss_bytes(self._broker.pid)
            found.broker_rss_bytes = max(found.broker_rss_bytes, rss)
        rates = [rate for report in reports for rate in report.downlink_bps]
        self._slowest_bps = min(rates, default=None)

    def _broker_cpu_s(self) -> float:
        return cpu_s(self._broker.pid) if self._broker.pid is not None else 0.0
