"""One direction of a slow link: the arrival time of data sent now.

    free = max(now, free) + 8 n / rate                  the line is busy until then
    due  = max(last due, free + delay + jitter z)       nothing overtakes; z is standard normal

A line carries the payload of TCP: headers, loss and slow start are not modelled. The
sender sends pieces of at most `chunk_bytes` and waits while it `is_full`: the rate then holds over
every window of time, up to one piece, and a short queue keeps control messages quick.

A line may change while pieces are on it. Bits that have left keep their arrival time. The rest
continues at the new rate from the present bit, so that the volume is the integral of the rate. At
rate 0 nothing moves: the line is an outage, and keeps its pieces.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

QUEUE_S = 0.1
"""Time that the queue in front of a line holds at most, before it counts as full, seconds."""

CHUNK_S = 2e-3
"""Time that one piece occupies the line, seconds: a compromise of smoothness and cost."""

MIN_CHUNK_BYTES = 1460
"""Payload of one TCP segment on Ethernet."""

MAX_CHUNK_BYTES = 1 << 18
"""The largest result of one read of a socket."""


def _no_jitter() -> float:
    return 0.0


@dataclass(slots=True, eq=False)
class Piece:
    """Bytes on a line; while they wait, a change of the line moves their times."""

    bits: float
    """To be sent from `started_at` on."""
    earliest: float
    z: float
    """Its jitter, in standard deviations."""
    started_at: float = 0.0
    left_at: float = 0.0
    """When its last bit is on the way."""
    due: float = 0.0
    """When it arrives; `inf` in a hole."""


@dataclass(slots=True)
class LinkDirection:
    """One direction of a link. Times are seconds on any one monotonic clock."""

    rate_bps: float | None
    """Payload, bit/s; None is not limited, 0 is a hole."""
    delay_s: float
    """From the end of sending to arrival."""
    jitter_s: float = 0.0
    """Standard deviation of the delay."""
    draw: Callable[[], float] = _no_jitter
    """Returns standard normal numbers."""
    free_at: float = 0.0
    """The line is busy until then; `inf` in a hole that holds something."""
    last_due: float = 0.0
    _left_due: float = 0.0
    """Arrival of the last piece that has left."""
    _waiting: "deque[Piece]" = field(default_factory=deque)
    """Pieces that had not left at the last update; bounded because senders wait while `is_full`."""

    def __post_init__(self) -> None:
        _check(self.rate_bps, self.delay_s, self.jitter_s)

    @property
    def chunk_bytes(self) -> int:
        """Largest piece to send at once."""
        if self.rate_bps is None:
            return MAX_CHUNK_BYTES
        fair = int(self.rate_bps * CHUNK_S / 8.0)
        return min(max(fair, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)

    def send(self, now: float, n_bytes: int, not_before: float = 0.0) -> Piece:
        """Send `n_bytes` behind all that was sent before; return their arrival.

        Args:
            now: The present.
            n_bytes: Size of the piece, at most `chunk_bytes` for the rate to hold.
            not_before: The sender cannot send earlier: its connection is still being set up.
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
        """Be another line from now on; pieces that have not left move to their new times.

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
        return self.free_at - now > QUEUE_S

    @property
    def ready_at(self) -> float:
        """When a waiting sender may continue: the queue is then half empty."""
        return self.free_at - QUEUE_S / 2.0

    def _place(self, piece: Piece) -> None:
        """Give a piece its times, behind all that were placed before it."""
        piece.started_at = max(self.free_at, piece.earliest)
        self.free_at = piece.left_at = piece.started_at + self._duration_s(piece.bits)
        delay_s = max(0.0, self.delay_s + self.jitter_s * piece.z)
        self.last_due = piece.due = max(self.last_due, piece.left_at + delay_s)

    def _duration_s(self, bits: float) -> float:
        if self.rate_bps is None:
            return 0.0
        return bits / self.rate_bps if self.rate_bps > 0.0 else inf

    def _release(self, now: float) -> None:
        """Let go of the pieces that have left."""
        while self._waiting and self._waiting[0].left_at <= now:
            self._left_due = self._waiting.popleft().due


def _check(rate_bps: float | None, delay_s: float, jitter_s: float) -> None:
    if rate_bps is not None and not rate_bps >= 0.0:
        raise ValueError(f"rate_bps must be >= 0 or None, got {rate_bps}; see profiles")
    if not delay_s >= 0.0:
        raise ValueError(f"delay_s must be >= 0, got {delay_s}; see profiles")
    if not jitter_s >= 0.0:
        raise ValueError(f"jitter_s must be >= 0, got {jitter_s}; see profiles")


def set_up_s(delay_s: float) -> float:
    """Return how long a TCP connection takes to open: one round trip, seconds."""
    return 2.0 * delay_s
