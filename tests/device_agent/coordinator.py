"""A small coordinator for one device, controlled by a test.

It implements the protocol over a real transport: public blobs as retained chunks, replies to
requests for private chunks, reception of uploads. All other steps are calls of the test.
"""

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import anyio
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fairbed.wire.chunks import Chunk, chunk_slice, decode_chunk, encode_chunk, manifest_of
from fairbed.wire.codec import decode_from_agent, decode_from_device, encode
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import (
    BlobKind,
    ChunkRequest,
    Coding,
    Context,
    CoordinatorStatus,
    FromDevice,
    Grant,
    Hello,
    Hyperparameters,
    LinkProbe,
    LinkProbeReply,
    LocalTraining,
    Manifest,
    Message,
    Offer,
    Personal,
    Privacy,
    Signed,
    ToDevice,
    Train,
    UploadAck,
    UploadDone,
    UploadResult,
    Welcome,
)
from fairbed.wire.signature import Binding, is_signed_by, session_keys, sign
from fairbed.wire.tensors import vector_from_bytes, vector_to_bytes
from fairbed.wire.topics import Topics
from fairbed.wire.transfer import UploadReceiver
from fairbed.wire.transport.base import LinkUp, Packet, Transport

TIMEOUT_S = 60.0
WINDOW = 4
CHUNK_BYTES = 1024

M = TypeVar("M", bound=Message)


