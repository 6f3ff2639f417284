"""Devices that break the rules of the protocol, one rule each."""

import hashlib
import math
import os
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

import anyio
import msgspec
import numpy as np
from msgspec import structs

from fairbed.wire.chunks import chunk_slice, encode_chunk
from fairbed.wire.codec import decode_to_device, encode
from fairbed.wire.codecs import pack, packed_bytes
from fairbed.wire.codecs.int8 import Int8Blocks
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import (
    MAX_VECTOR_BYTES,
    Cancel,
    ChunkRequest,
    CoordinatorStatus,
    Failed,
    Grant,
    Hello,
    Manifest,
    Message,
    Offer,
    Train,
    UploadDone,
)
from fairbed.wire.tensors import vector_to_bytes
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet, Transport
from tests.coordinator.builders import CAPABILITIES, context, phases
from tests.coordinator.lab import ARTIFACT, Lab

VECTOR_BYTES = ARTIFACT.spec.layout.size_bytes
PACKED_BYTES = packed_bytes(Int8Blocks(), ARTIFACT.spec.layout)


class Rogue:
    """A device that joins like any other and misbehaves when it receives a `Train` message."""

    name = "rogue"

    def __init__(
        self, misbehave: "Trick", codecs: tuple[str, ...] = (), report_s: float = 0.2
    ) -> None:
        self._misbehave = misbehave
        self._codecs = codecs
        self._report_s = report_s
        """Time from one context to the next."""
        self.is_silent = False
        """It sends no context until its exchange is cancelled."""
        self.boot = 1
        """Of its agent process."""
        self._topics = Topics()
        self.vector_bytes = VECTOR_BYTES
        self.link: Transport
        self.train: Train
        self.pending: tuple[Manifest, bytes, bytes | None] | None = None
        """Manifest, data and hash to upload after the grant."""
        self.measured: dict[str, float] = {}
        """Numbers that it reports with the hash."""

    async def run(self, lab: Lab) -> None:
        """Join, report readiness, and handle packets."""
        self.vector_bytes = lab.artifact.spec.layout.size_bytes
        self.link = lab.links.transport(self.name)
        async with self.link, anyio.create_task_group() as group:
            group.start_soon(self._report)
            async for event in self.link.events():
                if isinstance(event, LinkUp):
                    mine = (self._topics.control(self.name), self._topics.coordinator)
                    await self.link.subscribe(*mine, qos=1)
                elif isinstance(event, Packet):
                    await self._on_packet(event.payload)

    async def send(self, message: Message) -> None:
        """Send a message to the coordinator."""
        await self.link.publish(self._topics.up(self.name), encode(message), qos=1)

    async def raw(self, payload: bytes) -> None:
        """Send bytes instead of a message."""
        await self.link.publish(self._topics.up(self.name), payload, qos=1)

    async def upload(self, manifest: Manifest, data: bytes, sha256: bytes | None = None) -> None:
        """Send all chunks and the hash, without waiting for credit."""
        for index in range(manifest.chunk_count):
            frame = encode_chunk(manifest.id, index, data[chunk_slice(manifest, index)])
            await self.link.publish(self._topics.upload(self.name), frame)
        await self.done(manifest, sha256 or hashlib.sha256(data).digest())

    async def done(self, manifest: Manifest, sha256: bytes) -> None:
        """Send a hash."""
        model = self.train.model.sha256
        assert model is not None
        round_id = self.train.round
        measured = self.measured
        await self.send(
            UploadDone(
                round=round_id, id=manifest.id, sha256=sha256, model=model, measured=measured
            )
        )

    def offer(
        self, size_bytes: int | None = None, chunk_bytes: int = 32 * 1024, **changes: object
    ) -> Offer:
        """Return an offer that is valid except for the changes."""
        manifest = Manifest(
            id=os.urandom(16),
            kind="update",
            size_bytes=size_bytes or self.vector_bytes,
            chunk_bytes=chunk_bytes,
        )
        fields: dict[str, object] = {
            "round": self.train.round,
            "attempt": self.train.attempt,
            "manifest": manifest,
            "model": self.train.model.sha256,
            "phases": phases(),
            "n_k": 40,
            "steps": 2,
            "was_cold": True,
        }
        return Offer(**(fields | changes))  # type: ignore[arg-type]

    async def _on_packet(self, payload: bytes | memoryview) -> None:
        message = decode_to_device(payload)
        if isinstance(message, CoordinatorStatus) and message.state == "on":
            capabilities = structs.replace(CAPABILITIES, codecs=self._codecs)
            await self.send(Hello(boot=self.boot, capabilities=capabilities, n_k=40))
        elif isinstance(message, Train):
            self.train = message
            await self._misbehave(self)
        elif isinstance(message, Grant) and self.pending is not None:
            await self.upload(*self.pending)
        elif isinstance(message, Cancel):
            self.is_silent = False

    async def _report(self) -> None:
        seq = 0
        while True:
            seq += 1
            message = context(seq=seq, boot=self.boot, n_k=40)
            with suppress(Disconnected):
                if not self.is_silent:
                    await self.link.publish(self._topics.telemetry(self.name), encode(message))
            await anyio.sleep(self._report_s)


