"""Transfer of a blob in chunks, as state machines without I/O.

    Flow       window of a transfer: chunks in flight, next ones, overdue ones
    Download   pulls chunks, at most a window of them at a time
    Upload     sends chunks, at most a window of them unacknowledged
    Intake     receives an upload and acknowledges what has arrived

All survive loss, duplicates, reordering and a lost link. Pure: `now` is monotonic seconds, and
`wake_at` is when `tick` has something to do.
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
"""A chunk is overdue after this many smoothed chunk times, but never before the floor."""

SMOOTHING = 0.25
"""Weight of the newest chunk time in the smoothed one."""

ASSUMED_BPS = 1e6
"""Rate of a slow link, bit/s: stands in for the chunk time until the first chunk has arrived."""

DOUBT = 16.0
"""A link is believed to carry at least the measured rate divided by this."""


@dataclass(slots=True)
class InFlightChunk:
    """One chunk in flight."""

    at: float
    order: int
    """Counts all asks of a transfer."""
    is_first: bool
    first_at: float
    """First request on this link. A repeated chunk may answer any of its requests (Karn's rule):
    the time since the first is the most that it can have taken."""


class Flow:
    """Which chunks are in flight, which come next, and which are overdue.

    Args:
        manifest: The blob.
        floor: Narrowest window.
        rate_bps: What the link was measured to carry, bit/s, or None. It counts as `ASSUMED_BPS`
            unless it is slower, or so fast that even a `DOUBT`-th of it is more.

    A broker delivers in order over one connection, so as long as something arrives, a chunk is
    overdue only when a later one has overtaken it. After a time-out the window halves (down to
    `floor`) and the patience doubles; a new chunk restores the patience, a whole window of them
    widens the window by one.
    """

    def __init__(self, manifest: Manifest, floor: int = 1, rate_bps: float | None = None) -> None:
        self.has = bytearray(manifest.chunk_count)
        self.missing = manifest.chunk_count
        self.limit = 0
        self.window = 0
        self.floor = floor
        self.flying: dict[int, InFlightChunk] = {}
        self.repeats = 0
        self.untouched = 0
        """Nothing from this chunk on has been asked for."""
        self._again: deque[tuple[int, float | None]] = deque()
        """Chunks to ask for once more, and when they were asked for first."""
        self._orders = 0
        self._newest_order = 0
        self._arrived_at = 0.0
        self._streak = 0
        self._patience = 1.0
        measured_bps = rate_bps or ASSUMED_BPS
        assumed_bps = max(min(ASSUMED_BPS, measured_bps), measured_bps / DOUBT)
        self._chunk_s = 8.0 * min(manifest.chunk_bytes, manifest.size_bytes) / assumed_bps
        self._is_measured = False

    def open(self, limit: int) -> None:
        """Allow `limit` chunks in flight."""
        self.limit = limit
        self.floor = min(self.floor, limit)
        self.window = limit

    def fill(self, now: float) -> list[int]:
        """Return what to ask for next, now in flight."""
        asks: list[int] = []
        while len(self.flying) < self.window:
            index, is_first, first_at = self._next()
            if index is None:
                break
            self._orders += 1
            self.repeats += not is_first
            self.flying[index] = InFlightChunk(
                now, self._orders, is_first, now if first_at is None else first_at
            )
            asks.append(index)
        return asks

    def settle(self, index: int, now: float) -> bool:
        """Note that a chunk has arrived; return whether it is new."""
        if self.has[index]:
            return False
        self.has[index] = 1
        self.missing -= 1
        self._arrived_at = now
        self._patience = 1.0
        ask = self.flying.pop(index, None)
        if ask is not None:
            self._newest_order = max(self._newest_order, ask.order)
            self._measure(now - ask.first_at, is_certain=ask.is_first)
        self._streak += 1
        if self._streak >= self.window:
            self._streak = 0
            self.window = min(self.limit, self.window + 1)
        return True

    def tick(self, now: float) -> list[int]:
        """Return the overdue chunks to ask for again, as many as the halved window takes."""
        overdue = [index for index, ask in self.flying.items() if self._due_at(ask) <= now]
        if not overdue:
            return []
        self.window = max(self.floor, self.window // 2)
        self._streak = 0
        self._patience *= 2.0
        self._release(overdue)
        return self.fill(now)

    def restart(self, now: float) -> list[int]:
        """Return what to ask for after the link was lost with everything in flight."""
        self._release(list(self.flying), is_new_link=True)
        self.window = self.limit
        self._patience = 1.0
        return self.fill(now)

    @property
    def wake_at(self) -> float | None:
        """When the first chunk in flight is overdue; None when nothing is in flight."""
        if not self.missing:
            return None
        return min(map(self._due_at, self.flying.values()), default=None)

    def _due_at(self, ask: InFlightChunk) -> float:
        is_overtaken = ask.order < self._newest_order
        since = ask.at if is_overtaken else max(ask.at, self._arrived_at)
        patience = max(RETRY_FLOOR_S, RETRY_FACTOR * self._chunk_s) * self._patience
        return since + min(patience, RETRY_CEILING_S)

    def _next(self) -> tuple[int | None, bool, float | None]:
        while self._again:
            index, first_at = self._again.popleft()
            if not self.has[index]:
                return index, False, first_at
        while self.untouched < len(self.has):
            index = self.untouched
            self.untouched += 1
            if not self.has[index]:
                return index, True, None
        return None, True, None

    def _release(self, indices: list[int], *, is_new_link: bool = False) -> None:
        for index in sorted(indices, reverse=True):
            ask = self.flying.pop(index)
            self._again.appendleft((index, None if is_new_link else ask.first_at))

    def _measure(self, chunk_s: float, *, is_certain: bool) -> None:
        if not is_certain and chunk_s <= self._chunk_s:
            return
        weight = SMOOTHING if self._is_measured else 1.0
        self._chunk_s += weight * (chunk_s - self._chunk_s)
        self._is_measured = True


DEFAULT_WINDOW = 4
"""Chunks in flight of one device; never above 8, the most filters a SUBSCRIBE may hold at AWS."""


class _Pieces:
    """The bytes of a blob, written in place as chunks arrive."""

    def __init__(self, manifest: Manifest, memory: bytearray | None = None) -> None:
        self.manifest = manifest
        self.data = bytearray(manifest.size_bytes) if memory is None else memory

    def check(self, chunk: Chunk) -> slice:
        """Return where the chunk belongs.

        Raises:
            DecodeError: It is of another blob, out of range, or of the wrong length.
        """
        if chunk.blob != self.manifest.id:
            raise DecodeError(
                f"chunk: must be of blob {self.manifest.id.hex()}, got {chunk.blob.hex()}"
            )
        place = chunk_slice(self.manifest, chunk.index)
        if len(chunk.payload) != place.stop - place.start:
            raise DecodeError(
                f"chunk {chunk.index}: must hold {place.stop - place.start} bytes, "
                f"got {len(chunk.payload)}"
            )
        return place

    def verify(self, sha256: bytes | None, missing: int) -> None:
        """Compare the whole with its hash.

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
        """Take note of a chunk."""
        if self._first_at is None:
            self._first_at = now
        else:
            self._n_bytes += n_bytes
        self._last_at = now

    @property
    def part(self) -> SteadyTransfer | None:
        """The measurement; None for a single chunk."""
        if self._first_at is None or not self._n_bytes:
            return None
        return SteadyTransfer(n_bytes=self._n_bytes, duration_s=self._last_at - self._first_at)


class Download:
    """Pull a blob: the same for retained chunks and for requests on a device's own topic.

    Every method that returns a list returns the chunks to ask for now. A chunk that is no longer
    in flight is accepted like any other. `rate_bps` is what the link is known to carry,
    bit/s, so that a slow one is not asked again too soon.
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
        """Payload bytes, duplicates included: what the link carried."""
        self._pieces = _Pieces(manifest)
        self._steady = _SteadyMeter()
        self._flow = Flow(manifest, rate_bps=rate_bps)
        self._flow.open(window)

    def start(self, now: float) -> list[int]:
        """Begin."""
        self.started_at = now
        return self._flow.fill(now)

    def on_chunk(self, chunk: Chunk, now: float) -> list[int]:
        """Take a chunk; a duplicate is counted and ignored.

        Raises:
            DecodeError: It is of another blob, out of range, or of the wrong length.
        """
        place = self._pieces.check(chunk)
        self.received_bytes += len(chunk.payload)
        if not self._flow.settle(chunk.index, now):
            self.duplicates += 1
            return []
        self._pieces.data[place] = chunk.payload
        self._steady.add(len(chunk.payload), now)
        if self.is_complete:
            self.finished_at = now
        return self._flow.fill(now)

    def tick(self, now: float) -> list[int]:
        """Ask again for what is overdue, with half the window."""
        return self._flow.tick(now)

    def on_link_up(self, now: float) -> list[int]:
        """Ask again for all that was in flight when the link was lost."""
        return self.start(now) if self.started_at is None else self._flow.restart(now)

    @property
    def wake_at(self) -> float | None:
        """When `tick` is due; None when nothing is in flight."""
        return self._flow.wake_at

    @property
    def is_complete(self) -> bool:
        """Every chunk has arrived; the hash is still to be compared."""
        return not self._flow.missing

    @property
    def window(self) -> int:
        """Chunks that may be in flight at the moment."""
        return self._flow.window

    @property
    def rerequests(self) -> int:
        """Chunks asked for more than once, counted each time."""
        return self._flow.repeats

    @property
    def steady(self) -> SteadyTransfer | None:
        """The part after the first chunk; None for a single chunk, or with repeats."""
        return None if self.rerequests or self.duplicates else self._steady.part

    @property
    def data(self) -> bytearray:
        """The blob; zero where chunks are missing."""
        return self._pieces.data

    def verify(self) -> None:
        """Compare the blob with the manifest's hash; takes about 1 ms per MB.

        Raises:
            DecodeError: Chunks are missing, or the hash differs.
        """
        self._pieces.verify(self.manifest.sha256, self._flow.missing)


class Upload:
    """Send a blob under a credit window.

    Every method that returns a list returns the chunks to send now. Nothing is sent before the
    first grant. `rate_bps` is what the link is known to carry, bit/s.
    """

    def __init__(
        self, manifest: Manifest, data: bytes | memoryview, rate_bps: float | None = None
    ) -> None:
        if len(data) != manifest.size_bytes:
            raise ValueError(f"upload: must hold {manifest.size_bytes} bytes, got {len(data)}")
        self.manifest = manifest
        self._data = memoryview(data)
        self._flow = Flow(manifest, rate_bps=rate_bps)
        self._acked = 0
        """Bitmap of what has been acknowledged."""

    def on_grant(self, window: int, now: float) -> list[int]:
        """Begin, or go on after a reconnect; the same grant again changes nothing."""
        if window != self._flow.limit:
            # A smaller window would never earn an ack.
            self._flow.floor = ack_interval(window, self.manifest.chunk_count)
            self._flow.open(window)
        return self._flow.fill(now)

    def on_ack(self, received: bytes, now: float) -> list[int]:
        """Take the bitmap of what has arrived; one that is late or repeated is harmless.

        Raises:
            DecodeError: The bitmap is not that of this blob.
        """
        count = self.manifest.chunk_count
        bits = int.from_bytes(received, "little")
        if len(received) != _bitmap_bytes(count) or bits >> count:
            raise DecodeError(f"ack: must be a bitmap of {count} chunks, got {received[:16].hex()}")
        fresh = bits & ~self._acked & ((1 << self._flow.untouched) - 1)
        self._acked |= fresh
        while fresh:
            lowest = fresh & -fresh
            self._flow.settle(lowest.bit_length() - 1, now)
            fresh ^= lowest
        return self._flow.fill(now)

    def tick(self, now: float) -> list[int]:
        """Send again what is overdue, with half the window."""
        return self._flow.tick(now)

    def on_link_up(self, now: float) -> list[int]:
        """Send again all that was in flight when the link was lost."""
        return self._flow.restart(now)

    @property
    def wake_at(self) -> float | None:
        """When `tick` is due; None when nothing is in flight."""
        return self._flow.wake_at

    @property
    def window(self) -> int:
        """Chunks that may be in flight at the moment."""
        return self._flow.window

    @property
    def is_all_sent(self) -> bool:
        """Each chunk has been sent at least once."""
        return self._flow.untouched == self.manifest.chunk_count

    @property
    def is_acknowledged(self) -> bool:
        """Every chunk has been acknowledged."""
        return not self._flow.missing

    @property
    def resent(self) -> int:
        """Chunks sent more than once, counted each time."""
        return self._flow.repeats

    def frame(self, index: int) -> bytes:
        """Return the chunk as it travels."""
        return encode_chunk(self.manifest.id, index, self._data[chunk_slice(self.manifest, index)])


class Intake:
    """Receive an upload.

    Args:
        manifest: What was announced.
        window: Chunks that the sender may have un-acknowledged.
        memory: Where to write, as large as the blob; None takes new memory, which costs as much
            time as receiving does (half a millisecond per MB).

    Raises:
        ValueError: The memory is not as large as the blob.
    """

    def __init__(self, manifest: Manifest, window: int, memory: bytearray | None = None) -> None:
        if memory is not None and len(memory) != manifest.size_bytes:
            raise ValueError(f"memory: must hold {manifest.size_bytes} bytes, got {len(memory)}")
        self.manifest = manifest
        self.finished_at: float | None = None
        self.duplicates = 0
        self.received_bytes = 0
        """Payload bytes, duplicates included: what the link carried."""
        self._pieces = _Pieces(manifest, memory)
        self._steady = _SteadyMeter()
        self._bitmap = bytearray(_bitmap_bytes(manifest.chunk_count))
        self._missing = manifest.chunk_count
        self._interval = ack_interval(window, manifest.chunk_count)
        self._unreported = 0

    def on_chunk(self, chunk: Chunk, now: float) -> bool:
        """Take a chunk; return whether an `UploadAck` is due.

        It is due every half window, unless the window holds the whole blob; at the end; and on a
        duplicate, which tells that an ack was lost or late.

        Raises:
            DecodeError: The chunk is of another blob, out of range, or of the wrong length.
        """
        place = self._pieces.check(chunk)
        self.received_bytes += len(chunk.payload)
        byte, bit = chunk.index // 8, 1 << chunk.index % 8
        if self._bitmap[byte] & bit:
            self.duplicates += 1
            return True
        self._pieces.data[place] = chunk.payload
        self._steady.add(len(chunk.payload), now)
        self._bitmap[byte] |= bit
        self._missing -= 1
        self._unreported += 1
        if self.is_complete:
            self.finished_at = now
        return self.is_complete or self._unreported >= self._interval

    def bitmap(self) -> bytes:
        """Return what `UploadAck.received` reports."""
        self._unreported = 0
        return bytes(self._bitmap)

    @property
    def is_complete(self) -> bool:
        """Every chunk has arrived; the hash is still to be compared."""
        return not self._missing

    @property
    def steady(self) -> SteadyTransfer | None:
        """What came after the first chunk; None where there is no such part, or of duplicates."""
        return None if self.duplicates else self._steady.part

    @property
    def data(self) -> bytearray:
        """The blob; where chunks are missing, what was there before."""
        return self._pieces.data

    def verify(self, sha256: bytes) -> None:
        """Compare the blob with the sender's hash; takes about 1 ms per MB.

        Raises:
            DecodeError: Chunks are missing, or the hash differs.
        """
        self._pieces.verify(sha256, self._missing)


def ack_interval(window: int, chunk_count: int) -> int:
    """Return after how many new chunks an acknowledgement is due: half a window.

    Of a blob that one window holds, after the last: nobody waits for an earlier one.
    """
    return chunk_count if chunk_count <= window else -(-window // 2)


def _bitmap_bytes(count: int) -> int:
    return -(-count // 8)
