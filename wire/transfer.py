"""Transfer of a blob in chunks, as state machines without I/O.

    FlowControl      window of a transfer: chunks in flight, next chunks, overdue chunks
    Download         requests chunks, at most a window of them at a time
    Upload           sends chunks, at most a window of them unacknowledged
    UploadReceiver   receives an upload and acknowledges its chunks

All tolerate loss, duplicates, reordering and a lost link. Pure: `now` is monotonic seconds, and
`wake_at` is the time of the next `tick`.
"""

import hashlib
from collections import deque
from dataclasses import dataclass

from fairbed.wire.chunks import Chunk, chunk_slice, encode_chunk
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import Manifest, SteadyTransfer

RETRY_FLOOR_S = 2.0
RETRY_CEILING_S = 60.0
RETRY_FACTOR = 4.0
"""A chunk is overdue after this many smoothed chunk times, within floor and ceiling."""

SMOOTHING = 0.25
"""Weight of the newest chunk time in the smoothed one."""

ASSUMED_BPS = 1e6
"""Rate of a slow link, bit/s: gives the chunk time until the first chunk has arrived."""

RATE_MARGIN = 16.0
"""The link is assumed to carry at least the measured rate divided by this."""


@dataclass(slots=True)
class InFlightChunk:
    """The latest request of a chunk in flight."""

    sent_at: float
    number: int
    """Number of this request within the transfer."""
    is_first: bool
    first_sent_at: float
    """Time of the first request on this link. A repeated chunk may answer any of its requests
    (Karn's rule), so the time since the first one is an upper bound of its chunk time."""