Trick: TypeAlias = Callable[[Rogue], Awaitable[None]]


async def sends_nan(rogue: Rogue) -> None:
    """A vector with one value that is not a number."""
    vector = np.zeros(ARTIFACT.spec.layout.n_values, np.float32)
    vector[3] = np.nan
    offer = rogue.offer()
    rogue.pending = (offer.manifest, bytes(vector_to_bytes(vector)), None)
    await rogue.send(offer)


async def behaves(rogue: Rogue) -> None:
    """A complete float32 vector, as devices of all versions can send it."""
    offer = rogue.offer()
    rogue.pending = (offer.manifest, bytes(VECTOR_BYTES), None)
    await rogue.send(offer)


async def measures(
    rogue: Rogue,
    offered: Mapping[str, float] | None = None,
    sent: Mapping[str, float] | None = None,
) -> None:
    """A complete vector, with numbers of the exchange in the offer and beside the hash."""
    offer, rogue.measured = rogue.offer(measured=dict(offered or {})), dict(sent or {})
    rogue.pending = (offer.manifest, bytes(VECTOR_BYTES), None)
    await rogue.send(offer)


async def packs_garbage(rogue: Rogue) -> None:
    """The agreed number of bytes, but no vector."""
    offer = rogue.offer(size_bytes=PACKED_BYTES)
    rogue.pending = (offer.manifest, bytes(PACKED_BYTES), None)
    await rogue.send(offer)


async def packs_infinity(rogue: Rogue) -> None:
    """Changes that a scale makes infinite."""
    layout = ARTIFACT.spec.layout
    payload = bytearray(Int8Blocks().size_bytes(layout.n_params))
    payload[:4] = struct.pack("<f", math.inf)
    data = pack(Int8Blocks(), layout.n_params, bytes(payload), np.zeros(0, np.float32))
    offer = rogue.offer(size_bytes=PACKED_BYTES)
    rogue.pending = (offer.manifest, data, None)
    await rogue.send(offer)


async def claims_another_blob(rogue: Rogue) -> None:
    """A report of a model blob that was never announced."""
    await rogue.send(rogue.offer(size_bytes=PACKED_BYTES, pulled=bytes(16)))


async def sends_wrong_hash(rogue: Rogue) -> None:
    """A valid vector with the hash of another one."""
    offer = rogue.offer()
    rogue.pending = (offer.manifest, bytes(VECTOR_BYTES), bytes(32))
    await rogue.send(offer)


async def offers_wrong_shape(rogue: Rogue) -> None:
    """One value too few."""
    await rogue.send(rogue.offer(size_bytes=VECTOR_BYTES - 4))


async def offers_far_too_much(rogue: Rogue) -> None:
    """A gigabyte for a model of a few kilobytes."""
    await rogue.send(rogue.offer(size_bytes=1 << 30))


async def offers_another_round(rogue: Rogue) -> None:
    """An offer without a `Train` message."""
    await rogue.send(rogue.offer(round=99))


async def claims_no_examples(rogue: Rogue) -> None:
    """An update without training examples."""
    await rogue.send(rogue.offer(n_k=0))


async def reports_loss(rogue: Rogue, loss: float | None) -> None:
    """An update with a loss that a correct device cannot report, or none."""
    vector = np.zeros(ARTIFACT.spec.layout.n_values, np.float32)
    sound = 2.2345678
    offer = rogue.offer(loss_before=None if loss is None else sound)
    rogue.pending = (offer.manifest, bytes(vector_to_bytes(vector)), None)
    frame = encode(offer)
    if loss is not None:
        assert frame.count(struct.pack(">d", sound)) == 1
        frame = frame.replace(struct.pack(">d", sound), struct.pack(">d", loss))
    await rogue.raw(frame)


