"""TCP over a link: its slow start in closed form, and the sender of a connection under loss.

Without loss only slow start matters. The link is idle in

    windows    w_i = 10 * 1448 bytes * 2^i           doubled in every round trip
    waiting    sum of (round trip - w_i / rate)      over all windows but the last that are sent in
                                                     less than a round trip

A connection that was idle restarts with the first window, and the connections of a fleet are idle
between transfers. From the first window that takes a round trip or more, the link is always busy.

With loss, `testbed.emulation.tcp_transfer` simulates the packets of a transfer. Window and round
trip stay with the connection (`TcpSender`), as losses of one transfer slow the next one down.

Source:
    RFC 5681, section 3.1 (slow start) and 4.1 (restarting idle connections); RFC 6928 (ten
    segments); RFC 9438 (CUBIC); RFC 9406 and Linux 6.18, net/ipv4/tcp_cubic.c (HyStart as Linux
    has it). Segments carry 1448 bytes, as everywhere in the emulation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats

FIRST_WINDOW = 10
"""Packets."""

PAYLOAD_BYTES = 1448
"""TCP payload of a full IPv4 packet with time stamps."""

WIRE_BYTES = 1514
"""Bytes of a full packet in a queue."""

FIRST_WINDOW_BITS = 8.0 * 10 * 1448
_FULL_BITS = 8.0 * PAYLOAD_BYTES

MIN_RTO_S, FIRST_RTO_S, MAX_RTO_S = 0.2, 1.0, 120.0
"""Least time-out above the round trip, that of a new connection, and the greatest one."""

BETA, CUBIC_PER_S3, RENO_WINDOWS_8, CUBIC_UPDATE_S = 717 / 1024, 410 / 1024, 15, 1 / 32
"""Window after a loss, relative; steepness of the cubic; eight times the acknowledged windows for
one packet of a Reno sender with this `BETA`; the growth is computed at most so often for the same
window, seconds. All numbers of CUBIC are integers, as in Linux: windows are small under loss."""

SLOW_CUBIC = 20
"""Before the first loss the window grows by a packet per this many acknowledged ones, or faster."""

HYSTART_WINDOW, HYSTART_SAMPLES, HYSTART_TRAIN_S = 16, 8, 2e-3
"""HyStart: least window, acknowledgements before the round trip counts, gap within a train."""

DUPLICATES = 3
"""Packets delivered behind a hole after which the hole is a loss, without waiting."""

QUICK_ACKS, DELAYED_ACK_S = 16, 0.04
"""Packets acknowledged one by one after a pause; longest wait for a second packet."""

PROBE_S = 2e-3
"""Added to two round trips before a tail loss probe."""

HYSTART_ACK_S = 1e-3
"""Allowance for delayed acknowledgements."""

MAX_TIMEOUTS = 15
"""Time-outs in a row after which Linux gives up (`tcp_retries2`)."""

JITTER_MEMORY = 20.0
"""Correlation time / jitter, as in `testbed.backends.network.plan.delay`."""


def slow_start_s(bits: float | Floats, transmission_s: Floats, round_trip_s: Floats) -> Floats:
    """Return the duration of a transfer minus its transmission time.

    Args:
        bits: Size of the transfer, more than 0, shape (K,) or one for all.
        transmission_s: Transmission time, bits / rate, seconds, shape (K,).
        round_trip_s: Shape (K,).

    Returns:
        Seconds, shape (K,).
    """
    total_s = np.zeros_like(transmission_s)
    window = sent = FIRST_WINDOW_BITS
    while True:
        idle_s = round_trip_s - transmission_s * (window / bits)
        waits = (idle_s > 0.0) & (bits > sent)
        if not waits.any():
            return total_s
        total_s += np.where(waits, idle_s, 0.0)
        window *= 2.0
        sent += window


def transmission_s(bits: float, took_s: float, round_trip_s: float) -> float:
    """Return the transmission time of a transfer: the inverse of `slow_start_s`.

    Args:
        bits: Size of the transfer.
        took_s: Duration of the transfer since its first bit was sent, seconds.
        round_trip_s: Seconds.

    Returns:
        Seconds; `took_s` if slow start cannot explain so short a duration.
    """
    window, sent, waits, link_s = FIRST_WINDOW_BITS, 0.0, 0, took_s
    while sent + window < bits and link_s * window / bits < round_trip_s:
        sent, waits, window = sent + window, waits + 1, 2.0 * window
        link_s = (took_s - waits * round_trip_s) / (1.0 - sent / bits)
        if link_s <= 0.0:
            return took_s
    return link_s


def expected_lossy_s(
    bits: float | Floats, lossless_s: Floats, round_trip_s: Floats, loss_ratio: Floats
) -> Floats:
    """Return the expected duration of a transfer under loss, roughly and in closed form.

        per packet = round trip sqrt(2 p / 3) + 0.4 t min(1, 3 sqrt(3 p / 8)) p (1 + 32 p^2)
        duration   = (lossless^3 + (packets * per packet)^3)^(1/3),   t = round trip + 0.2 s

    `transfer_end` has means within 35 % of it for 100 kB to 1 MB at 2 to 100 Mbit/s, delays of 20
    to 60 ms and losses from 1 to 10 %; with 0.1 % it is up to twice as long.

    Args:
        bits: Size of the transfer, shape (K,) or one for all.
        lossless_s: Its duration without loss, seconds, shape (K,).
        round_trip_s: Shape (K,).
        loss_ratio: p, shape (K,).

    Source:
        Padhye et al., SIGCOMM 1998, eq. 30, with one acknowledgement per packet.
    Deviates:
        The weight 0.4 of time-outs, because RACK and probes avoid most of them, and the sum with
        the time of the link: both fitted to `transfer_end`.
    """
    p = loss_ratio
    wait_s = (round_trip_s + MIN_RTO_S) * np.minimum(1.0, 3.0 * np.sqrt(3.0 * p / 8.0))
    per_packet_s = round_trip_s * np.sqrt(2.0 * p / 3.0) + 0.4 * wait_s * p * (1.0 + 32.0 * p * p)
    expected_s: Floats = np.cbrt(lossless_s**3 + (bits / _FULL_BITS * per_packet_s) ** 3)
    return expected_s


class Draws(Protocol):
    """Random numbers of a transfer: `random.Random`, or a test's own."""

    def random(self) -> float:
        """Return a number from 0 to 1."""
        ...

    def gauss(self, mu: float, sigma: float) -> float:
        """Return a normal number."""
        ...


