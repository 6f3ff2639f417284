"""Blobs between this device and the network: drives `wire.transfer` over the transport.

Chunks of a public blob are retained messages: a device subscribes to request them, and
unsubscribes when they have arrived. Chunks of a private blob are requested by message. No code here
waits for the SUBACK: on a slow link it arrives after the chunks themselves.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from fairbed.device_agent.host import Clock
from fairbed.device_agent.notify import Notify
from fairbed.device_agent.publisher import DevicePublisher
from fairbed.device_agent.state.link_estimate import LinkEstimate
from fairbed.wire.chunks import Chunk
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import ChunkRequest, Manifest
from fairbed.wire.topics import Topics
from fairbed.wire.transfer import Download, Upload


class Source(Protocol):
    """Where the chunks of a blob come from."""

    def request(self, indices: Sequence[int]) -> None:
        """Request these chunks, again if they were requested before."""
        ...

    def release(self, indices: Sequence[int]) -> None:
        """These chunks are not expected any more."""
        ...


class PublicSource:
    """Retained chunks of a blob that every device reads."""

    def __init__(self, publisher: DevicePublisher, topics: Topics, manifest: Manifest) -> None:
        self._publisher = publisher
        self._topics = topics
        self._id = manifest.id
        self._blob = manifest.id.hex()
        self._requested: set[int] = set()

    def request(self, indices: Sequence[int]) -> None:
        """Subscribe, which makes the broker send what it keeps.

        A chunk requested before may be missing in the broker: the coordinator is asked for it.
        """
        self._publisher.subscribe(*(self._topics.chunk(self._blob, index) for index in indices))
        again = [index for index in indices if index in self._requested]
        if again:
            self._publisher.publish(ChunkRequest(id=self._id, chunks=again), qos=0)
        self._requested.update(indices)

    def release(self, indices: Sequence[int]) -> None:
        """Unsubscribe."""
        self._requested.difference_update(indices)
        self._publisher.unsubscribe(*(self._topics.chunk(self._blob, index) for index in indices))


class PrivateSource:
    """Chunks that the coordinator sends to this device alone."""

    def __init__(self, publisher: DevicePublisher, manifest: Manifest) -> None:
        self._publisher = publisher
        self._id = manifest.id

    def request(self, indices: Sequence[int]) -> None:
        """Request them by message."""
        self._publisher.publish(ChunkRequest(id=self._id, chunks=list(indices)), qos=0)

    def release(self, indices: Sequence[int]) -> None:
        """Do nothing: a request leaves no subscription."""


class Pull:
    """One blob on its way in."""

    def __init__(self, download: Download, source: Source, clock: Clock) -> None:
        self.download = download
        self._source = source
        self._clock = clock
        self._wakeup = Notify()
        self._wanted: list[int] = []
        self._arrived: list[int] = []
        self._requested: set[int] = set()

    async def run(self) -> None:
        """Return when every chunk is here; the hash is still to be compared.

        There is no time limit here: the caller's scope has one.
        """
        download = self.download
        try:
            self._wanted += download.start(self._clock.now())
            self._flush()
            while not download.is_complete:
                await self._wakeup.wait(_until(download.wake_at, self._clock))
                self._wanted += download.tick(self._clock.now())
                self._flush()
        finally:
            self._release(self._requested)

    @property
    def elapsed_s(self) -> float | None:
        """Time from the first request to the last chunk; None if something had to be repeated."""
        download = self.download
        if download.finished_at is None or download.started_at is None or download.rerequests:
            return None
        return download.finished_at - download.started_at

    def on_chunk(self, chunk: Chunk) -> None:
        """Take a chunk of this blob.

        Raises:
            DecodeError: It does not fit the manifest.
        """
        self._wanted += self.download.on_chunk(chunk, self._clock.now())
        self._arrived.append(chunk.index)
        self._wakeup.notify()

    def on_link_down(self) -> None:
        """Forget the subscriptions: `on_link_up` decides anew what to ask for."""
        self._wanted.clear()
        self._release(self._requested)

    def on_link_up(self) -> None:
        """Ask again for what was in flight."""
        self._wanted += self.download.on_link_up(self._clock.now())
        self._wakeup.notify()

    def _flush(self) -> None:
        """Unsubscribe from arrived chunks and request wanted ones, each in one packet.

        Arrived chunks are released only with a new request; at the end `run` releases the rest.
        """
        wanted, self._wanted = self._wanted, []
        if wanted:
            arrived, self._arrived = self._arrived, []
            self._release(self._requested.intersection(arrived))
            self._requested.update(wanted)
            self._source.request(wanted)

    def _release(self, indices: set[int]) -> None:
        if indices:
            self._source.release(sorted(indices))
            self._requested = self._requested - indices


class Push:
    """One update on its way out."""

    def __init__(
        self, upload: Upload, publisher: DevicePublisher, clock: Clock, on_sent: Callable[[], None]
    ) -> None:
        self.upload = upload
        self.is_sent = False
        """Each chunk has gone out at least once; `on_sent` is called when it turns true."""
        self.started_at: float | None = None
        self.acknowledged_at: float | None = None
        self._publisher = publisher
        self._clock = clock
        self._wakeup = Notify()
        self._on_sent = on_sent
        self._due: deque[int] = deque()
        self._is_closed = False

    async def run(self, window: int) -> None:
        """Send until every chunk is acknowledged, or `close` was called.

        There is no time limit here: the caller's scope has one.
        """
        self.started_at = self._clock.now()
        self.on_grant(window)
        while not (self.upload.is_acknowledged or self._is_closed):
            if await self._send_due() and self.upload.is_all_sent:
                self._mark_sent()
            await self._wakeup.wait(_until(self.upload.wake_at, self._clock))
            self._due.extend(self.upload.tick(self._clock.now()))
        self._mark_sent()

    @property
    def elapsed_s(self) -> float | None:
        """Time from the first chunk to the last ack; None if something had to be repeated."""
        if self.started_at is None or self.acknowledged_at is None or self.upload.resent:
            return None
        return self.acknowledged_at - self.started_at

    def on_grant(self, window: int) -> None:
        """Begin, or begin again after the coordinator came back."""
        self._due.extend(self.upload.on_grant(window, self._clock.now()))
        self._wakeup.notify()

    def on_ack(self, received: bytes) -> None:
        """Take the coordinator's bitmap.

        Raises:
            DecodeError: It is not one of this update.
        """
        now = self._clock.now()
        self._due.extend(self.upload.on_ack(received, now))
        if self.upload.is_acknowledged and self.acknowledged_at is None:
            self.acknowledged_at = now
        self._wakeup.notify()

    def on_link_up(self) -> None:
        """Send again what was in flight."""
        self._due.clear()
        self._due.extend(self.upload.on_link_up(self._clock.now()))
        self._wakeup.notify()

    def close(self) -> None:
        """Stop sending: the coordinator needs nothing more."""
        self._is_closed = True
        self._wakeup.notify()

    def _mark_sent(self) -> None:
        if not self.is_sent:
            self.is_sent = True
            self._on_sent()

    async def _send_due(self) -> bool:
        """Send what is due; tell whether all of it went out."""
        while self._due and not self._is_closed:
            frame = self.upload.frame(self._due.popleft())
            try:
                await self._publisher.send_chunk(frame)
            except Disconnected:  # `on_link_up` begins again with all that is in flight
                self._due.clear()
                return False
        return True


class Pulls:
    """The downloads under way, by blob; chunks are handed to the right one."""

    def __init__(
        self, publisher: DevicePublisher, topics: Topics, clock: Clock, link: LinkEstimate
    ) -> None:
        self._publisher = publisher
        self._topics = topics
        self._clock = clock
        self._link = link
        self._by_blob: dict[bytes, Pull] = {}

    async def fetch(self, manifest: Manifest) -> Pull:
        """Pull a blob, and learn the downlink from it; its hash is still to be compared."""
        source: Source
        if manifest.kind == "shard":
            source = PrivateSource(self._publisher, manifest)
        else:
            source = PublicSource(self._publisher, self._topics, manifest)
        download = Download(manifest, rate_bps=self._link.downlink_bps)
        pull = Pull(download, source, self._clock)
        self._by_blob[manifest.id] = pull
        try:
            await pull.run()
        finally:
            if self._by_blob.get(manifest.id) is pull:
                del self._by_blob[manifest.id]
        if pull.elapsed_s is not None:
            self._link.on_transfer("down", manifest.size_bytes, pull.elapsed_s, self._clock.now())
        return pull

    def on_chunk(self, chunk: Chunk) -> None:
        """Pass a chunk to its download; one of no download is late, and ignored.

        Raises:
            DecodeError: It does not fit its manifest.
        """
        pull = self._by_blob.get(chunk.blob)
        if pull is not None:
            pull.on_chunk(chunk)

    def on_link_down(self) -> None:
        """Forget all subscriptions to chunks."""
        for pull in self._by_blob.values():
            pull.on_link_down()

    def on_link_up(self) -> None:
        """Resume all downloads."""
        for pull in self._by_blob.values():
            pull.on_link_up()


def _until(wake_at: float | None, clock: Clock) -> float | None:
    return None if wake_at is None else max(0.0, wake_at - clock.now())