async def sends_a_huge_value(rogue: Rogue) -> None:
    """A finite vector with one value near the largest float32."""
    vector = np.zeros(ARTIFACT.spec.layout.n_values, np.float32)
    vector[3] = 3e38
    offer = rogue.offer()
    rogue.pending = (offer.manifest, bytes(vector_to_bytes(vector)), None)
    await rogue.send(offer)


async def claims_a_year_of_training(rogue: Rogue) -> None:
    """Phases that last longer than the exchange."""
    await rogue.send(rogue.offer(phases=phases(train_s=9e6)))


async def claims_a_huge_loss(rogue: Rogue) -> None:
    """A finite loss that no model has."""
    await rogue.send(rogue.offer(loss_train=1e29))


async def falls_silent(rogue: Rogue) -> None:
    """Nothing more until the coordinator has given it up; then it is there again."""
    rogue.is_silent = True


async def fails_late(rogue: Rogue) -> None:
    """A failure that the device could have reported at once; it is silent until then."""
    rogue.is_silent = True
    await anyio.sleep(12.0)
    rogue.is_silent = False
    await rogue.send(Failed(round=rogue.train.round, phase="train", reason="out of memory"))


async def floods(rogue: Rogue) -> None:
    """Chunks without a grant, out of range, corrupt, and of no known blob."""
    offer = rogue.offer()
    topic = Topics().upload(rogue.name)
    await rogue.send(offer)
    for index in (0, 7, 4_000_000):
        await rogue.link.publish(topic, encode_chunk(offer.manifest.id, index, b"x" * 100))
    await rogue.link.publish(topic, encode_chunk(os.urandom(16), 0, b"x"))
    await rogue.link.publish(topic, b"FB not a chunk at all, but long enough to look like one")
    await rogue.link.publish(topic, b"")


async def sends_garbage(rogue: Rogue) -> None:
    """Bytes that are not a message, and a message of a newer protocol."""
    await rogue.raw(b"")
    await rogue.raw(b"\x01\xff\xfe not msgpack")
    await rogue.raw(b"\x02" + encode(rogue.offer())[1:])


async def pretends_to_be_the_coordinator(rogue: Rogue) -> None:
    """A message that only the coordinator may send."""
    await rogue.raw(encode(rogue.train))


async def grants_itself_everything(rogue: Rogue) -> None:
    """The whole update and its hash 200 times, without a grant."""
    offer = rogue.offer()
    await rogue.send(offer)
    for _ in range(200):
        await rogue.upload(offer.manifest, bytes(rogue.vector_bytes), bytes(32))


async def offers_ten_gigabytes(rogue: Rogue) -> None:
    """A size above the limit of a manifest, and then the limit itself."""
    body = encode(rogue.offer())
    offer = msgspec.msgpack.decode(body[1:])
    offer["manifest"]["size_bytes"] = 10_000_000_000
    await rogue.raw(body[:1] + msgspec.msgpack.encode(offer))
    await rogue.send(rogue.offer(size_bytes=MAX_VECTOR_BYTES))


async def never_sends_the_last_chunk(rogue: Rogue) -> None:
    """All chunks but one, and the hash of all."""
    offer = rogue.offer(chunk_bytes=2048)
    data = bytes(rogue.vector_bytes)
    await rogue.send(offer)
    await anyio.sleep(0.3)  # until the grant has arrived
    for index in range(offer.manifest.chunk_count - 1):
        frame = encode_chunk(offer.manifest.id, index, data[chunk_slice(offer.manifest, index)])
        await rogue.link.publish(Topics().upload(rogue.name), frame)
    await rogue.done(offer.manifest, hashlib.sha256(data).digest())


async def requests_chunks_endlessly(rogue: Rogue) -> None:
    """Requests for all chunks of the model, as fast as the broker accepts them."""
    chunks = list(range(rogue.train.model.chunk_count))
    for blob in (rogue.train.model.id, bytes(16)) * 5_000:
        await rogue.link.publish(
            Topics().up(rogue.name), encode(ChunkRequest(id=blob, chunks=chunks))
        )