class PathState(NamedTuple):
    """One direction of a path from an instant on."""

    rate_bps: float
    """TCP payload, bit/s; 0 is an outage, which drops what is sent and what is queued."""
    delay_s: float
    """One way, the same in both directions."""
    jitter_s: float
    """Standard deviation of the delay."""
    loss_ratio: float
    """Share of packets lost, the same for data and acknowledgements."""
    until: float
    """The state holds until then; `inf` is always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpPath:
    """The path of a transfer. Times are seconds on any one clock."""

    at: Callable[[float], PathState]
    """Returns the state of the path at an instant."""
    queue_bytes: float
    """Limit of the queue in front of the bottleneck, bytes on the wire; `inf` drops nothing."""
    is_lossy_first: bool = False
    """Packets are lost before the bottleneck and not behind it: the uplink of a device."""

    @classmethod
    def constant(
        cls,
        rate_bps: float,
        delay_s: float,
        loss_ratio: float,
        *,
        jitter_s: float = 0.0,
        queue_bytes: float = inf,
        is_lossy_first: bool = False,
    ) -> "TcpPath":
        """Return a path that never changes."""
        state = PathState(rate_bps, delay_s, jitter_s, loss_ratio, inf)
        return cls(at=lambda _: state, queue_bytes=queue_bytes, is_lossy_first=is_lossy_first)


@dataclass(slots=True)
class TcpSender:
    """The sender of a connection between its transfers; windows in packets, times in seconds."""

    cwnd: int = FIRST_WINDOW
    ssthresh: float = inf
    plateau: int = 0
    """Window at the last loss; 0 is before the first."""
    epoch: float = -inf
    """Begin of the growth since the last loss; `-inf` is not begun."""
    origin: int = 0
    k_s: float = 0.0
    """From `epoch` until the cubic reaches `origin`."""
    reno: int = 0
    """The window that Reno would have: CUBIC is never slower."""
    reno_acks: int = 0
    grown: int = 0
    """Acknowledged packets towards the next packet of the window."""
    per_packet: int = 2
    """Acknowledged packets that widen the window by one, computed for this window at this time."""
    updated_for: int = 0
    updated_at: float = -inf
    srtt_s: float = 0.0
    """Smoothed round trip; 0 is before the first."""
    mdev_s: float = 0.0
    """Four times the smoothed deviation from it."""
    mdev_max_s: float = MIN_RTO_S
    """Greatest one of this window, at least `MIN_RTO_S`."""
    rttvar_s: float = MIN_RTO_S
    """Of the time-out above the round trip."""
    min_rtt_s: float = inf
    has_left_slow_start: bool = False
    """HyStart has ended a slow start; it does so once."""
    sent_at: float = -inf
    """The last packet was sent then."""
    timeouts: int = 0
    """Retransmission time-outs of all transfers."""

    @property
    def rto_s(self) -> float:
        """Retransmission time-out."""
        if self.srtt_s == 0.0:
            return FIRST_RTO_S
        return self.srtt_s + self.rttvar_s

    def resume(self, now: float) -> None:
        """Restart after a pause: half the window for each time-out of it, at least the first one.

        Source: `tcp_cwnd_restart`, Linux.
        """
        idle_s = now - self.sent_at
        if self.sent_at > -inf and idle_s > self.rto_s:
            self.ssthresh = max(self.ssthresh, self.cwnd - self.cwnd // 4)
            least = min(FIRST_WINDOW, self.cwnd)
            halvings = int(idle_s / self.rto_s)
            self.cwnd = max(self.cwnd >> min(halvings, 30), least)
            self.epoch += idle_s

    def on_round_trip(self, rtt_s: float, *, is_new_window: bool = False) -> None:
        """Update the time-out, which grows at once and falls by a quarter per window.

        Args:
            rtt_s: A round trip, seconds.
            is_new_window: All packets are acknowledged that were sent before the last such one.

        Source: `tcp_rtt_estimator`, Linux, instead of RFC 6298, section 2.
        """
        self.min_rtt_s = min(self.min_rtt_s, rtt_s)
        if self.srtt_s == 0.0:
            self.srtt_s, self.mdev_s = rtt_s, 2.0 * rtt_s
            self.rttvar_s = self.mdev_max_s = max(self.mdev_s, MIN_RTO_S)
            return
        error_s = rtt_s - self.srtt_s
        self.srtt_s += error_s / 8.0
        step_s = abs(error_s) - self.mdev_s / 4.0
        self.mdev_s += step_s / 8.0 if error_s < 0.0 < step_s else step_s
        self.mdev_max_s = max(self.mdev_max_s, self.mdev_s)
        self.rttvar_s = max(self.rttvar_s, self.mdev_max_s)
        if is_new_window:
            self.rttvar_s -= (self.rttvar_s - self.mdev_max_s) / 4.0
            self.mdev_max_s = MIN_RTO_S

    def on_loss(self) -> None:
        """Set the next threshold and the plateau of the cubic, with fast convergence."""
        self.epoch, self.grown, window = -inf, 0, self.cwnd
        self.plateau = int(window * (1.0 + BETA) / 2.0) if window < self.plateau else window
        self.ssthresh = max(int(window * BETA), 2)

    def grow(self, acked: int, now: float) -> None:
        """Widen the window by acknowledged packets: slow start, then CUBIC."""
        if self.cwnd < self.ssthresh:
            room = int(min(acked, self.ssthresh - self.cwnd))
            self.cwnd += room
            acked -= room
            if acked == 0:
                return
        per_packet = self._acks_per_packet(acked, now)
        if self.grown >= per_packet:  # credit from when a packet took more of them
            self.grown = 0
            self.cwnd += 1
        self.grown += acked
        if self.grown >= per_packet:
            self.cwnd += self.grown // per_packet
            self.grown %= per_packet

    def _acks_per_packet(self, acked: int, now: float) -> int:
        """Return the acknowledged packets that widen the window by one (`bictcp_update`)."""
        cwnd = self.cwnd
        self.reno_acks += acked
        if self.updated_for == cwnd and now - self.updated_at <= CUBIC_UPDATE_S:
            return self.per_packet
        self.updated_for, self.updated_at = cwnd, now
        if self.epoch == -inf:
            self.epoch, self.reno, self.reno_acks = now, cwnd, acked
            self.origin = max(self.plateau, cwnd)
            self.k_s = ((self.origin - cwnd) / CUBIC_PER_S3) ** (1.0 / 3.0)
        t = now + self.min_rtt_s - self.epoch - self.k_s
        target = self.origin + int(CUBIC_PER_S3 * t * t * t)
        per_packet = cwnd // (target - cwnd) if target > cwnd else 100 * cwnd
        if self.plateau == 0:
            per_packet = min(per_packet, SLOW_CUBIC)
        window = max(1, cwnd * RENO_WINDOWS_8 // 8)
        if self.reno_acks > window:
            more = (self.reno_acks - 1) // window
            self.reno += more
            self.reno_acks -= more * window
        if self.reno > cwnd:
            per_packet = min(per_packet, cwnd // (self.reno - cwnd))
        self.per_packet = max(per_packet, 2)
        return self.per_packet


def idles_after_overflow(queue_bytes: float, rate_bps: float, round_trip_s: float) -> bool:
    """Return whether a link is idle after its queue has dropped a packet.

        BETA (BDP + queue) < BDP,   BDP = rate * round trip

    A sender without other losses fills link and queue before a packet is lost, and then has a
    window of `BETA` times that.
    """
    bdp_bytes = rate_bps * round_trip_s / 8.0 * WIRE_BYTES / PAYLOAD_BYTES
    return BETA * (bdp_bytes + queue_bytes) < bdp_bytes