class FakeCoordinator:
    """Coordinator of one agent."""

    def __init__(
        self, transport: Transport, topics: Topics, device: str = "pi-07", boot: int = 1
    ) -> None:
        self.transport = transport
        self.topics = topics
        self.device = device
        self.boot = boot
        self.status_on = CoordinatorStatus(state="on", boot=boot, run="test")
        self.receiver: UploadReceiver | None = None
        self.number: int | None = None
        """Number of the device, for a client."""
        self.base: bytes | None = None
        """Frozen part of the model."""
        self.acknowledges = True
        """Acknowledge upload chunks."""
        self.replies_to_probes = True
        self.withheld: frozenset[int] = frozenset()
        """Chunks of the private blob that are not sent."""
        self.session_key: bytes | None = None
        """Signs the messages to the device; None signs none."""
        self.device_key: bytes | None = None
        """Signs those of the device; None takes any."""
        self.chunks: list[int] = []
        """Indices of upload chunks in the order of arrival."""
        self.seen: dict[type, list[FromDevice]] = defaultdict(list)
        """All messages so far, by type."""
        self._private: tuple[Manifest, bytes] | None = None
        self._changed = anyio.Event()
        self._taken: dict[type, int] = defaultdict(int)
        self._link_up = anyio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeCoordinator"]:
        """Serve for the duration of a block."""
        async with self.transport, anyio.create_task_group() as group:
            group.start_soon(self._serve)
            with anyio.fail_after(TIMEOUT_S):
                await self._link_up.wait()
            yield self
            group.cancel_scope.cancel()

    @property
    def binding(self) -> Binding:
        """What its messages are bound to."""
        status = self.status_on
        return Binding(status.run_id, status.boot, status.task or b"")

    async def sign_for(self, key: str, former: Hello | None = None) -> Hello:
        """Wait for a hello of another session than the former; begin it by a task key."""
        hello = await self.expect(Hello)
        while former is not None and hello.nonce == former.nonce:
            hello = await self.expect(Hello)
        self.session_key, self.device_key = session_keys(key, self.binding, hello)
        return hello

    async def announce(self) -> None:
        """Publish the `on` status of the coordinator."""
        await self.transport.publish(
            self.topics.coordinator, encode(self.status_on), qos=1, retain=True
        )

    async def send(self, message: Message, qos: int = 1) -> None:
        """Send a message to the device."""
        if self.session_key is not None:
            assert isinstance(message, ToDevice)
            message = sign(message, self.session_key)
        await self.transport.publish(self.topics.control(self.device), encode(message), qos=qos)

    async def expect(self, kind: type[M]) -> M:
        """Return the next message of a type that no `expect` has returned yet."""
        with anyio.fail_after(TIMEOUT_S):
            while len(self.seen[kind]) <= self._taken[kind]:
                await self._changed.wait()
        message = self.seen[kind][self._taken[kind]]
        self._taken[kind] += 1
        assert isinstance(message, kind)
        return message

    async def expect_context(self, *, is_ready: bool, phase: str | None = None) -> Context:
        """Return the next context with this readiness (and phase)."""
        while True:
            context = await self.expect(Context)
            if context.is_ready == is_ready and phase in (None, context.phase):
                return context

    def last_context(self) -> Context:
        """Return the newest context."""
        context = self.seen[Context][-1]
        assert isinstance(context, Context)
        return context

    async def expect_chunks(self, count: int) -> None:
        """Wait until `count` chunks of updates have arrived."""
        with anyio.fail_after(TIMEOUT_S):
            while len(self.chunks) < count:
                await self._changed.wait()

    async def publish_blob(
        self, kind: BlobKind, data: bytes, chunk_bytes: int = CHUNK_BYTES
    ) -> Manifest:
        """Publish the retained chunks of a public blob."""
        manifest = manifest_of(data, kind, chunk_bytes)
        for index in range(manifest.chunk_count):
            await self.publish_chunk(manifest, index, data[chunk_slice(manifest, index)])
        return manifest

    async def publish_chunk(self, manifest: Manifest, index: int, payload: bytes) -> None:
        """Publish one retained chunk."""
        frame = encode_chunk(manifest.id, index, payload)
        topic = self.topics.chunk(manifest.id.hex(), index)
        await self.transport.publish(topic, frame, qos=0, retain=True)

    def offer_shard(self, data: bytes) -> Manifest:
        """Offer a private blob."""
        manifest = manifest_of(data, "shard", CHUNK_BYTES)
        self._private = (manifest, data)
        return manifest

    async def join(self, task: bytes, shard: bytes | None) -> Context:
        """Welcome the device; return its first ready context."""
        await self.welcome(task, shard)
        return await self.expect_context(is_ready=True)

    async def welcome(self, task: bytes, shard: bytes | None) -> None:
        """Wait for `Hello` and reply with `Welcome`; `number` is that of a device with a client."""
        await self.expect(Hello)
        manifest = await self.publish_blob("task", task)
        private = None if shard is None else self.offer_shard(shard)
        count = None if self.number is None else 4
        base = None if self.base is None else await self.publish_blob("base", self.base)
        await self.send(
            Welcome(
                boot=self.boot,
                task=manifest,
                shard=private,
                number=self.number,
                count=count,
                base=base,
            )
        )

    async def request_training(
        self,
        round_id: int,
        vector: NDArray[np.float32],
        *,
        attempt: int = 0,
        needs_loss: bool = False,
        learning_rate: float = 0.5,
        deadline_s: float = 60.0,
        epochs: int = 1,
        keep_warm: bool = False,
        personal: Personal | None = None,
        local: LocalTraining | None = None,
        coding: Coding | None = None,
        privacy: Privacy | None = None,
        raw: bytes = b"",
        config: bytes = b"",
        hyperparameters: Hyperparameters | None = None,
    ) -> Train:
        """Publish a model and send a `Train`."""
        data = bytes(vector_to_bytes(vector)) + raw
        model = await self.publish_blob("model", data)
        train = Train(
            round=round_id,
            attempt=attempt,
            model=structs.replace(model, raw_bytes=len(raw)),
            hyperparameters=hyperparameters
            or Hyperparameters(epochs=epochs, batch_size=10, learning_rate=learning_rate),
            seed=round_id,
            needs_loss=needs_loss,
            deadline_s=deadline_s,
            keep_warm=keep_warm,
            personal=personal,
            local=local,
            coding=coding or Coding(),
            privacy=privacy,
            config=config,
        )
        await self.send(train)
        return train

    async def grant(self, offer: Offer) -> None:
        """Send a `Grant`."""
        if self.receiver is None or self.receiver.manifest.id != offer.manifest.id:
            self.receiver = UploadReceiver(offer.manifest, WINDOW)
        await self.send(Grant(round=offer.round, id=offer.manifest.id, window=WINDOW))

    async def receive(self, offer: Offer) -> NDArray[np.float32]:
        """Receive the update, verify it, accept it, and return its vector."""
        return vector_from_bytes(await self.receive_bytes(offer), offer.manifest.size_bytes // 4)

    async def receive_bytes(self, offer: Offer) -> bytes:
        """Receive the update, verify it, accept it, and return it as it was sent."""
        done = await self.expect(UploadDone)
        while done.id != offer.manifest.id:
            done = await self.expect(UploadDone)
        receiver = self.receiver
        assert receiver is not None
        with anyio.fail_after(TIMEOUT_S):
            while not receiver.is_complete:
                await self._changed.wait()
        receiver.verify(done.sha256)
        await self.send(UploadResult(round=offer.round, id=offer.manifest.id, accepted=True))
        return bytes(receiver.data)

    async def expect_offer(self, round_id: int) -> Offer:
        """Return the offer of a round."""
        offer = await self.expect(Offer)
        while offer.round != round_id:
            offer = await self.expect(Offer)
        return offer

    async def run_round(
        self, round_id: int, vector: NDArray[np.float32], **options: Any
    ) -> tuple[Offer, NDArray[np.float32]]:
        """Run one round; return the offer and the update."""
        await self.request_training(round_id, vector, **options)
        offer = await self.expect_offer(round_id)
        await self.grant(offer)
        update = await self.receive(offer)
        await self.expect_context(is_ready=True, phase="idle")
        return offer, update

    async def _serve(self) -> None:
        topics = self.topics
        with suppress(Disconnected):  # the filters take effect after the reconnect
            await self.transport.subscribe(topics.up("+"), topics.status("+"), qos=1)
        with suppress(Disconnected):
            await self.transport.subscribe(topics.telemetry("+"), topics.upload("+"))
        async for event in self.transport.events():
            match event:
                case LinkUp():
                    await self.announce()
                    self._link_up.set()
                case Packet():
                    await self._on_packet(event)
            self._changed.set()
            self._changed = anyio.Event()

    async def _on_packet(self, packet: Packet) -> None:
        _, channel = self.topics.device_of(packet.topic)
        if channel == "upload":
            await self._on_chunk(decode_chunk(packet.payload))
            return
        message = decode_from_agent(packet.payload)
        if isinstance(message, Signed):
            if self.device_key is not None and not is_signed_by(message, self.device_key):
                return
            message = decode_from_device(message.body)
        self.seen[type(message)].append(message)
        match message:
            case ChunkRequest():
                await self._send_private(message)
            case LinkProbe() if self.replies_to_probes:
                reply = LinkProbeReply(seq=message.seq, payload=bytes(message.reply_bytes))
                await self.send(reply, qos=0)

    async def _on_chunk(self, chunk: Chunk) -> None:
        self.chunks.append(chunk.index)
        receiver = self.receiver
        if receiver is None or chunk.blob != receiver.manifest.id:
            return
        if receiver.on_chunk(chunk, 0.0) and self.acknowledges:
            await self.send(UploadAck(id=chunk.blob, received=receiver.bitmap()), qos=0)

    async def _send_private(self, request: ChunkRequest) -> None:
        if self._private is None or request.id != self._private[0].id:
            return  # of a public blob: the broker has its chunks
        manifest, data = self._private
        for index in sorted(set(request.chunks) - self.withheld):
            frame = encode_chunk(manifest.id, index, data[chunk_slice(manifest, index)])
            await self.transport.publish(self.topics.data(self.device), frame)
