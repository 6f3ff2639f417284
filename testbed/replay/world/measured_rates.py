"""Link rates as devices measure them: `device_agent.state.link_estimate`, one row per device.

    rate    = 8 bytes / (elapsed - round trip)
    elapsed = round trip + TCP slow start + 8 bytes / rate       of a probe of 64 KB

A device measures its link when it joins, with every transfer that is long enough, and with a
probe after each minute without one. A probe has its own TCP slow start (`testbed.emulation.tcp`):
on a link of 20 Mbit/s with 50 ms each way it measures 2.5 Mbit/s. The measurement of a link that
varies includes its changes and outages.
"""

from collections.abc import Sequence
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
from fairbed.testbed.emulation.cell import Direction
from fairbed.testbed.emulation.tcp import slow_start_s
from fairbed.testbed.replay.world.columns import MeanConditions, VaryingConditions
from fairbed.testbed.replay.world.integrals import LinkIntegral
from fairbed.testbed.replay.world.tcp_links import TcpLinks
from fairbed.testbed.replay.world.world import ModelFault


class MeasuredRates:
    """Rates of one direction of the links of a fleet, as the devices measured them.

    Args:
        rate_bps: Result of the first probe, bit/s, shape (N,).
        at: Instants of these probes, seconds, shape (N,).
    """

    def __init__(self, rate_bps: Floats, at: Floats) -> None:
        self._seconds_per_bit = 1.0 / np.minimum(rate_bps, MAX_BPS)
        self._at = at.copy()

    def bps(self) -> Floats:
        """Return the rates, bit/s, shape (N,)."""
        bps: Floats = 1.0 / self._seconds_per_bit
        return bps

    def age_s(self, now: float) -> Floats:
        """Return the age of each rate, seconds, shape (N,); 0 for a measurement after `now`."""
        age_s: Floats = np.maximum(now - self._at, 0.0)
        return age_s

    def stale(self, now: float) -> Bools:
        """Return which devices have probed since their last measurement, shape (N,)."""
        stale: Bools = now - self._at > MAX_AGE_S
        return stale

    def probed_at(self, now: float, rows: Ints) -> Floats:
        """Return when devices last probed, shape (K,); they probe every `MAX_AGE_S`."""
        at = self._at[rows]
        probed_at: Floats = at + MAX_AGE_S * np.floor((now - at) / MAX_AGE_S)
        return probed_at

    def on_probe(self, now: float, rows: Ints, rate_bps: Floats, at: Floats) -> None:
        """Take the rates of probes that end at `at`, each of shape (K,).

        A probe without a reply has no rate; one that ends after `now` is taken by a later call.
        """
        is_over = (rate_bps > 0.0) & (at <= now)
        self._seconds_per_bit[rows[is_over]] = 1.0 / np.minimum(rate_bps[is_over], MAX_BPS)
        self._at[rows[is_over]] = at[is_over]

    def on_transfers(
        self, rows: Ints, n_bytes: Ints, elapsed_s: Floats, round_trip_s: Floats, at: Floats
    ) -> None:
        """Update the rates with transfers that ended, each of shape (K,).

        The rule is that of `LinkEstimate.on_transfer`: transfers that are too small, or never end,
        do not count.
        """
        useful = (n_bytes >= MIN_SAMPLE_BYTES) & np.isfinite(elapsed_s)
        rows, at = rows[useful], at[useful]
        elapsed_s, bits = elapsed_s[useful], 8.0 * n_bytes[useful]
        sending_s = np.maximum(elapsed_s - round_trip_s[useful], MIN_TRANSFER_RATIO * elapsed_s)
        sample = np.maximum(sending_s / bits, 1.0 / MAX_BPS)
        weight = np.where(at - self._at[rows] > MAX_AGE_S, 1.0, SMOOTHING)
        self._seconds_per_bit[rows] += weight * (sample - self._seconds_per_bit[rows])
        self._at[rows] = at

    def to_state(self) -> dict[str, Any]:
        """Return both columns as bytes."""
        return {"spb": self._seconds_per_bit.tobytes(), "at": self._at.tobytes()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        self._seconds_per_bit = np.frombuffer(state["spb"]).copy()
        self._at = np.frombuffer(state["at"]).copy()


GIVE_UP_S = Timeouts().probe_s
"""A probe without a reply within this time has no rate."""

_BITS = 8.0 * PROBE_BYTES


class Probes:
    """Link probes of a fleet.

    Args:
        means: Conditions of all devices, as means.
        varying: Conditions that vary over time.
        tcp: Connections of the devices whose packets are lost.
    """

    def __init__(self, means: MeanConditions, varying: VaryingConditions, tcp: TcpLinks) -> None:
        self._tcp = tcp
        self._trip_s: Floats = 2.0 * means.delay_s
        self._constant_s = {
            "down": _probe_s(means.down_bps, self._trip_s),
            "up": _probe_s(means.up_bps, self._trip_s),
        }
        """Durations beyond the round trip on links that do not vary."""
        self._links = varying.links
        self._varies: Bools = np.zeros(len(means), dtype=np.bool_)
        self._varies[list(varying.links)] = True
        self._faults: list[ModelFault] = []

    def measure(self, direction: Direction, rows: Ints, t: Floats) -> tuple[Floats, Floats]:
        """Return the rates that probes measure, and when they end, each of shape (K,).

        Args:
            direction: As seen from the device.
            rows: Rows of K devices.
            t: Instants at which the probes start, seconds, shape (K,).

        Returns:
            Rates, bit/s, 0 for a probe without a reply; and instants, seconds.
        """
        trip_s, took_s = self._trip_s[rows], self._constant_s[direction][rows]
        for at in np.flatnonzero(self._varies[rows]).tolist():
            row, start = int(rows[at]), float(t[at] + trip_s[at])
            try:
                took_s[at] = self._probe_s(row, direction, start, float(trip_s[at]))
            except Exception as exc:  # a bug of a model ends one probe, and not the replay
                took_s[at] = np.inf
                self._faults.append(ModelFault.of(row, "link probe", exc))
        elapsed_s = took_s + trip_s
        least_s = np.maximum(MIN_TRANSFER_RATIO * elapsed_s, _BITS / MAX_BPS)
        rates: Floats = _BITS / np.maximum(took_s, least_s)
        ends: Floats = t + trip_s + np.minimum(elapsed_s, GIVE_UP_S)
        return np.where(elapsed_s <= GIVE_UP_S, rates, 0.0), ends

    def take_faults(self) -> Sequence[ModelFault]:
        """Return the probes whose model had an internal error, once; they have no reply."""
        faults, self._faults = self._faults, []
        return faults

    def _probe_s(self, row: int, direction: Direction, start: float, trip_s: float) -> float:
        """Return the duration of a probe beyond the round trip."""
        if row in self._tcp:
            end = self._tcp.probe(row, direction, start, _BITS, GIVE_UP_S)
            return max(end - start - trip_s / 2.0, 0.0)
        return LinkIntegral(self._links[row], GIVE_UP_S).transfer(start, _BITS, direction) - start


def _probe_s(rate_bps: Floats, trip_s: Floats) -> Floats:
    """Return the duration of a probe on a constant link without its round trip, shape (N,)."""
    transmission_s = _BITS / rate_bps
    took_s: Floats = transmission_s + slow_start_s(_BITS, transmission_s, trip_s)
    return took_s