class FlowControl:
    """Window of a transfer: chunks in flight, next chunks, overdue chunks.

    A request is a `ChunkRequest` or subscription of a download, or the sending of a chunk of an
    upload. A broker delivers in order over one connection: while chunks or parts of them arrive, a
    chunk is overdue only if a later one has overtaken it. Otherwise a link that is slower than its
    timeout would carry every chunk again and again. After a timeout the window halves (down to
    `floor`) and the timeout doubles. A new chunk resets the timeout; a full window of new chunks
    widens the window by one.

    Args:
        manifest: The blob.
        floor: Smallest window.
        rate_bps: Measured rate of the link, bit/s, or None. The assumed rate is `ASSUMED_BPS`
            unless the measured rate is lower, or 1 / `RATE_MARGIN` of it is higher.
    """

    def __init__(self, manifest: Manifest, floor: int = 1, rate_bps: float | None = None) -> None:
        self.has_arrived = bytearray(manifest.chunk_count)
        self.missing = manifest.chunk_count
        self.limit = 0
        self.window = 0
        self.floor = floor
        self.in_flight: dict[int, InFlightChunk] = {}
        self.repeats = 0
        self.first_unrequested = 0
        """Neither this chunk nor a later one has been requested."""
        self._repeat_queue: deque[tuple[int, float | None]] = deque()
        """Chunks to request again, and the time of their first request on this link."""
        self._n_requests = 0
        self._newest_number = 0
        self._arrived_at = 0.0
        self._arrivals = 0
        self._timeout_factor = 1.0
        measured_bps = rate_bps or ASSUMED_BPS
        assumed_bps = max(min(ASSUMED_BPS, measured_bps), measured_bps / RATE_MARGIN)
        self._chunk_s = 8.0 * min(manifest.chunk_bytes, manifest.size_bytes) / assumed_bps
        self._is_measured = False

    def open(self, limit: int) -> None:
        """Allow `limit` chunks in flight."""
        self.limit = limit
        self.floor = min(self.floor, limit)
        self.window = limit

    def fill(self, now: float) -> list[int]:
        """Return the next chunks to request, and count them as in flight."""
        requested: list[int] = []
        while len(self.in_flight) < self.window:
            index, is_first, first_sent_at = self._next()
            if index is None:
                break
            self._n_requests += 1
            self.repeats += not is_first
            self.in_flight[index] = InFlightChunk(
                now, self._n_requests, is_first, now if first_sent_at is None else first_sent_at
            )
            requested.append(index)
        return requested

    def on_arrival(self, index: int, now: float) -> bool:
        """Note that a chunk has arrived; return whether it is new."""
        if self.has_arrived[index]:
            return False
        self.has_arrived[index] = 1
        self.missing -= 1
        self._arrived_at = now
        self._timeout_factor = 1.0
        request = self.in_flight.pop(index, None)
        if request is not None:
            self._newest_number = max(self._newest_number, request.number)
            self._measure(now - request.first_sent_at, is_certain=request.is_first)
        self._arrivals += 1
        if self._arrivals >= self.window:
            self._arrivals = 0
            self.window = min(self.limit, self.window + 1)
        return True

    def on_part(self, now: float) -> None:
        """Note that a part of a chunk has arrived: the link carries what is in flight."""
        self._arrived_at = now

    def tick(self, now: float) -> list[int]:
        """Return the overdue chunks to request again, at most the halved window."""
        overdue = [
            index for index, request in self.in_flight.items() if self._due_at(request) <= now
        ]
        if not overdue:
            return []
        self.window = max(self.floor, self.window // 2)
        self._arrivals = 0
        self._timeout_factor *= 2.0
        self._release(overdue)
        return self.fill(now)

    def restart(self, now: float) -> list[int]:
        """Return the chunks to request after a reconnect: all chunks in flight were lost."""
        self._release(list(self.in_flight), is_new_link=True)
        self.window = self.limit
        self._timeout_factor = 1.0
        return self.fill(now)

    @property
    def wake_at(self) -> float | None:
        """Time at which the first chunk in flight is overdue; None when no chunk is in flight."""
        if not self.missing:
            return None
        return min(map(self._due_at, self.in_flight.values()), default=None)

    def _due_at(self, request: InFlightChunk) -> float:
        is_overtaken = request.number < self._newest_number
        since = request.sent_at if is_overtaken else max(request.sent_at, self._arrived_at)
        timeout_s = max(RETRY_FLOOR_S, RETRY_FACTOR * self._chunk_s) * self._timeout_factor
        return since + min(timeout_s, RETRY_CEILING_S)

    def _next(self) -> tuple[int | None, bool, float | None]:
        while self._repeat_queue:
            index, first_sent_at = self._repeat_queue.popleft()
            if not self.has_arrived[index]:
                return index, False, first_sent_at
        while self.first_unrequested < len(self.has_arrived):
            index = self.first_unrequested
            self.first_unrequested += 1
            if not self.has_arrived[index]:
                return index, True, None
        return None, True, None

    def _release(self, indices: list[int], *, is_new_link: bool = False) -> None:
        for index in sorted(indices, reverse=True):
            request = self.in_flight.pop(index)
            self._repeat_queue.appendleft((index, None if is_new_link else request.first_sent_at))

    def _measure(self, chunk_s: float, *, is_certain: bool) -> None:
        if not is_certain and chunk_s <= self._chunk_s:
            return
        weight = SMOOTHING if self._is_measured else 1.0
        self._chunk_s += weight * (chunk_s - self._chunk_s)
        self._is_measured = True


DEFAULT_WINDOW = 4
"""Chunks in flight of one device; at most 8, the limit of filters per SUBSCRIBE at AWS IoT."""


class _BlobBuffer:
    """The bytes of a blob, filled as chunks arrive."""

    def __init__(self, manifest: Manifest, memory: bytearray | None = None) -> None:
        self.manifest = manifest
        self.data = bytearray(manifest.size_bytes) if memory is None else memory
        self.view = memoryview(self.data)
        """For writing: a bytearray copies what it takes from a view twice."""

    def check(self, chunk: Chunk) -> slice:
        """Return the range of the chunk in the blob.

        Raises:
            DecodeError: The chunk is of another blob, out of range, or of the wrong length.
        """
        if chunk.blob != self.manifest.id:
            raise DecodeError(
                f"chunk: must be of blob {self.manifest.id.hex()}, got {chunk.blob.hex()}"
            )
        span = chunk_slice(self.manifest, chunk.index)
        if len(chunk.payload) != span.stop - span.start:
            raise DecodeError(
                f"chunk {chunk.index}: must hold {span.stop - span.start} bytes, "
                f"got {len(chunk.payload)}"
            )
        return span

    def verify(self, sha256: bytes | None, missing: int) -> None:
        """Compare the blob with its hash.

        Raises:
            DecodeError: Chunks are missing, or the hash differs.
        """
        if missing:
            raise DecodeError(f"blob: every chunk must have arrived, got {missing} missing")
        digest = hashlib.sha256(self.data).digest()
        if digest != sha256:
            expected = sha256.hex() if sha256 else "none"
            raise DecodeError(f"blob: sha256 must be {expected}, got {digest.hex()}")


class _SteadyMeter:
    """Measures the steady part of a transfer: all but its first chunk."""

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._n_bytes = 0
        self._last_at = 0.0

    def add(self, n_bytes: int, now: float) -> None:
        """Count a chunk."""
        if self._first_at is None:
            self._first_at = now
        else:
            self._n_bytes += n_bytes
        self._last_at = now

    @property
    def part(self) -> SteadyTransfer | None:
        """Size and duration of the steady part; None for a single chunk."""
        if self._first_at is None or not self._n_bytes:
            return None
        return SteadyTransfer(n_bytes=self._n_bytes, duration_s=self._last_at - self._first_at)


class Download:
    """Download of a blob: of retained chunks, or of chunks requested by message.

    Every method that returns a list returns the chunks to request now. A chunk that is no longer
    in flight is accepted, too. `rate_bps` is the measured rate of the link, bit/s: on a slow link
    chunks must not be requested again too early.
    """

    def __init__(
        self, manifest: Manifest, window: int = DEFAULT_WINDOW, rate_bps: float | None = None
    ) -> None:
        if window < 1:
            raise ValueError(f"window: must be at least 1, got {window}")
        self.manifest = manifest
        self.started_at: float | None = None
        self.finished_at: float | None = None
        self.duplicates = 0
        self.received_bytes = 0
        """Payload bytes that the link carried, duplicates included."""
        self._buffer = _BlobBuffer(manifest)
        self._steady = _SteadyMeter()
        self._flow = FlowControl(manifest, rate_bps=rate_bps)
        self._flow.open(window)

    def restore(self, chunk: Chunk) -> None:
        """Take a chunk that an earlier download of this blob has left; call it before `start`.

        Raises:
            DecodeError: The chunk is of another blob, out of range, or of the wrong length.
        """
        span = self._buffer.check(chunk)
        if self._flow.on_arrival(chunk.index, 0.0):
            self._buffer.view[span] = chunk.payload

    def start(self, now: float) -> list[int]:
        """Start the transfer."""
        self.started_at = now
        return self._flow.fill(now)

    def on_chunk(self, chunk: Chunk, now: float) -> list[int]:
        """Handle a chunk; a duplicate is counted and ignored.

        Raises:
            DecodeError: The chunk is of another blob, out of range, or of the wrong length.
        """
        span = self._buffer.check(chunk)
        self.received_bytes += len(chunk.payload)
        if not self._flow.on_arrival(chunk.index, now):
            self.duplicates += 1
            return []
        self._buffer.view[span] = chunk.payload
        self._steady.add(len(chunk.payload), now)
        if self.is_complete:
            self.finished_at = now
        return self._flow.fill(now)

    def on_part(self, now: float) -> None:
        """Note that a part of a chunk has arrived, of this blob or another one."""
        self._flow.on_part(now)

    def tick(self, now: float) -> list[int]:
        """Request overdue chunks again, with half the window."""
        return self._flow.tick(now)

    def on_link_up(self, now: float) -> list[int]:
        """Request all chunks again that were in flight when the link was lost."""
        return self.start(now) if self.started_at is None else self._flow.restart(now)

    @property
    def wake_at(self) -> float | None:
        """Time of the next `tick`; None when no chunk is in flight."""
        return self._flow.wake_at

    @property
    def is_complete(self) -> bool:
        """Every chunk has arrived; the hash is not verified yet."""
        return not self._flow.missing

    @property
    def window(self) -> int:
        """Chunks that may be in flight now."""
        return self._flow.window

    @property
    def rerequests(self) -> int:
        """Repeated requests, over all chunks."""
        return self._flow.repeats

    @property
    def steady(self) -> SteadyTransfer | None:
        """The part after the first chunk; None for a single chunk, or after a repeated request."""
        return None if self.rerequests or self.duplicates else self._steady.part

    @property
    def has_arrived(self) -> bytearray:
        """1 for each chunk that has arrived, else 0, shape (chunk_count,)."""
        return self._flow.has_arrived

    def frame(self, index: int) -> bytes:
        """Return an arrived chunk, encoded, for `restore`."""
        span = chunk_slice(self.manifest, index)
        return encode_chunk(self.manifest.id, index, memoryview(self._buffer.data)[span])

    @property
    def data(self) -> bytearray:
        """The blob; missing chunks are zero."""
        return self._buffer.data

    def verify(self) -> None:
        """Compare the blob with the hash in its manifest; takes about 1 ms per MB.

        Raises:
            DecodeError: Chunks are missing, or the hash differs.
        """
        self._buffer.verify(self.manifest.sha256, self._flow.missing)


class Upload:
    """Upload of a blob, at most a window of unacknowledged chunks at a time.

    Every method that returns a list returns the chunks to send now; before the first grant there
    are none. `rate_bps` is the measured rate of the link, bit/s.
    """

    def __init__(
        self, manifest: Manifest, data: bytes | memoryview, rate_bps: float | None = None
    ) -> None:
        if len(data) != manifest.size_bytes:
            raise ValueError(f"upload: must hold {manifest.size_bytes} bytes, got {len(data)}")
        self.manifest = manifest
        self._data = memoryview(data)
        self._flow = FlowControl(manifest, rate_bps=rate_bps)
        self._acked = 0
        """Bitmap of the acknowledged chunks."""

    def on_grant(self, window: int, now: float) -> list[int]:
        """Start, or resume after a reconnect; a repeated grant changes nothing."""
        if window != self._flow.limit:
            # The receiver would not acknowledge a smaller window.
            self._flow.floor = ack_interval(window, self.manifest.chunk_count)
            self._flow.open(window)
        return self._flow.fill(now)

    def on_ack(self, received: bytes, now: float) -> list[int]:
        """Handle the bitmap of arrived chunks; a late or repeated bitmap is harmless.

        Raises:
            DecodeError: The bitmap does not fit the blob.
        """
        count = self.manifest.chunk_count
        bits = int.from_bytes(received, "little")
        if len(received) != _bitmap_bytes(count) or bits >> count:
            raise DecodeError(f"ack: must be a bitmap of {count} chunks, got {received[:16].hex()}")
        new_bits = bits & ~self._acked & ((1 << self._flow.first_unrequested) - 1)
        self._acked |= new_bits
        while new_bits:
            lowest = new_bits & -new_bits
            self._flow.on_arrival(lowest.bit_length() - 1, now)
            new_bits ^= lowest
        return self._flow.fill(now)

    def tick(self, now: float) -> list[int]:
        """Send overdue chunks again, with half the window."""
        return self._flow.tick(now)

    def on_link_up(self, now: float) -> list[int]:
        """Send all chunks again that were in flight when the link was lost."""
        return self._flow.restart(now)

    @property
    def wake_at(self) -> float | None:
        """Time of the next `tick`; None when no chunk is in flight."""
        return self._flow.wake_at

    @property
    def window(self) -> int:
        """Chunks that may be in flight now."""
        return self._flow.window

    @property
    def is_all_sent(self) -> bool:
        """Every chunk has been sent at least once."""
        return self._flow.first_unrequested == self.manifest.chunk_count

    @property
    def is_acknowledged(self) -> bool:
        """Every chunk has been acknowledged."""
        return not self._flow.missing

    @property
    def resent(self) -> int:
        """Repeated sends, over all chunks."""
        return self._flow.repeats

    def frame(self, index: int) -> bytes:
        """Return the encoded chunk."""
        return encode_chunk(self.manifest.id, index, self._data[chunk_slice(self.manifest, index)])


class UploadReceiver:
    """Receiver of an upload.

    Args:
        manifest: The announced blob.
        window: Unacknowledged chunks that the sender may have.
        memory: Buffer of the size of the blob; None allocates one, which takes as long as the
            reception itself (half a millisecond per MB).

    Raises:
        ValueError: The buffer is not of the size of the blob.
    """

    def __init__(self, manifest: Manifest, window: int, memory: bytearray | None = None) -> None:
        if memory is not None and len(memory) != manifest.size_bytes:
            raise ValueError(f"memory: must hold {manifest.size_bytes} bytes, got {len(memory)}")
        self.manifest = manifest
        self.finished_at: float | None = None
        self.duplicates = 0
        self.received_bytes = 0
        """Payload bytes that the link carried, duplicates included."""
        self._buffer = _BlobBuffer(manifest, memory)
        self._steady = _SteadyMeter()
        self._bitmap = bytearray(_bitmap_bytes(manifest.chunk_count))
        self._missing = manifest.chunk_count
        self._interval = ack_interval(window, manifest.chunk_count)
        self._unreported = 0

    def on_chunk(self, chunk: Chunk, now: float) -> bool:
        """Handle a chunk; return whether an `UploadAck` is due.

        It is due after each half window, unless one window holds the whole blob; after the last
        chunk; and after a duplicate, which means that an `UploadAck` was lost or late.

        Raises:
            DecodeError: The chunk is of another blob, out of range, or of the wrong length.
        """
        span = self._buffer.check(chunk)
        self.received_bytes += len(chunk.payload)
        byte, bit = chunk.index // 8, 1 << chunk.index % 8
        if self._bitmap[byte] & bit:
            self.duplicates += 1
            return True
        self._buffer.view[span] = chunk.payload
        self._steady.add(len(chunk.payload), now)
        self._bitmap[byte] |= bit
        self._missing -= 1
        self._unreported += 1
        if self.is_complete:
            self.finished_at = now
        return self.is_complete or self._unreported >= self._interval

    def bitmap(self) -> bytes:
        """Return the bitmap for `UploadAck.received`."""
        self._unreported = 0
        return bytes(self._bitmap)

    @property
    def is_complete(self) -> bool:
        """Every chunk has arrived; the hash is not verified yet."""
        return not self._missing

    @property
    def steady(self) -> SteadyTransfer | None:
        """The part after the first chunk; None for a single chunk, or after a duplicate."""
        return None if self.duplicates else self._steady.part

    @property
    def data(self) -> bytearray:
        """The blob; missing chunks keep the previous content of the buffer."""
        return self._buffer.data

    def verify(self, sha256: bytes) -> None:
        """Compare the blob with the sender's hash; takes about 1 ms per MB.

        Raises:
            DecodeError: Chunks are missing, or the hash differs.
        """
        self._buffer.verify(sha256, self._missing)


def ack_interval(window: int, chunk_count: int) -> int:
    """Return the number of new chunks after which an acknowledgement is due: half a window.

    A blob within one window is acknowledged after its last chunk only, as the sender does not wait
    for an earlier acknowledgement.
    """
    return chunk_count if chunk_count <= window else -(-window // 2)


def _bitmap_bytes(count: int) -> int:
    return -(-count // 8)
