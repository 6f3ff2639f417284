"""Transfers of this device: runs `wire.transfer` over the transport.

Chunks of a public blob are retained messages: the device subscribes to request them, and
unsubscribes when they have arrived. Chunks of a private blob are requested by message. No code here
waits for a SUBACK: on a slow link it arrives after the chunks.
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

NUDGE_S = 0.25
"""Time without a part of a chunk after which a broker may hold back the rest; doubled each time.
On a link with a longer round trip a nudge is wasted, 40 bytes."""


class Source(Protocol):
    """Source of the chunks of a blob."""

    def request(self, indices: Sequence[int]) -> None:
        """Request these chunks, for the first time or again."""
        ...

    def release(self, indices: Sequence[int]) -> None:
        """End the request of these chunks."""
        ...

    def nudge(self) -> None:
        """Let the broker send requested chunks that it holds back."""
        ...

    def topic(self, index: int) -> str:
        """Return the topic of a chunk: one on any other topic is not from this source."""
        ...


class PublicSource:
    """Source of a public blob: retained chunks that all devices read."""

    def __init__(self, publisher: DevicePublisher, topics: Topics, manifest: Manifest) -> None:
        self._publisher = publisher
        self._topics = topics
        self._id = manifest.id
        self._name = manifest.topic_name
        self._requested: set[int] = set()

    def request(self, indices: Sequence[int]) -> None:
        """Subscribe, so that the broker sends the retained chunks.

        A chunk requested again may be missing at the broker: it is requested from the coordinator,
        too.
        """
        self._publisher.subscribe(*(self._topics.chunk(self._name, index) for index in indices))
        again = [index for index in indices if index in self._requested]
        if again:
            self._publisher.publish(ChunkRequest(id=self._id, chunks=again), qos=0)
        self._requested.update(indices)

    def release(self, indices: Sequence[int]) -> None:
        """Unsubscribe."""
        self._requested.difference_update(indices)
        self._publisher.unsubscribe(*(self._topics.chunk(self._name, index) for index in indices))

    def nudge(self) -> None:
        """Subscribe to something else."""
        self._publisher.nudge()

    def topic(self, index: int) -> str:
        """Return the topic of the retained chunk."""
        return self._topics.chunk(self._name, index)


class PrivateSource:
    """Source of a private blob: the coordinator sends its chunks to this device only."""

    def __init__(self, publisher: DevicePublisher, manifest: Manifest) -> None:
        self._publisher = publisher
        self._id = manifest.id

    def request(self, indices: Sequence[int]) -> None:
        """Request the chunks by message."""
        self._publisher.publish(ChunkRequest(id=self._id, chunks=list(indices)), qos=0)

    def release(self, indices: Sequence[int]) -> None:
        """Do nothing: a request leaves no subscription."""

    def nudge(self) -> None:
        """Do nothing: a broker holds back retained messages only."""

    def topic(self, index: int) -> str:
        """Return the topic of all private chunks of the device."""
        return self._publisher.data_topic


class Pull:
    """One download in progress; `large_bytes` changes when a part of a chunk arrives."""

    def __init__(
        self, download: Download, source: Source, clock: Clock, large_bytes: Callable[[], int]
    ) -> None:
        self.download = download
        self._source = source
        self._clock = clock
        self._large_bytes = large_bytes
        self._wakeup = Notify()
        self._to_request: list[int] = []
        self._arrived: list[int] = []
        self._requested: set[int] = set()
        self._may_be_held = False
        """The last chunks were requested while earlier ones filled the socket of the broker."""

    async def run(self) -> None:
        """Return when every chunk has arrived; the hash is not verified yet.

        The caller's scope limits the time.
        """
        download = self.download
        try:
            now, received, quiet_s = self._clock.now(), self._large_bytes(), NUDGE_S
            nudge_at = now + quiet_s
            self._to_request += download.start(now)
            self._flush()
            while not download.is_complete:
                due_at = download.wake_at
                wake_at = nudge_at if due_at is None else min(nudge_at, due_at)
                is_chunk = await self._wakeup.wait(_until(wake_at, self._clock))
                now, before, received = self._clock.now(), received, self._large_bytes()
                if received != before:
                    download.on_part(now)
                if is_chunk or received != before:
                    quiet_s = NUDGE_S
                    nudge_at = now + quiet_s
                elif now >= nudge_at:
                    self._source.nudge()
                    quiet_s *= 2.0
                    nudge_at = now + quiet_s
                self._to_request += download.tick(now)
                is_last_request = is_chunk and not self._to_request
                self._flush()
                if is_last_request and self._may_be_held and not download.is_complete:
                    self._source.nudge()
        finally:
            self._release(self._requested)

    @property
    def elapsed_s(self) -> float | None:
        """Time from the first request to the last chunk; None after a repeated request."""
        download = self.download
        if download.finished_at is None or download.started_at is None or download.rerequests:
            return None
        return download.finished_at - download.started_at

    def on_chunk(self, chunk: Chunk, topic: str) -> None:
        """Handle a chunk of this blob; one on another topic than its own is ignored.

        Raises:
            DecodeError: The chunk does not fit the manifest.
        """
        if topic != self._source.topic(chunk.index):
            return
        self._to_request += self.download.on_chunk(chunk, self._clock.now())
        self._arrived.append(chunk.index)
        self._wakeup.notify()

    def on_link_down(self) -> None:
        """Release all requests: `on_link_up` starts new ones."""
        self._to_request.clear()
        self._release(self._requested)

    def on_link_up(self) -> None:
        """Request the chunks again that were in flight."""
        self._to_request += self.download.on_link_up(self._clock.now())
        self._wakeup.notify()

    def _flush(self) -> None:
        """Release arrived chunks and request the next ones, each in one packet.

        Arrived chunks are released only with a new request; at the end `run` releases the rest.
        """
        to_request, self._to_request = self._to_request, []
        if to_request:
            self._may_be_held = bool(self._arrived)
            arrived, self._arrived = self._arrived, []
            self._release(self._requested.intersection(arrived))
            self._requested.update(to_request)
            self._source.request(to_request)

    def _release(self, indices: set[int]) -> None:
        if indices:
            self._source.release(sorted(indices))
            self._requested = self._requested - indices


class Push:
    """One upload in progress."""

    def __init__(
        self, upload: Upload, publisher: DevicePublisher, clock: Clock, on_sent: Callable[[], None]
    ) -> None:
        self.upload = upload
        self.is_sent = False
        """Every chunk was sent at least once; `on_sent` is called when this becomes true."""
        self.started_at: float | None = None
        self.acknowledged_at: float | None = None
        self._publisher = publisher
        self._clock = clock
        self._wakeup = Notify()
        self._on_sent = on_sent
        self._due: deque[int] = deque()
        self._is_closed = False

    async def run(self, window: int) -> None:
        """Send until every chunk is acknowledged or `close` is called.

        The caller's scope limits the time.
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
        """Time from the first chunk to the last acknowledgement; None after a repeated send."""
        if self.started_at is None or self.acknowledged_at is None or self.upload.resent:
            return None
        return self.acknowledged_at - self.started_at

    def on_grant(self, window: int) -> None:
        """Start, or resume after a restart of the coordinator."""
        self._due.extend(self.upload.on_grant(window, self._clock.now()))
        self._wakeup.notify()

    def on_ack(self, received: bytes) -> None:
        """Handle the coordinator's bitmap.

        Raises:
            DecodeError: The bitmap does not fit this update.
        """
        now = self._clock.now()
        self._due.extend(self.upload.on_ack(received, now))
        if self.upload.is_acknowledged and self.acknowledged_at is None:
            self.acknowledged_at = now
        self._wakeup.notify()

    def on_link_up(self) -> None:
        """Send the chunks again that were in flight."""
        self._due.clear()
        self._due.extend(self.upload.on_link_up(self._clock.now()))
        self._wakeup.notify()

    def close(self) -> None:
        """Stop sending: the coordinator needs no further chunk."""
        self._is_closed = True
        self._wakeup.notify()

    def _mark_sent(self) -> None:
        if not self.is_sent:
            self.is_sent = True
            self._on_sent()

    async def _send_due(self) -> bool:
        """Send the due chunks; return whether all were sent."""
        while self._due and not self._is_closed:
            frame = self.upload.frame(self._due.popleft())
            try:
                await self._publisher.send_chunk(frame)
            except Disconnected:  # `on_link_up` sends all chunks in flight again
                self._due.clear()
                return False
        return True


