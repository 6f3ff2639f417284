"""Blobs that devices download: public ones as retained chunks, private ones on request.

The retained `Intent` of a public blob is published before its first chunk and cleared after its
last one. So after a crash the next coordinator knows which chunks to clear. The names of blobs in
their topics are used again, because mosquitto keeps each topic that once had a retained message.
"""

import logging
from collections import deque
from dataclasses import dataclass

import anyio
from msgspec.structs import replace

from fairbed.wire.chunks import SLOW_CHUNK_BYTES, chunk_slice, encode_chunk
from fairbed.wire.codec import decode_intent, encode
from fairbed.wire.errors import DecodeError, Disconnected
from fairbed.wire.messages import MAX_VECTOR_BYTES, ChunkRequest, Intent, Manifest
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import Packet, Transport

REPEAT_S = 1.0
"""Shortest time between two publishes of a public chunk on request: half the shortest time between
re-requests (`wire.transfer`), so that each re-request is served."""

MAX_CLEARED = MAX_VECTOR_BYTES // SLOW_CHUNK_BYTES
"""Most chunks of a blob that is cleared, 65,536: those of the largest blob on a slow link. A record
of more chunks was not written by a coordinator."""

CLEARED_AT_ONCE = 64
"""Chunks that are cleared before a waiting blob is published: some milliseconds."""

CLEAR_PAUSE_S = 0.005
"""Pause after them, for other messages."""

MAX_LEFTOVERS = 64
"""Records of blobs that are handled at a time, each until its blob is cleared; others stay until
the next connect. A coordinator has a few blobs at a time."""

NAMES_AT_REST = 4
"""Names that stay unused; of more, the longest unused one is taken. A device that has not yet
unsubscribed from a removed version gets no chunk of the next one."""

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class SideTraffic:
    """Counts bytes other than models and updates: shards down, link probes both ways."""

    down_bytes: int = 0
    up_bytes: int = 0

    def take(self) -> tuple[int, int]:
        """Return (down, up) since the last call, and reset both."""
        taken = self.down_bytes, self.up_bytes
        self.down_bytes = self.up_bytes = 0
        return taken


@dataclass(frozen=True, slots=True)
class _Blob:
    manifest: Manifest
    data: memoryview

    def frame(self, index: int) -> bytes:
        return encode_chunk(self.manifest.id, index, self.data[chunk_slice(self.manifest, index)])


