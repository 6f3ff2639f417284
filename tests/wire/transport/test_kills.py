"""A broker killed with `kill -9` and restarted at random times of transfers in both directions."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import numpy as np
import pytest

from fairbed.testbed.broker.configuration import BrokerKind
from fairbed.testbed.run.broker import Broker, start_broker
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

KILLS: dict[Client, int] = {"direct": 20, "aiomqtt": 8}
"""Kills during a transfer, in each direction; `fairbed bench kills` has hundreds of whole runs."""

SIZE_BYTES, CHUNK_BYTES = 400_000, 8 * 1024
MAX_DELAY_S = 0.05
"""Largest delay of a kill after progress of both transfers."""

STALL_S = 0.3
"""Longest wait for the progress of both transfers after a kill."""

TIMEOUT_S = 100.0
MEMORY_MB = 60.0


@dataclass
class Direction:
    """Transfers in one direction, one after the other, until the test ends."""

    finished: int = 0
    is_in_flight: bool = False
    kills: int = 0
    """Kills during a transfer."""
    moved: anyio.Event = field(default_factory=anyio.Event)

    def on_progress(self, transfer: Download | UploadReceiver) -> None:
        self.is_in_flight = not transfer.is_complete
        self.move()

    def move(self) -> None:
        self.moved.set()
        self.moved = anyio.Event()

    async def wait(self, count: int) -> None:
        """Wait until `count` transfers have finished."""
        while self.finished < count:
            await self.moved.wait()


class Traffic:
    """A coordinator and a device that send each other blobs until cancelled."""

    def __init__(self, broker: Broker, client: Client, seed: int) -> None:
        self.directions = {"down": Direction(), "up": Direction()}
        self._broker = broker
        self._url = f"{broker.url}?client={client}"
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._random = random.Random(seed)

    def link(self, name: str) -> Transport:
        quick = self._random.uniform
        return MqttTransport(self._url, name, backoff=lambda n: quick(0.005, 0.02))

    def blob(self) -> tuple[bytes, Manifest]:
        data = self._rng.bytes(SIZE_BYTES)
        return data, manifest_of(data, "model", CHUNK_BYTES)

    async def down(self, serial: int) -> None:
        """Download one blob of retained chunks, and verify it."""
        direction, (data, manifest) = self.directions["down"], self.blob()
        base = f"kills/down/{serial}"
        async with self.link("source") as source, self.link("sink") as sink:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(offer, source, manifest, data, base)
                download = await pull(sink, manifest, base, direction.on_progress)
                tasks.cancel_scope.cancel()
            download.verify()

    async def up(self, serial: int) -> None:
        """Upload one blob under a credit window, and verify it."""
        direction, (data, manifest) = self.directions["up"], self.blob()
        topic, control = f"kills/up/{serial}", f"kills/ctl/{serial}"
        receiver = UploadReceiver(manifest, 4)
        async with self.link("desk") as desk, self.link("device") as device:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receive, desk, {topic: (receiver, control)}, direction.on_progress)
                await send(device, Upload(manifest, data), topic, control)
                tasks.cancel_scope.cancel()
            assert manifest.sha256 is not None
            receiver.verify(manifest.sha256)

    async def repeat(self, direction: str) -> None:
        """Transfer blobs in one direction until cancelled."""
        move: Callable[[int], Awaitable[None]] = self.down if direction == "down" else self.up
        while True:
            await move(self.directions[direction].finished)
            self.directions[direction].finished += 1
            self.directions[direction].is_in_flight = False
            self.directions[direction].move()

    async def kill(self) -> float:
        """Kill the broker after a random delay, and start it again at the same address.

        Returns:
            Time from the kill until both transfers progress again, at most about `STALL_S`.
        """
        await anyio.sleep(self._random.uniform(0.0, MAX_DELAY_S))
        for direction in self.directions.values():
            direction.kills += direction.is_in_flight
        killed_s = anyio.current_time()
        await self._broker.restart()
        with anyio.move_on_after(STALL_S):
            for direction in self.directions.values():
                await direction.moved.wait()
        return anyio.current_time() - killed_s


@pytest.mark.parametrize("case", CLIENTS_AND_PRODUCTION_BROKERS)
async def test_a_broker_killed_at_any_time_harms_no_transfer(
    case: tuple[Client, BrokerKind], tmp_path: Path, ledger: Ledger
) -> None:
    client, kind = case
    lost_s: list[float] = []
    async with start_broker(kind, folder=tmp_path) as broker:
        traffic = Traffic(broker, client, seed=7)
        down, up = traffic.directions.values()
        with anyio.fail_after(TIMEOUT_S):
            async with watch_memory() as peaks, anyio.create_task_group() as tasks:
                for direction in traffic.directions:
                    tasks.start_soon(traffic.repeat, direction)
                while min(down.kills, up.kills) < KILLS[client]:
                    lost_s.append(await traffic.kill())
                goal = down.finished + 1, up.finished + 1
                for one, count in zip((down, up), goal, strict=True):
                    await one.wait(count)  # the current transfer finishes, too
                tasks.cancel_scope.cancel()
    ledger.note(
        kind,
        f"{client}: broker killed {len(lost_s)} times, both directions, each",
        lost_s=sum(lost_s) / len(lost_s),
        peaks=peaks,
    )
    peaks.stay_below(MEMORY_MB)
