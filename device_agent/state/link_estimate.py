"""Estimate of a device's link: rates from its own transfers, and the times of new probes.

    rate = 8 bytes / (elapsed - round trip)

Pure: time is an argument. Samples are averaged as seconds per bit, not as bits per second, because
the coordinator predicts M / B.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fairbed.wire.messages import MAX_CHUNK_BYTES

Direction: TypeAlias = Literal["down", "up"]

PROBE_BYTES = 64 * 1024
"""Payload of a link probe (design.md, section 2)."""

MAX_AGE_S = 60.0
"""An older measurement is refreshed with a probe (design.md, section 2)."""

MIN_SAMPLE_BYTES = 16 * 1024
"""Smaller transfers measure latency, not rate."""

SMOOTHING = 0.5
"""Weight of the newest sample; large, as mobile links change within a round."""

MIN_TRANSFER_RATIO = 0.1
"""Lower bound of the transfer time, as a share of the elapsed time; the rest is round trip."""

MAX_BPS = 1e12
"""Upper bound of a measured rate, bit/s; a coarse clock could give infinity."""


@dataclass(slots=True)
class _Rate:
    seconds_per_bit: float | None = None
    at: float = 0.0

    def add(self, seconds_per_bit: float, now: float) -> None:
        if self.seconds_per_bit is None or now - self.at > MAX_AGE_S:
            self.seconds_per_bit = seconds_per_bit
        else:
            self.seconds_per_bit += SMOOTHING * (seconds_per_bit - self.seconds_per_bit)
        self.at = now

    @property
    def bps(self) -> float | None:
        return None if self.seconds_per_bit is None else 1.0 / self.seconds_per_bit


@dataclass(slots=True)
class LinkEstimate:
    """Downlink, uplink and round trip of one device, from its own measurements."""

    probe_bytes: int = 0
    """Bytes of all probes so far, both directions together."""
    max_chunk_bytes: int = MAX_CHUNK_BYTES
    """The largest chunk that the broker accepts, from the last welcome."""
    _rates: dict[Direction, _Rate] = field(default_factory=lambda: {"down": _Rate(), "up": _Rate()})
    _rtt_s: float | None = None
    _probed_at: float | None = None

    @property
    def downlink_bps(self) -> float | None:
        """Measured downlink, bit/s; None before the first sample."""
        return self._rates["down"].bps

    @property
    def uplink_bps(self) -> float | None:
        """Measured uplink, bit/s; None before the first sample."""
        return self._rates["up"].bps

    @property
    def rtt_s(self) -> float:
        """Control round trip, seconds; 0 before the first sample."""
        return self._rtt_s or 0.0

    def age_s(self, now: float) -> float | None:
        """Return the age of the older of the two rates; None while one is unknown."""
        if self.downlink_bps is None or self.uplink_bps is None:
            return None
        return max(now - rate.at for rate in self._rates.values())

    def on_round_trip(self, elapsed_s: float) -> None:
        """Add the round trip of an empty probe; a shorter one replaces the estimate."""
        if self._rtt_s is None or elapsed_s < self._rtt_s:
            self._rtt_s = elapsed_s
        else:
            self._rtt_s += SMOOTHING * (elapsed_s - self._rtt_s)

    def on_transfer(self, direction: Direction, n_bytes: int, elapsed_s: float, now: float) -> bool:
        """Add a transfer; return whether it was large enough to measure the rate.

        Args:
            direction: As seen from the device.
            n_bytes: Payload bytes.
            elapsed_s: From the request to the last byte, or from the first byte to the last
                acknowledgement: both include one round trip.
            now: End of the transfer.
        """
        if n_bytes < MIN_SAMPLE_BYTES or elapsed_s < 0.0:
            return False
        transfer_s = max(elapsed_s - self.rtt_s, MIN_TRANSFER_RATIO * elapsed_s)
        self._rates[direction].add(max(transfer_s / (8.0 * n_bytes), 1.0 / MAX_BPS), now)
        return True

    def due_probes(self, now: float) -> tuple[Direction, ...]:
        """Return the directions to probe now: unknown or too old, at most once a minute."""
        if self._probed_at is not None and now - self._probed_at < MAX_AGE_S:
            return ()
        return tuple(
            direction
            for direction, rate in self._rates.items()
            if rate.bps is None or now - rate.at > MAX_AGE_S
        )

    def next_probe_at(self, now: float) -> float:
        """Return the earliest time at which `due_probes` may return a direction."""
        dues = [now if rate.bps is None else rate.at + MAX_AGE_S for rate in self._rates.values()]
        if self._probed_at is not None:
            dues = [max(due, self._probed_at + MAX_AGE_S) for due in dues]
        return max(now, min(dues))

    def on_probe_sent(self, n_bytes: int, now: float) -> None:
        """Count a probe of `n_bytes`, both directions together."""
        self.probe_bytes += n_bytes
        self._probed_at = now
