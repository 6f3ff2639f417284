"""One direction of a slow link: when does what is sent now arrive?

    free = max(now, free) + 8 n / rate          the line is busy until then
    due  = max(last due, free + delay)          nothing overtakes

A line carries the payload of TCP: headers, loss and slow start are not modelled. Whoever feeds a
line sends pieces of at most `chunk_bytes` and waits while it `is_full`: the rate then holds over
every window of time, up to one piece, and a short queue keeps control messages quick.
"""

from dataclasses import dataclass

QUEUE_S = 0.1
"""Time that the queue in front of a line holds at most, before it counts as full, seconds."""

CHUNK_S = 2e-3
"""Time that one piece occupies the line, seconds: a compromise of smoothness and cost."""

MIN_CHUNK_BYTES = 1460
"""Payload of one TCP segment on Ethernet."""

MAX_CHUNK_BYTES = 1 << 18
"""What one read of a socket returns at most."""


@dataclass(slots=True)
class Line:
    """One direction of a link. Times are seconds on any one monotonic clock."""

    rate_bps: float | None
    """Payload, bit/s; None is not limited."""
    delay_s: float
    """From the end of sending to arrival."""
    free_at: float = 0.0
    """The line is busy until then."""
    last_due: float = 0.0

    def __post_init__(self) -> None:
        if self.rate_bps is not None and self.rate_bps <= 0.0:
            raise ValueError(f"rate_bps must be > 0 or None, got {self.rate_bps}; see profiles")
        if self.delay_s < 0.0:
            raise ValueError(f"delay_s must be >= 0, got {self.delay_s}; see profiles")

    @property
    def chunk_bytes(self) -> int:
        """Largest piece to send at once."""
        if self.rate_bps is None:
            return MAX_CHUNK_BYTES
        fair = int(self.rate_bps * CHUNK_S / 8.0)
        return min(max(fair, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)

    def send(self, now: float, n_bytes: int, not_before: float = 0.0) -> float:
        """Send `n_bytes` behind all that was sent before; return when they arrive.

        Args:
            now: The present.
            n_bytes: Size of the piece, at most `chunk_bytes` for the rate to hold.
            not_before: The sender cannot send earlier: its connection is still being set up.
        """
        duration_s = 0.0 if self.rate_bps is None else 8.0 * n_bytes / self.rate_bps
        self.free_at = max(now, self.free_at, not_before) + duration_s
        self.last_due = max(self.last_due, self.free_at + self.delay_s)
        return self.last_due

    def is_full(self, now: float) -> bool:
        """Tell whether the sender should wait."""
        return self.free_at - now > QUEUE_S

    @property
    def ready_at(self) -> float:
        """When a sender that waits should go on: the queue is then half empty."""
        return self.free_at - QUEUE_S / 2.0


def set_up_s(delay_s: float) -> float:
    """Return how long a TCP connection takes to open: one round trip, seconds."""
    return 2.0 * delay_s
