"""A broker killed with `kill -9` and started again, at random instants of transfers both ways."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import numpy as np
import pytest

from fairbed.testbed.run.broker import Broker, BrokerKind, start_broker
from fairbed.wire.chunks import manifest_of
from fairbed.wire.messages import Manifest
from fairbed.wire.transfer import Download, Upload, UploadReceiver
from fairbed.wire.transport.address import Client
from fairbed.wire.transport.base import Transport
from fairbed.wire.transport.client import MqttTransport
from tests.brokers import CLIENTS_AND_PRODUCTION_BROKERS
from tests.ledger import Ledger, watch_memory
from tests.wire.transport.drivers import offer, pull, receive, send

pytestmark = pytest.mark.anyio

KILLS: dict[Client, int] = {"direct": 100, "aiomqtt": 25}
"""In the middle of a transfer, each way."""

SIZE_BYTES, CHUNK_BYTES = 400_000, 8 * 1024
MOST_S = 0.05
"""A kill comes up to so long after both transfers have moved."""

STALL_S = 0.3
"""A transfer that waits for a time-out is not waited for longer than this."""

GIVE_UP_S = 250.0
MEMORY_MB = 60.0


@dataclass
class Way:
    """Transfers in one direction, one after the other, for as long as the test takes."""

    finished: int = 0
    is_midway: bool = False
    kills: int = 0
    """While one was on its way."""
    moved: anyio.Event = field(default_factory=anyio.Event)

    def on_progress(self, transfer: Download | UploadReceiver) -> None:
        self.is_midway = not transfer.is_complete
        self.move()

    def move(self) -> None:
        self.moved.set()
        self.moved = anyio.Event()

    async def wait(self, count: int) -> None:
        """Wait until so many transfers have ended."""
        while self.finished < count:
            await self.moved.wait()


class Traffic:
    """A coordinator and a device that never stop to send each other blobs."""

    def __init__(self, broker: Broker, client: Client, seed: int) -> None:
        self.ways = {"down": Way(), "up": Way()}
        self._broker = broker
        self._url = f"{broker.url}?client={client}"
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._dice = random.Random(seed)

    def link(self, name: str) -> Transport:
        quick = self._dice.uniform
        return MqttTransport(self._url, name, backoff=lambda n: quick(0.005, 0.02))

    def blob(self) -> tuple[bytes, Manifest]:
        data = self._rng.bytes(SIZE_BYTES)
        return data, manifest_of(data, "model", CHUNK_BYTES)

    async def down(self, serial: int) -> None:
        """Move one blob from the chunk store, and verify it."""
        way, (data, manifest) = self.ways["down"], self.blob()
        base = f"kills/down/{serial}"
        async with self.link("source") as source, self.link("sink") as sink:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(offer, source, manifest, data, base)
                download = await pull(sink, manifest, base, way.on_progress)
                tasks.cancel_scope.cancel()
            download.verify()

    async def up(self, serial: int) -> None:
        """Move one blob under a credit window, and verify it."""
        way, (data, manifest) = self.ways["up"], self.blob()
        topic, control = f"kills/up/{serial}", f"kills/ctl/{serial}"
        receiver = UploadReceiver(manifest, 4)
        async with self.link("desk") as desk, self.link("device") as device:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receive, desk, {topic: (receiver, control)}, way.on_progress)
                await send(device, Upload(manifest, data), topic, control)
                tasks.cancel_scope.cancel()
            assert manifest.sha256 is not None
            receiver.verify(manifest.sha256)

    async def repeat(self, way: str) -> None:
        """Move blobs one way for ever."""
        move: Callable[[int], Awaitable[None]] = self.down if way == "down" else self.up
        while True:
            await move(self.ways[way].finished)
            self.ways[way].finished += 1
            self.ways[way].is_midway = False
            self.ways[way].move()

    async def kill(self) -> float:
        """Kill the broker at some instant soon, and start it again at the same address.

        Returns:
            Time from the kill until both transfers moved again, or stall.
        """
        await anyio.sleep(self._dice.uniform(0.0, MOST_S))
        for way in self.ways.values():
            way.kills += way.is_midway
        killed_s = anyio.current_time()
        await self._broker.restart()
        with anyio.move_on_after(STALL_S):
            for way in self.ways.values():
                await way.moved.wait()
        return anyio.current_time() - killed_s


@pytest.mark.timeout(300)
@pytest.mark.parametrize("both", CLIENTS_AND_PRODUCTION_BROKERS)
async def test_no_instant_of_a_brokers_death_harms_a_transfer(
    both: tuple[Client, BrokerKind], tmp_path: Path, ledger: Ledger
) -> None:
    client, kind = both
    lost_s: list[float] = []
    async with start_broker(kind, folder=tmp_path) as broker:
        traffic = Traffic(broker, client, seed=7)
        down, up = traffic.ways.values()
        with anyio.fail_after(GIVE_UP_S):
            async with watch_memory() as peaks, anyio.create_task_group() as tasks:
                for way in traffic.ways:
                    tasks.start_soon(traffic.repeat, way)
                while min(down.kills, up.kills) < KILLS[client]:
                    lost_s.append(await traffic.kill())
                goal = down.finished + 1, up.finished + 1
                for one, count in zip((down, up), goal, strict=True):
                    await one.wait(count)  # what was under way ends well
                tasks.cancel_scope.cancel()
    ledger.note(
        kind,
        f"{client}: broker killed {len(lost_s)} times, both ways, each",
        lost_s=sum(lost_s) / len(lost_s),
        peaks=peaks,
    )
    peaks.stay_below(MEMORY_MB)