class Pulls:
    """The downloads in progress, by blob id; passes each chunk to its download."""

    def __init__(
        self, publisher: DevicePublisher, topics: Topics, clock: Clock, link: LinkEstimate
    ) -> None:
        self._publisher = publisher
        self._topics = topics
        self._clock = clock
        self._link = link
        self._by_blob: dict[bytes, Pull] = {}

    def download(self, manifest: Manifest) -> Download:
        """Return a download that `fetch` can run, for a link as it was measured last."""
        return Download(manifest, rate_bps=self._link.downlink_bps)

    async def fetch(
        self, manifest: Manifest, *, download: Download | None = None, measures_link: bool = True
    ) -> Pull:
        """Download a blob; the hash is not verified yet.

        Args:
            manifest: The blob.
            download: Has the chunks that arrived earlier; None begins with none.
            measures_link: The download counts for the estimate of the downlink.
        """
        source: Source
        if manifest.kind == "shard":
            source = PrivateSource(self._publisher, manifest)
        else:
            source = PublicSource(self._publisher, self._topics, manifest)
        download = download or self.download(manifest)
        pull = Pull(download, source, self._clock, lambda: self._publisher.large_bytes)
        self._by_blob[manifest.id] = pull
        try:
            await pull.run()
        finally:
            if self._by_blob.get(manifest.id) is pull:
                del self._by_blob[manifest.id]
        if measures_link and pull.elapsed_s is not None:
            self._link.on_transfer("down", manifest.size_bytes, pull.elapsed_s, self._clock.now())
        return pull

    def on_chunk(self, chunk: Chunk, topic: str) -> None:
        """Pass a chunk to its download; ignore a late chunk without a download.

        Raises:
            DecodeError: The chunk does not fit its manifest.
        """
        pull = self._by_blob.get(chunk.blob)
        if pull is not None:
            pull.on_chunk(chunk, topic)

    def on_link_down(self) -> None:
        """Release all requests."""
        for pull in self._by_blob.values():
            pull.on_link_down()

    def on_link_up(self) -> None:
        """Resume all downloads."""
        for pull in self._by_blob.values():
            pull.on_link_up()


def _until(wake_at: float | None, clock: Clock) -> float | None:
    return None if wake_at is None else max(0.0, wake_at - clock.now())
