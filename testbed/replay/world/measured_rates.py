"""Link rates as devices measure them: `device_agent.state.link_estimate`, one row per device.

    rate    = 8 bytes / (elapsed - round trip)
    elapsed = round trip + waiting of TCP + 8 bytes / rate       of a probe of 64 KB

A device measures its link when it joins, with every transfer that is long enough, and with a
probe after each minute without one. TCP begins anew for a probe (`testbed.emulation.tcp`): on a
link of 20 Mbit/s with 50 ms each way it measures 2.5. A link that moves is measured as it is
meanwhile, outages included.
"""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.device_agent.config import Timeouts
from fairbed.device_agent.state.link_estimate import (
    MAX_AGE_S,
    MAX_BPS,
    MIN_SAMPLE_BYTES,
    MIN_TRANSFER_RATIO,
    PROBE_BYTES,
    SMOOTHING,
)
from fairbed.testbed.emulation.tcp import waiting_s
from fairbed.testbed.replay.world.columns import Moving, Steady
from fairbed.testbed.replay.world.integrals import Direction, LinkIntegral


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


GIVE_UP_S = Timeouts().probe_s
"""A probe without a reply by then found nothing."""

_BITS = 8.0 * PROBE_BYTES


class Probes:
    """The probes of a fleet.

    Args:
        steady: What never moves.
        moving: What does.
    """

    def __init__(self, steady: Steady, moving: Moving) -> None:
        self._trip_s: Floats = 2.0 * steady.delay_s
        self._took_s = {
            "down": _steadily(steady.down_bps, self._trip_s),
            "up": _steadily(steady.up_bps, self._trip_s),
        }
        self._links = moving.links
        self._moves: Bools = np.zeros(len(steady), dtype=np.bool_)
        self._moves[list(moving.links)] = True

    def measure(self, direction: Direction, rows: Ints, t: Floats) -> tuple[Floats, Floats]:
        """Return what probes find that begin at `t`, and when they are over, each of shape (K,).

        Args:
            direction: As seen from the device.
            rows: Of K devices.
            t: Of each, seconds, shape (K,).

        Returns:
            Rates, bit/s, 0 where nobody answered; and moments, seconds.
        """
        trip_s, took_s = self._trip_s[rows], self._took_s[direction][rows]
        for at in np.flatnonzero(self._moves[rows]).tolist():
            way, begun = (
                LinkIntegral(self._links[int(rows[at])], GIVE_UP_S),
                float(t[at] + trip_s[at]),
            )
            took_s[at] = way.transfer(begun, _BITS, direction) - begun
        elapsed_s = took_s + trip_s
        least_s = np.maximum(MIN_TRANSFER_RATIO * elapsed_s, _BITS / MAX_BPS)
        rates: Floats = _BITS / np.maximum(took_s, least_s)
        over: Floats = t + trip_s + np.minimum(elapsed_s, GIVE_UP_S)
        return np.where(elapsed_s <= GIVE_UP_S, rates, 0.0), over


def _steadily(rate_bps: Floats, trip_s: Floats) -> Floats:
    """Return what a probe takes beyond the round trip where nothing moves, seconds, shape (N,)."""
    line_s = _BITS / rate_bps
    took_s: Floats = line_s + waiting_s(_BITS, line_s, trip_s)
    return took_s
