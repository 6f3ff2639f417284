"""The coordinator's side of the exchange benchmark: chunk store and uploads without rounds."""

import math
import random
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from benchmarks._exchange_device import Monotonic
from fairbed.coordinator.fleet.uploads import CompletedUpload, Uploads
from fairbed.coordinator.messaging.blobs import PublicBlobs
from fairbed.coordinator.messaging.publisher import Publisher
from fairbed.coordinator.state.exchange import (
    MAX_IN_FLIGHT_BYTES,
    in_flight_bytes,
    upload_slots,
    upload_window,
)
from fairbed.wire.codec import Buffer, decode_from_device
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import Grant, Manifest, Offer, UploadAck, UploadDone, UploadResult
from fairbed.wire.tensors import Layout, Tensor
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet
from fairbed.wire.transport.client import MqttTransport

NAME = "coordinator"
BOOT = 1


class ExchangeCoordinator:
    """Publishes models, grants uploads and receives them.

    As in a round, `slots` devices upload at a time; the next one is granted when one has ended.
    """

    def __init__(self, url: str, n_bytes: int, drop: float, seed: int, group: TaskGroup) -> None:
        self.clock = Monotonic()
        self.linked = anyio.Event()
        self.dropped = 0
        self._topics = Topics()
        self._transport = MqttTransport(url, NAME)
        self._publisher = Publisher(self._transport, self._topics)
        self.public = PublicBlobs(self._transport, self._topics, BOOT)
        layout = Layout(tensors=(Tensor(name="w", shape=(n_bytes // 4,), offset=0),))
        self._uploads = Uploads(layout, self.clock.now)
        self._n_slots = upload_slots(n_bytes)
        self._group = group
        self._drop, self._dice = drop, random.Random(seed)
        self._offers: dict[str, Manifest] = {}
        self._queued: deque[str] = deque()
        self._granted: set[str] = set()
        self._complete: dict[str, CompletedUpload] = {}
        self._verdicts: dict[str, UploadResult] = {}
        self._expected: set[str] = set()
        self._all_complete = anyio.Event()

    async def run(self) -> None:
        """Stay on the link until cancelled."""
        async with self._transport:
            with suppress(Disconnected):  # the filters are remembered until the link is up
                await self._transport.subscribe(self._topics.up("+"), qos=1)
            with suppress(Disconnected):
                await self._transport.subscribe(self._topics.upload("+"), qos=0)
            async for event in self._transport.events():
                match event:
                    case Packet():
                        self._on_packet(event)
                    case LinkUp():
                        self.linked.set()
                        self._group.start_soon(self.public.on_link_up)
                    case _:
                        pass

    def expect(self, names: Sequence[str]) -> None:
        """Open the uploads of these devices."""
        self._uploads.clear()
        self._offers.clear()
        self._queued.clear()
        self._granted.clear()
        self._complete.clear()
        self._verdicts.clear()
        self._expected = set(names)
        self._all_complete = anyio.Event()

    async def wait_complete(self) -> float:
        """Wait for all updates; return when the last chunk arrived."""
        await self._all_complete.wait()
        return max((complete.at for complete in self._complete.values()), default=math.nan)

    async def check(self) -> bool:
        """Verify every update, notify the devices, free the updates; return whether all passed."""
        is_right = True
        for device in sorted(self._expected):
            fault = await self._uploads.check(device)
            is_right &= fault is None
            id_ = self._offers[device].id
            result = UploadResult(round=1, id=id_, accepted=fault is None, reason=fault or "")
            self._verdicts[device] = result
            self._publisher.publish(device, result)
        for device in self._expected:
            self._uploads.release(device)
        return is_right

    def _on_packet(self, packet: Packet) -> None:
        if "/b/" in packet.topic:
            self._group.start_soon(self.public.on_intent, packet)
            return
        device, channel = self._topics.device_of(packet.topic)
        if channel == "upload":
            self._on_frame(device, packet.payload)
            return
        match decode_from_device(packet.payload):
            case Offer(manifest=manifest):
                self._on_offer(device, manifest)
            case UploadDone() if device in self._verdicts:  # it missed the result
                self._publisher.publish(device, self._verdicts[device])
            case UploadDone() as done:
                self._on_complete(device, self._uploads.on_done(device, done))
            case _:
                pass

    def _on_frame(self, device: str, frame: Buffer) -> None:
        if self._drop and self._dice.random() < self._drop:
            self.dropped += 1
            return
        bitmap, complete = self._uploads.on_frame(device, frame)
        if bitmap is not None:
            ack = UploadAck(id=self._offers[device].id, received=bitmap)
            self._publisher.publish(device, ack, qos=0)
        self._on_complete(device, complete)

    def _on_offer(self, device: str, manifest: Manifest) -> None:
        if device not in self._expected:
            return
        if self._offers.get(device) == manifest:  # repeated: the grant was lost, or is queued
            if device in self._granted:
                self._grant(device)
            return
        self._offers[device] = manifest
        self._queued.append(device)
        self._grant_next()

    def _grant_next(self) -> None:
        """Grant like `coordinator.state.round`, within the limits of slots and bytes in flight."""
        while self._queued:
            open_ = [self._offers[device] for device in self._granted - self._complete.keys()]
            flight = sum(in_flight_bytes(manifest) for manifest in open_)
            own = in_flight_bytes(self._offers[self._queued[0]])
            if len(open_) >= self._n_slots or (open_ and flight + own > MAX_IN_FLIGHT_BYTES):
                return
            device = self._queued.popleft()
            self._granted.add(device)
            self._uploads.open(device, self._offers[device], upload_window(self._offers[device]))
            self._grant(device)

    def _grant(self, device: str) -> None:
        manifest = self._offers[device]
        grant = Grant(round=1, id=manifest.id, window=upload_window(manifest))
        self._publisher.publish(device, grant)

    def _on_complete(self, device: str, complete: CompletedUpload | None) -> None:
        if complete is None or device in self._complete:
            return
        self._complete[device] = complete
        self._grant_next()
        if self._expected <= self._complete.keys():
            self._all_complete.set()
