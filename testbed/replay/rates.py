"""Link estimates of a whole fleet: `device_agent.state.link_estimate`, one row per device.

    rate = 8 bytes / (elapsed - round trip)

A device measures its link when it joins, with every transfer that is long enough, and with a
probe when it has not for a minute.
"""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.device_agent.state.link_estimate import (
    MAX_AGE_S,
    MAX_BPS,
    MIN_SAMPLE_BYTES,
    MIN_TRANSFER_RATIO,
    SMOOTHING,
)


class MeasuredRates:
    """One direction of the links of a fleet, as the devices measured it.

    Args:
        rate_bps: What the first probe found, bit/s, shape (N,).
        at: When, shape (N,).
    """

    def __init__(self, rate_bps: Floats, at: Floats) -> None:
        self._seconds_per_bit = 1.0 / np.minimum(rate_bps, MAX_BPS)
        self._at = at.copy()

    def bps(self) -> Floats:
        """Return the rates, bit/s, shape (N,)."""
        bps: Floats = 1.0 / self._seconds_per_bit
        return bps

    def age_s(self, now: float) -> Floats:
        """Return how old they are, seconds, shape (N,); a replay may begin before they are."""
        age_s: Floats = np.maximum(now - self._at, 0.0)
        return age_s

    def stale(self, now: float) -> Bools:
        """Return whose device has probed since its last measurement, shape (N,)."""
        stale: Bools = now - self._at > MAX_AGE_S
        return stale

    def probed_at(self, now: float, rows: Ints) -> Floats:
        """Return when those devices probed last, shape (K,): every `MAX_AGE_S`."""
        at = self._at[rows]
        last: Floats = at + MAX_AGE_S * np.floor((now - at) / MAX_AGE_S)
        return last

    def on_probe(self, now: float, rows: Ints, rate_bps: Floats, at: Floats) -> None:
        """Take note of probes that are over `at`, each of shape (K,).

        One without an answer found nothing; one that is not over yet will be asked for again.
        """
        found = (rate_bps > 0.0) & (at <= now)
        self._seconds_per_bit[rows[found]] = 1.0 / np.minimum(rate_bps[found], MAX_BPS)
        self._at[rows[found]] = at[found]

    def on_transfers(
        self, rows: Ints, n_bytes: Ints, elapsed_s: Floats, round_trip_s: Floats, at: Floats
    ) -> None:
        """Take note of transfers that ended, each of shape (K,), as `LinkEstimate.on_transfer`.

        Those that are too small, or never ended, say nothing.
        """
        useful = (n_bytes >= MIN_SAMPLE_BYTES) & np.isfinite(elapsed_s)
        rows, at = rows[useful], at[useful]
        elapsed_s, bits = elapsed_s[useful], 8.0 * n_bytes[useful]
        line_s = np.maximum(elapsed_s - round_trip_s[useful], MIN_TRANSFER_RATIO * elapsed_s)
        sample = np.maximum(line_s / bits, 1.0 / MAX_BPS)
        weight = np.where(at - self._at[rows] > MAX_AGE_S, 1.0, SMOOTHING)
        self._seconds_per_bit[rows] += weight * (sample - self._seconds_per_bit[rows])
        self._at[rows] = at

    def to_state(self) -> dict[str, Any]:
        """Return both columns, packed."""
        return {"spb": self._seconds_per_bit.tobytes(), "at": self._at.tobytes()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what `to_state` returned."""
        self._seconds_per_bit = np.frombuffer(state["spb"]).copy()
        self._at = np.frombuffer(state["at"]).copy()
