"""One direction of a slow link: computes when data that is sent now arrives.

    free = max(now, free) + 8 n / rate                  the link is busy until then
    due  = max(last due, free + delay + jitter z)       data keeps its order; z is standard normal

A link carries TCP payload: headers, loss and slow start are not modelled. The sender sends pieces
of at most `chunk_bytes` and waits while the link `is_full`. The rate then holds over every time
window, up to one piece. A message waits behind all pieces in the queue, as in the drop-tail queue
of a real link; a full queue drops nothing, because its senders wait.

A link may change while pieces are on it. Bits that were sent keep their arrival time; the rest is
sent at the new rate, so that the volume is the integral of the rate. Rate 0 is an outage: the
pieces wait.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from fairbed.testbed.emulation.queues import depth_s

QUEUE_S = 0.1
"""Depth of the queue of a link that states none, seconds of its rate."""

REFILL_RATIO = 0.85
"""A sender that waits for a full queue continues at this share of its depth, so that the queue is
92.5 % full on average, as with CUBIC: its window W falls to 0.7 W and grows back by a cubic, whose
mean is W (1 - 0.3 / 4) (RFC 9438, sections 4.2 and 4.6)."""

CHUNK_S = 2e-3
"""Transmission time of one piece, seconds: a compromise between smoothness and cost."""

MIN_CHUNK_BYTES = 1460
"""Payload of one TCP segment on Ethernet."""

MAX_CHUNK_BYTES = 1 << 18
"""Largest result of one socket read."""


def _no_jitter() -> float:
    return 0.0


@dataclass(slots=True, eq=False)
class Piece:
    """Bytes on a link; a change of the link updates the times of pieces that were not sent."""

    bits: float
    """Bits still to be sent at `started_at`."""
    earliest: float
    """The piece must not be sent before this time."""
    z: float
    """Jitter in standard deviations."""
    started_at: float = 0.0
    left_at: float = 0.0
    """When the last bit is sent."""
    due: float = 0.0
    """When the piece arrives; `inf` in an outage."""


@dataclass(slots=True)
class LinkDirection:
    """One direction of a link. Times are seconds on one monotonic clock."""

    rate_bps: float | None
    """Payload, bit/s; None is not limited, 0 is an outage."""
    delay_s: float
    """From the last bit sent to its arrival."""
    jitter_s: float = 0.0
    """Standard deviation of the delay."""
    draw: Callable[[], float] = _no_jitter
    """Returns standard normal numbers."""
    queue_bytes: int | None = None
    """Size of the queue, bytes of Ethernet frames; None is `QUEUE_S`. It may be set at any time."""
    free_at: float = 0.0
    """The link is busy until this time; `inf` in an outage with pieces in the queue."""
    last_due: float = 0.0
    """Arrival of the last piece."""
    _left_due: float = 0.0
    """Arrival of the last piece that was sent completely."""
    _waiting: "deque[Piece]" = field(default_factory=deque)
    """Pieces not sent completely at the last update; bounded, as senders wait while `is_full`."""

    def __post_init__(self) -> None:
        _check(self.rate_bps, self.delay_s, self.jitter_s)

    @property
    def chunk_bytes(self) -> int:
        """Largest piece that a sender should send."""
        if self.rate_bps is None:
            return MAX_CHUNK_BYTES
        fair = int(self.rate_bps * CHUNK_S / 8.0)
        return min(max(fair, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)

    def send(self, now: float, n_bytes: int, not_before: float = 0.0) -> Piece:
        """Queue `n_bytes` behind all earlier pieces; return the piece, which has its arrival time.

        Args:
            now: The current time.
            n_bytes: Size of the piece, at most `chunk_bytes` for the rate to hold.
            not_before: When the connection of the sender is set up; the piece is not sent earlier.
        """
        self._release(now)
        z = self.draw() if self.jitter_s > 0.0 else 0.0
        piece = Piece(8.0 * n_bytes, max(now, not_before), z)
        self._place(piece)
        self._waiting.append(piece)
        return piece

    def change(
        self, now: float, rate_bps: float | None, delay_s: float, jitter_s: float = 0.0
    ) -> None:
        """Change the link from `now` on, and recompute the times of pieces that were not sent.

        Raises:
            ValueError: A number is negative.
        """
        _check(rate_bps, delay_s, jitter_s)
        self._release(now)
        for piece in self._waiting:
            if self.rate_bps is not None and piece.started_at < now:
                sent_bits = self.rate_bps * (now - piece.started_at)
                piece.bits = max(0.0, piece.bits - sent_bits)
            piece.earliest = max(piece.earliest, now)
        self.rate_bps, self.delay_s, self.jitter_s = rate_bps, delay_s, jitter_s
        self.last_due = self._left_due
        if self._waiting:
            self.free_at = now
        for piece in self._waiting:
            self._place(piece)

    def is_full(self, now: float) -> bool:
        """Return whether the sender should wait."""
        return self.free_at - now > self.queue_s

    @property
    def queue_s(self) -> float:
        """Time in which the link sends a full queue at its present rate, seconds."""
        if self.queue_bytes is None or not self.rate_bps:
            return QUEUE_S
        return depth_s(self.queue_bytes, self.rate_bps)

    @property
    def ready_at(self) -> float:
        """When a waiting sender may continue."""
        return self.free_at - REFILL_RATIO * self.queue_s

    def _place(self, piece: Piece) -> None:
        """Set the times of a piece, behind all pieces that were placed before it."""
        piece.started_at = max(self.free_at, piece.earliest)
        self.free_at = piece.left_at = piece.started_at + self._duration_s(piece.bits)
        delay_s = max(0.0, self.delay_s + self.jitter_s * piece.z)
        self.last_due = piece.due = max(self.last_due, piece.left_at + delay_s)

    def _duration_s(self, bits: float) -> float:
        if self.rate_bps is None:
            return 0.0
        return bits / self.rate_bps if self.rate_bps > 0.0 else inf

    def _release(self, now: float) -> None:
        """Drop the pieces that were sent completely."""
        while self._waiting and self._waiting[0].left_at <= now:
            self._left_due = self._waiting.popleft().due


def _check(rate_bps: float | None, delay_s: float, jitter_s: float) -> None:
    if rate_bps is not None and not rate_bps >= 0.0:
        raise ValueError(f"rate_bps must be >= 0 or None, got {rate_bps}; fix the profile")
    if not delay_s >= 0.0:
        raise ValueError(f"delay_s must be >= 0, got {delay_s}; fix the profile")
    if not jitter_s >= 0.0:
        raise ValueError(f"jitter_s must be >= 0, got {jitter_s}; fix the profile")


def set_up_s(delay_s: float) -> float:
    """Return the set-up time of a TCP connection: one round trip, seconds."""
    return 2.0 * delay_s
