"""One round of the real executor and its merge, with simulated devices in the same process.

A device computes each chunk when it sends it, so all memory of a model is the coordinator's.
"""

import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import anyio
import numpy as np
from anyio.abc import TaskGroup

from fairbed.coordinator.algorithms.aggregation.base import Accumulator
from fairbed.coordinator.fleet.uploads import Uploads
from fairbed.coordinator.messaging.publisher import Publisher
from fairbed.coordinator.policy.config import LimitsConfig
from fairbed.coordinator.rounds.executor import RoundExecutor
from fairbed.coordinator.rounds.merging import RoundMerge
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.state.round import Round
from fairbed.coordinator.store import NewRun, Store, StoreError
from fairbed.coordinator.store.event_log import EventLog
from fairbed.wire.chunks import DEFAULT_CHUNK_BYTES, encode_chunk, manifest_of
from fairbed.wire.codec import decode_to_device
from fairbed.wire.messages import Grant, Hyperparameters, Manifest, Offer, Phases, Train, UploadDone
from fairbed.wire.tensors import Layout
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet, Transport
from tests.wire.transport.memory import MemoryBroker

ROUND = 1
MODEL = manifest_of(b"\0", "model")
MODEL_SHA256 = sha256(b"\0").digest()
NO_MODEL = np.zeros(0, dtype=np.float32)
"""The dispatched model: float32 updates do not need it."""

PHASES = Phases(
    download_s=0.0, load_s=0.0, evaluate_s=0.0, train_s=0.0, train_cpu_s=0.0, encode_s=0.0
)


@dataclass(frozen=True, slots=True)
class Device:
    """A device that has completed its training."""

    chunk: Callable[[int], bytes]
    """Returns a chunk of its update by index."""
    sha256: bytes
    n_k: int = 1
    loss_before: float | None = None
    vanishes: bool = False
    """Whether it disconnects after half of its update."""


@dataclass
class SimulatedFleet:
    """An executor and its devices."""

    devices: Mapping[str, Device]
    layout: Layout
    executor: RoundExecutor
    merge: RoundMerge
    link: Transport
    group: TaskGroup
    topics: Topics = field(default_factory=Topics)
    arrived: list[str] = field(default_factory=list)
    """Devices whose update is complete, in order of arrival."""
    _is_listening: anyio.Event = field(default_factory=anyio.Event)

    async def run_round(self, slots: int, target_updates: int, deadline_s: float = 600.0) -> Round:
        """Run one round with every device."""
        await self._is_listening.wait()
        table = Round(
            id=ROUND, attempt=0, deadline_s=deadline_s, slots=slots, target_updates=target_updates
        )
        trains = {name: _train() for name in self.devices}
        self.executor.open(table, self.merge)
        self.executor.dispatch(table, trains, NO_MODEL)
        await self.executor.wait_over(table)
        return table

    async def listen(self) -> None:
        """Answer the messages to each device."""
        names = {self.topics.control(name): name for name in self.devices}
        async for event in self.link.events():
            if isinstance(event, LinkUp):
                await self.link.subscribe(*names, qos=1)
                self._is_listening.set()
            elif isinstance(event, Packet):
                name = names[event.topic]
                match decode_to_device(event.payload):
                    case Train():
                        self._offer(name)
                    case Grant(id=blob):
                        self.group.start_soon(self._upload, name, blob)
                    case _:
                        pass

    def _offer(self, name: str) -> None:
        device = self.devices[name]
        self.executor.on_offer(
            name,
            Offer(
                round=ROUND,
                manifest=self._manifest(os.urandom(16)),
                model=MODEL_SHA256,
                phases=PHASES,
                n_k=device.n_k,
                steps=1,
                was_cold=False,
                loss_before=device.loss_before,
            ),
        )

    async def _upload(self, name: str, blob: bytes) -> None:
        device, count = self.devices[name], self._manifest(blob).chunk_count
        for index in range(count):
            if device.vanishes and index == count // 2:
                self.executor.mark_lost(name, "gone")
                return
            self.executor.on_frame(name, encode_chunk(blob, index, device.chunk(index)))
            await anyio.lowlevel.checkpoint()
        self.arrived.append(name)
        done = UploadDone(round=ROUND, id=blob, sha256=device.sha256, model=MODEL_SHA256)
        self.executor.on_done(name, done)

    def _manifest(self, blob: bytes) -> Manifest:
        return Manifest(
            id=blob,
            kind="update",
            size_bytes=self.layout.size_bytes,
            chunk_bytes=DEFAULT_CHUNK_BYTES,
        )


@asynccontextmanager
async def simulated_fleet(
    devices: Mapping[str, Device], layout: Layout, accumulator: Accumulator, folder: Path
) -> AsyncIterator[SimulatedFleet]:
    """Connect an executor and its devices; `folder` receives the store."""
    broker, topics, registry = MemoryBroker(), Topics(), Registry()
    registry.expect(devices)
    store = Store.create(
        folder,
        NewRun(
            run_id="simulated_fleet",
            name="simulated_fleet",
            experiment_toml="",
            seed=0,
            config_hash="",
            version="0",
        ),
    )
    try:
        async with (
            broker.transport("coordinator") as ours,
            broker.transport("simulated_fleet") as theirs,
            anyio.create_task_group() as group,
        ):
            event_log = EventLog(store, time.perf_counter, _raise)
            uploads = Uploads(layout, event_log.now, LimitsConfig(check="off"))
            executor = RoundExecutor(Publisher(ours, topics), uploads, event_log, group)
            merge = RoundMerge(accumulator, registry)
            place = SimulatedFleet(devices, layout, executor, merge, theirs, group)
            group.start_soon(place.listen)
            group.start_soon(executor.watch_deadlines)
            await _connected(ours)
            yield place
            group.cancel_scope.cancel()
    finally:
        store.close()


def _raise(failure: StoreError) -> None:
    raise failure


async def _connected(link: Transport) -> None:
    async for event in link.events():
        if isinstance(event, LinkUp):
            return


def _train() -> Train:
    return Train(
        round=ROUND,
        model=MODEL,
        hyperparameters=Hyperparameters(epochs=1, batch_size=1, learning_rate=0.1),
        seed=0,
        needs_loss=False,
        deadline_s=1.0,
    )
