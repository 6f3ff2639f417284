"""Estimate of a device's link: rates from its own transfers, and when to measure again.

    rate = 8 bytes / (elapsed - round trip)

Pure: time is an argument. Recent samples are averaged as seconds per bit, not as bits per
second, because what the coordinator predicts is M / B.
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
"""Weight of the newest sample; mobile links change within a round, so the past counts little."""

MIN_TRANSFER_RATIO = 0.1
"""At least this part of the elapsed time is taken for transfer, whatever the round trip says."""

MAX_BPS = 1e12
"""Fastest link believed, bit/s; keeps a coarse clock from reporting infinity."""


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
    """Downlink, uplink and round trip of one device, by its own measurements."""

    probe_bytes: int = 0
    """Bytes that probes have moved so far, both ways."""
    max_chunk_bytes: int = MAX_CHUNK_BYTES
    """The largest chunk that the broker takes, by the last welcome."""
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
        """Take note of an empty round trip; the shortest recent one is the link's own."""
        if self._rtt_s is None or elapsed_s < self._rtt_s:
            self._rtt_s = elapsed_s
        else:
            self._rtt_s += SMOOTHING * (elapsed_s - self._rtt_s)

    def on_transfer(self, direction: Direction, n_bytes: int, elapsed_s: float, now: float) -> bool:
        """Take note of a transfer; tell whether it was large enough to say anything.

        Args:
            direction: As seen from the device.
            n_bytes: Payload moved.
            elapsed_s: From the request to the last byte, or from the first byte to the
                acknowledgement of the last: one round trip included.
            now: When it ended.
        """
        if n_bytes < MIN_SAMPLE_BYTES or elapsed_s < 0.0:
            return False
        transfer_s = max(elapsed_s - self.rtt_s, MIN_TRANSFER_RATIO * elapsed_s)
        self._rates[direction].add(max(transfer_s / (8.0 * n_bytes), 1.0 / MAX_BPS), now)
        return True

    def wanted_probes(self, now: float) -> tuple[Direction, ...]:
        """Return which directions should be probed now: unknown or too old, once a minute."""
        if self._probed_at is not None and now - self._probed_at < MAX_AGE_S:
            return ()
        return tuple(
            direction
            for direction, rate in self._rates.items()
            if rate.bps is None or now - rate.at > MAX_AGE_S
        )

    def next_probe_at(self, now: float) -> float:
        """Return when `wanted_probes` may next name a direction."""
        dues = [now if rate.bps is None else rate.at + MAX_AGE_S for rate in self._rates.values()]
        if self._probed_at is not None:
            dues = [max(due, self._probed_at + MAX_AGE_S) for due in dues]
        return max(now, min(dues))

    def on_probe_sent(self, n_bytes: int, now: float) -> None:
        """Take note that a probe of `n_bytes` (both ways together) is on its way."""
        self.probe_bytes += n_bytes
        self._probed_at = now
