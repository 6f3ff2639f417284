"""One device of the exchange benchmark: the agent's own pulls and pushes, without training."""

import os
import random
import time
from contextlib import suppress

import numpy as np
from anyio.abc import TaskGroup

from fairbed.device_agent.notify import Notify
from fairbed.device_agent.publisher import DevicePublisher
from fairbed.device_agent.state.link_estimate import LinkEstimate
from fairbed.device_agent.transfers import Pulls, Push
from fairbed.wire.chunks import decode_chunk, suitable_chunk_bytes
from fairbed.wire.codec import decode_to_device
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import (
    Grant,
    Manifest,
    Offer,
    Phases,
    UploadAck,
    UploadDone,
    UploadResult,
)
from fairbed.wire.tensors import vector_to_bytes
from fairbed.wire.topics import Topics
from fairbed.wire.transfer import Download, Upload
from fairbed.wire.transport.base import LinkDown, LinkUp, Packet
from fairbed.wire.transport.client import MqttTransport

RESEND_S = 1.0
"""Time without an answer after which an offer or a hash is sent again."""

_NO_PHASES = Phases(
    download_s=0.0, load_s=0.0, evaluate_s=0.0, train_s=0.0, train_cpu_s=0.0, encode_s=0.0
)
_NO_MODEL = bytes(32)


class Monotonic:
    """The clock of the benchmark."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.perf_counter()


class ExchangeDevice:
    """A device that pulls and pushes on command."""

    def __init__(
        self, name: str, url: str, group: TaskGroup, n_bytes: int, drop: float, seed: int
    ) -> None:
        self.name = name
        self.link = LinkEstimate()
        self.linked = Notify()
        self.repeats = self.dropped = 0
        self.is_verified = True
        """Whether all vectors so far had the right hash."""
        self.update = random_vector(n_bytes, seed)
        self._topics = Topics()
        self._clock = Monotonic()
        self._transport = MqttTransport(url, name)
        self._publisher = DevicePublisher(self._transport, self._topics, name, group)
        self._pulls = Pulls(self._publisher, self._topics, self._clock, self.link)
        self._drop, self._rng = drop, random.Random(seed)
        self._changed = Notify()
        self._pulled: Download | None = None
        self._sha256 = b""
        self._offer: Offer | None = None
        self._grant: Grant | None = None
        self._push: Push | None = None
        self._done: UploadDone | None = None
        self._received: UploadResult | None = None

    async def run(self) -> None:
        """Stay on the link until cancelled."""
        async with self._transport:
            with suppress(Disconnected):  # the filter is remembered until the link is up
                await self._transport.subscribe(self._topics.control(self.name), qos=1)
            async for event in self._transport.events():
                match event:
                    case Packet():
                        self._on_packet(event)
                    case LinkUp():
                        self._on_link_up()
                    case LinkDown():
                        self._pulls.on_link_down()

    async def pull(self, manifest: Manifest) -> float:
        """Pull a blob; return the duration, seconds."""
        started_s = self._clock.now()
        pull = await self._pulls.fetch(manifest)
        self._pulled = pull.download
        self.repeats += pull.download.rerequests
        return (pull.download.finished_at or self._clock.now()) - started_s

    async def push(self, chunk_bytes: int | None) -> float:
        """Offer the update, send it, wait for the result; return grant to last ack, seconds."""
        chunk = chunk_bytes or suitable_chunk_bytes(self.link.uplink_bps, len(self.update))
        manifest = Manifest(
            id=os.urandom(16), kind="update", size_bytes=len(self.update), chunk_bytes=chunk
        )
        self._grant = self._push = self._done = self._received = None
        self._offer = Offer(
            round=1,
            manifest=manifest,
            model=_NO_MODEL,
            phases=_NO_PHASES,
            n_k=1,
            steps=1,
            was_cold=False,
        )
        self._publisher.publish(self._offer)
        while (grant := self._granted()) is None:
            if not await self._changed.wait(RESEND_S):
                self._publisher.publish(self._offer)
        granted_s = self._clock.now()
        upload = Upload(manifest, self.update, self.link.uplink_bps)
        self._push = Push(upload, self._publisher, self._clock, self._publish_done)
        await self._push.run(grant.window)
        self.repeats += upload.resent
        if self._push.elapsed_s is not None:
            self.link.on_transfer("up", len(self.update), self._push.elapsed_s, self._clock.now())
        while (received := self._result()) is None:
            if not await self._changed.wait(RESEND_S):
                self._publish_done()
        self.is_verified &= received.accepted
        return (self._push.acknowledged_at or self._clock.now()) - granted_s

    def hash_update(self, sha256: bytes) -> None:
        """Set the hash of the update, computed before the measurement."""
        self._sha256 = sha256

    def verify(self) -> None:
        """Compare the pulled blob with its hash, and free it.

        Raises:
            DecodeError: The hash differs.
        """
        if self._pulled is not None:
            self._pulled.verify()
        self._pulled = None

    def _granted(self) -> Grant | None:
        return self._grant

    def _result(self) -> UploadResult | None:
        return self._received

    def _publish_done(self) -> None:
        if self._push is None:
            return
        upload = self._push.upload
        done = UploadDone(
            round=1,
            id=upload.manifest.id,
            sha256=self._sha256,
            model=_NO_MODEL,
            measured={"resent_up": upload.resent},
        )
        self._publisher.publish(done)

    def _on_link_up(self) -> None:
        self.linked.notify()
        self._pulls.on_link_up()
        if self._push is not None:
            self._push.on_link_up()
        elif self._offer is not None and self._grant is None:
            self._publisher.publish(self._offer)

    def _on_packet(self, packet: Packet) -> None:
        if not packet.payload:
            return  # a chunk was removed from the broker
        if packet.topic != self._topics.control(self.name):
            if self._drop and self._rng.random() < self._drop:
                self.dropped += 1
                return
            self._pulls.on_chunk(decode_chunk(packet.payload), packet.topic)
            return
        message = decode_to_device(packet.payload)
        offered = self._offer.manifest.id if self._offer is not None else None
        match message:
            case Grant() if message.id == offered:
                self._grant = message
                if self._push is not None:
                    self._push.on_grant(message.window)
            case UploadAck() if self._push is not None and message.id == offered:
                self._push.on_ack(message.received)
            case UploadResult() if message.id == offered:
                self._received = message
                if self._push is not None:
                    self._push.close()
            case _:
                return
        self._changed.notify()


def random_vector(n_bytes: int, seed: int) -> memoryview:
    """Return a vector of finite float32, as bytes."""
    rng = np.random.default_rng(seed)
    return vector_to_bytes(rng.standard_normal(n_bytes // 4, dtype=np.float32))
