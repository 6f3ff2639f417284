"""Blobs between this device and the network: drives `wire.transfer` over the transport.

A public blob's chunks are retained messages, asked for by subscribing and given back by
unsubscribing; those of a private one are asked for by message. Nothing here waits for a
broker's answer to a subscription: on a slow link it comes behind the chunks themselves.
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

    def ask(self, indices: Sequence[int]) -> None:
        """Have these chunks sent to us (once more, if they were asked for already)."""
        ...

    def release(self, indices: Sequence[int]) -> None:
        """These chunks are not waited for any more."""
        ...


class PublicSource:
    """Retained chunks of a blob that every device reads."""

    def __init__(self, post: DevicePublisher, topics: Topics, manifest: Manifest) -> None:
        self._post = post
        self._topics = topics
        self._id = manifest.id
        self._blob = manifest.id.hex()
        self._asked: set[int] = set()

    def ask(self, indices: Sequence[int]) -> None:
        """Subscribe, which makes the broker send what it keeps.

        What was asked for in vain may never have reached the broker: the coordinator is told.
        """
        self._post.subscribe(*(self._topics.chunk(self._blob, index) for index in indices))
        again = [index for index in indices if index in self._asked]
        if again:
            self._post.say(ChunkRequest(id=self._id, chunks=again), qos=0)
        self._asked.update(indices)

    def release(self, indices: Sequence[int]) -> None:
        """Unsubscribe."""
        self._asked.difference_update(indices)
        self._post.unsubscribe(*(self._topics.chunk(self._blob, index) for index in indices))


class PrivateSource:
    """Chunks that the coordinator sends to this device alone."""

    def __init__(self, post: DevicePublisher, manifest: Manifest) -> None:
        self._post = post
        self._id = manifest.id

    def ask(self, indices: Sequence[int]) -> None:
        """Request them by message."""
        self._post.say(ChunkRequest(id=self._id, chunks=list(indices)), qos=0)

    def release(self, indices: Sequence[int]) -> None:
        """Nothing was kept for us."""


class Pull:
    """One blob on its way in."""

    def __init__(self, download: Download, source: Source, clock: Clock) -> None:
        self.download = download
        self._source = source
        self._clock = clock
        self._bell = Notify()
        self._wanted: list[int] = []
        self._arrived: list[int] = []
        self._asked: set[int] = set()

    async def run(self) -> None:
        """Return when every chunk is here; the hash is still to be compared.

        There is no time limit here: the caller's scope has one.
        """
        download = self.download
        try:
            self._wanted += download.start(self._clock.now())
            self._flush()
            while not download.is_complete:
                await self._bell.wait(_until(download.wake_at, self._clock))
                self._wanted += download.tick(self._clock.now())
                self._flush()
        finally:
            self._give_back(self._asked)

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
        self._bell.ring()

    def on_link_down(self) -> None:
        """Forget the subscriptions: `on_link_up` decides anew what to ask for."""
        self._wanted.clear()
        self._give_back(self._asked)

    def on_link_up(self) -> None:
        """Ask again for what was in flight."""
        self._wanted += self.download.on_link_up(self._clock.now())
        self._bell.ring()

    def _flush(self) -> None:
        """Give back what arrived and ask for what is wanted, each in one packet.

        What arrived is given back only when something is asked for: at the end `run` does it.
        """
        wanted, self._wanted = self._wanted, []
        if wanted:
            arrived, self._arrived = self._arrived, []
            self._give_back(self._asked.intersection(arrived))
            self._asked.update(wanted)
            self._source.ask(wanted)

    def _give_back(self, indices: set[int]) -> None:
        if indices:
            self._source.release(sorted(indices))
            self._asked = self._asked - indices


class Push:
    """One update on its way out."""

    def __init__(
        self, upload: Upload, post: DevicePublisher, clock: Clock, on_sent: Callable[[], None]
    ) -> None:
        self.upload = upload
        self.is_sent = False
        """Each chunk has gone out at least once; `on_sent` is called when it turns true."""
        self.started_at: float | None = None
        self.acknowledged_at: float | None = None
        self._post = post
        self._clock = clock
        self._bell = Notify()
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
                self._say_sent()
            await self._bell.wait(_until(self.upload.wake_at, self._clock))
            self._due.extend(self.upload.tick(self._clock.now()))
        self._say_sent()

    @property
    def elapsed_s(self) -> float | None:
        """Time from the first chunk to the last ack; None if something had to be repeated."""
        if self.started_at is None or self.acknowledged_at is None or self.upload.resent:
            return None
        return self.acknowledged_at - self.started_at

    def on_grant(self, window: int) -> None:
        """Begin, or begin again after the coordinator came back."""
        self._due.extend(self.upload.on_grant(window, self._clock.now()))
        self._bell.ring()

    def on_ack(self, received: bytes) -> None:
        """Take the coordinator's bitmap.

        Raises:
            DecodeError: It is not one of this update.
        """
        now = self._clock.now()
        self._due.extend(self.upload.on_ack(received, now))
        if self.upload.is_acknowledged and self.acknowledged_at is None:
            self.acknowledged_at = now
        self._bell.ring()

    def on_link_up(self) -> None:
        """Send again what was in flight."""
        self._due.clear()
        self._due.extend(self.upload.on_link_up(self._clock.now()))
        self._bell.ring()

    def close(self) -> None:
        """Stop sending: the coordinator needs nothing more."""
        self._is_closed = True
        self._bell.ring()

    def _say_sent(self) -> None:
        if not self.is_sent:
            self.is_sent = True
            self._on_sent()

    async def _send_due(self) -> bool:
        """Send what is due; tell whether all of it went out."""
        while self._due and not self._is_closed:
            frame = self.upload.frame(self._due.popleft())
            try:
                await self._post.send_chunk(frame)
            except Disconnected:  # `on_link_up` begins again with all that is in flight
                self._due.clear()
                return False
        return True


class Pulls:
    """The downloads under way, by blob; chunks are handed to the right one."""

    def __init__(
        self, post: DevicePublisher, topics: Topics, clock: Clock, link: LinkEstimate
    ) -> None:
        self._post = post
        self._topics = topics
        self._clock = clock
        self._link = link
        self._by_blob: dict[bytes, Pull] = {}

    async def fetch(self, manifest: Manifest) -> Pull:
        """Pull a blob, and learn the downlink from it; its hash is still to be compared."""
        source: Source
        if manifest.kind == "shard":
            source = PrivateSource(self._post, manifest)
        else:
            source = PublicSource(self._post, self._topics, manifest)
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
        """Hand on a chunk; one that nobody waits for is late, and ignored.

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