class PublicBlobs:
    """The retained chunks in the broker: a few blobs, published again after each reconnect."""

    def __init__(self, transport: Transport, topics: Topics, boot: int) -> None:
        self._transport = transport
        self._topics = topics
        self._boot = boot
        self._live: dict[bytes, _Blob] = {}
        self._repeated: dict[tuple[bytes, int], float] = {}
        """When each chunk of a live blob was last published on request."""
        self._lock = anyio.Lock()
        self._leftovers: set[str] = set()
        """Names of blobs of earlier coordinators that are cleared, or wait for it."""
        self._n_records = 0
        """Records that are being handled."""
        self._clearing = anyio.Lock()
        self._n_names = 0
        self._unused = deque[str]()
        """Names whose topics are clear."""
        self._uncleared: set[str] = set()
        """Names whose topics may not be clear, because the link was down."""

    def named(self, manifest: Manifest) -> Manifest:
        """Return the manifest with a name that no other live blob of this process has."""
        live = self._live.get(manifest.id)
        if live is not None:
            return replace(manifest, name=live.manifest.name)
        if len(self._unused) > NAMES_AT_REST:
            return replace(manifest, name=self._unused.popleft())
        self._n_names += 1
        return replace(manifest, name=f"{self._boot:x}-{self._n_names}")

    async def publish(self, manifest: Manifest, data: bytes | memoryview) -> None:
        """Publish a blob to all devices; without a link it is published at the next reconnect."""
        async with self._lock:
            self._live[manifest.id] = _Blob(manifest, memoryview(data))
            await self._store(manifest.id)

    async def retire(self, blob_id: bytes) -> None:
        """Remove a blob from the broker."""
        async with self._lock:
            blob = self._live.pop(blob_id, None)
            self._repeated = {key: at for key, at in self._repeated.items() if key[0] != blob_id}
            if blob is None:
                return
            is_clear, name = await self._clear(blob.manifest), blob.manifest.name
            if name is not None and is_clear:
                self._unused.append(name)
            elif name is not None:
                self._uncleared.add(name)

    async def on_link_up(self) -> None:
        """Publish all live blobs again, because a restarted broker has lost them."""
        await self._subscribe_to_intents()
        async with self._lock:
            for blob_id in list(self._live):
                await self._store(blob_id)

    async def on_intent(self, packet: Packet) -> None:
        """Clear a blob that is not live, for example one of an earlier coordinator.

        Any client that may write records decides their number and size, so little is done at a
        time.
        """
        if not packet.payload or self._n_records >= MAX_LEFTOVERS:
            return
        self._n_records += 1
        try:
            await self._on_record(packet)
        finally:
            self._n_records -= 1

    async def _on_record(self, packet: Packet) -> None:
        try:
            intent = decode_intent(packet.payload)
        except DecodeError as exc:
            _LOG.warning("unreadable intent on %s, cleared: %s", packet.topic, exc)
            await self._publish(packet.topic, b"", qos=1)
            return
        name, count = intent.manifest.topic_name, intent.manifest.chunk_count
        if packet.topic != self._topics.intent(name) or count > MAX_CLEARED:
            _LOG.warning("record of %d chunks on %s: not of a coordinator", count, packet.topic)
            await self._publish(packet.topic, b"", qos=1)
            return
        if name in self._leftovers:
            return
        self._leftovers.add(name)
        try:
            async with self._clearing:
                await self._clear_leftover(intent.manifest)
        finally:
            self._leftovers.discard(name)

    async def on_request(self, request: ChunkRequest) -> bool:
        """Publish the requested chunks again; return whether the blob is public.

        Each chunk is published at most every `REPEAT_S`, for all devices together.
        """
        if request.id not in self._live:
            return False
        async with self._lock:
            blob = self._live.get(request.id)
            if blob is None:
                return True
            for index in request.chunks:
                key, now = (request.id, index), anyio.current_time()
                is_known = index < blob.manifest.chunk_count
                if not is_known or now - self._repeated.get(key, -REPEAT_S) < REPEAT_S:
                    continue
                self._repeated[key] = now
                await self._publish(
                    self._topics.chunk(blob.manifest.topic_name, index), blob.frame(index), qos=0
                )
        return True

    async def clear_all(self) -> None:
        """Remove all blobs from the broker."""
        for blob_id in list(self._live):
            await self.retire(blob_id)

    async def _subscribe_to_intents(self) -> None:
        try:
            await self._transport.subscribe(self._topics.intent("+"), qos=1)
        except Disconnected as exc:
            _LOG.info(
                "blobs of earlier coordinators will be cleared after the next connect: %s", exc
            )

    async def _store(self, blob_id: bytes) -> None:
        blob = self._live[blob_id]
        name = blob.manifest.topic_name
        intent = Intent(manifest=blob.manifest, boot=self._boot)
        if not await self._publish(self._topics.intent(name), encode(intent), qos=1):
            return
        for index in range(blob.manifest.chunk_count):
            if not await self._publish(self._topics.chunk(name, index), blob.frame(index), qos=0):
                return

    async def _clear_leftover(self, manifest: Manifest) -> None:
        """Clear a blob of an earlier coordinator, some chunks at a time, until it is live again."""
        name, count = manifest.topic_name, manifest.chunk_count
        for start in range(0, count, CLEARED_AT_ONCE):
            async with self._lock:
                if any(blob.manifest.topic_name == name for blob in self._live.values()):
                    return
                if not start:
                    _LOG.info("clearing blob %s of an earlier coordinator", name)
                for index in range(start, min(start + CLEARED_AT_ONCE, count)):
                    if not await self._publish(self._topics.chunk(name, index), b"", qos=0):
                        return
                if start + CLEARED_AT_ONCE >= count:
                    is_clear = await self._publish(self._topics.intent(name), b"", qos=1)
                    if is_clear and name in self._uncleared:
                        self._uncleared.discard(name)
                        self._unused.append(name)
                    return
            await anyio.sleep(CLEAR_PAUSE_S)

    async def _clear(self, manifest: Manifest) -> bool:
        """Clear a blob; return whether the broker has confirmed it."""
        name = manifest.topic_name
        for index in range(manifest.chunk_count):
            if not await self._publish(self._topics.chunk(name, index), b"", qos=0):
                return False
        return await self._publish(self._topics.intent(name), b"", qos=1)

    async def _publish(self, topic: str, payload: bytes, *, qos: int) -> bool:
        try:
            await self._transport.publish(topic, payload, qos=qos, retain=True)
        except Disconnected as exc:
            _LOG.info("chunks wait for the next connect: %s", exc)
            return False
        return True


class PrivateBlobs:
    """Blobs for one device each, whose chunks are sent on request."""

    def __init__(self, transport: Transport, topics: Topics, traffic: SideTraffic) -> None:
        self._transport = transport
        self._topics = topics
        self._traffic = traffic
        self._blobs: dict[str, _Blob] = {}
        self._sent_at: dict[str, dict[int, float]] = {}
        """When each chunk was last sent to a device."""

    def offer(self, device: str, manifest: Manifest, data: bytes) -> None:
        """Offer a blob to `device`; it replaces the previous one."""
        known = self._blobs.get(device)
        if known is None or known.manifest.id != manifest.id:
            self._sent_at[device] = {}
        self._blobs[device] = _Blob(manifest, memoryview(data))

    def drop(self, device: str) -> None:
        """Free a blob that has arrived."""
        self._blobs.pop(device, None)
        self._sent_at.pop(device, None)

    async def on_request(self, device: str, request: ChunkRequest) -> None:
        """Send the chunks that a device requests; an unknown blob or index is ignored.

        Each chunk is sent at most every `REPEAT_S`: a request is small, its answer is not.
        """
        blob = self._blobs.get(device)
        if blob is None or blob.manifest.id != request.id:
            return
        for index in request.chunks:
            now, sent_at = anyio.current_time(), self._sent_at.setdefault(device, {})
            is_known = index < blob.manifest.chunk_count
            if not is_known or now - sent_at.get(index, -REPEAT_S) < REPEAT_S:
                continue
            sent_at[index] = now
            frame = blob.frame(index)
            self._traffic.down_bytes += len(frame)
            try:
                await self._transport.publish(self._topics.data(device), frame, qos=0)
            except Disconnected:
                return
