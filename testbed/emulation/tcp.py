"""TCP over a link: its slow start in closed form, and a simulation of its packets under loss.

Without loss only slow start matters. The link is idle in

    windows    w_i = 10 * 1448 bytes * 2^i           doubled in every round trip
    waiting    sum of (round trip - w_i / rate)      over all windows but the last that are sent in
                                                     less than a round trip

A connection that was idle restarts with the first window, and the connections of a fleet are idle
between transfers. From the first window that takes a round trip or more, the link is always busy.

With loss, `transfer_end` simulates the sender of Linux packet by packet: CUBIC with HyStart,
selective acknowledgements, RACK, proportional rate reduction, tail loss probe, retransmission
time-out. A path keeps the order of its packets, so that each packet costs one step and no queue of
events: its fate and its arrival are known when it is sent. The window stays with the connection
(`TcpSender`), as losses of one transfer slow the next one down.

Not modelled: the window of the receiver, F-RTO, the undo of a spurious time-out, queueing of
acknowledgements behind data of the other direction.

Source:
    RFC 5681, section 3.1 (slow start) and 4.1 (restarting idle connections); RFC 6928 (ten
    segments); RFC 9438 (CUBIC); RFC 9406 and Linux 6.18, net/ipv4/tcp_cubic.c (HyStart as Linux
    has it); RFC 8985 (RACK and tail loss probe); RFC 6937 with Linux 6.18, net/ipv4/tcp_input.c
    (rate reduction); RFC 6298 (time-out). Segments carry 1448 bytes, as everywhere in the
    emulation.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, inf, sqrt
from typing import Literal, NamedTuple, Protocol

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
    to 60 ms and losses from 1 to 10 %; with less loss it is too long by up to 60 %.

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
    rttvar_s: float = 0.0
    min_rtt_s: float = inf
    has_left_slow_start: bool = False
    """HyStart has ended a slow start; it does so once."""
    sent_at: float = -inf
    """The last packet was sent then."""

    @property
    def rto_s(self) -> float:
        """Retransmission time-out."""
        if self.srtt_s == 0.0:
            return FIRST_RTO_S
        return self.srtt_s + max(MIN_RTO_S, 4.0 * self.rttvar_s)

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

    def on_round_trip(self, rtt_s: float) -> None:
        """Update the time-out (RFC 6298)."""
        if self.srtt_s == 0.0:
            self.srtt_s, self.rttvar_s = rtt_s, rtt_s / 2.0
        else:
            self.rttvar_s += (abs(rtt_s - self.srtt_s) - self.rttvar_s) / 4.0
            self.srtt_s += (rtt_s - self.srtt_s) / 8.0
        self.min_rtt_s = min(self.min_rtt_s, rtt_s)

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


def transfer_end(
    path: TcpPath,
    start: float,
    bits: float,
    rng: Draws,
    sender: TcpSender | None = None,
    *,
    give_up_s: float = inf,
) -> float:
    """Return when the last byte of a transfer arrives; `inf` if not within `give_up_s`.

    Args:
        path: The path of the data; acknowledgements have its delay and loss, too.
        start: The sender has all bytes at this instant, seconds.
        bits: TCP payload, more than 0.
        rng: Draws losses and jitter.
        sender: The sender; it is changed. None is that of a new connection.
        give_up_s: Longest transfer.
    """
    transfer = _Transfer(_Line(path, rng, start), start, bits, sender or TcpSender())
    return transfer.run(start + give_up_s)


def message_s(path: TcpPath, start: float, rng: Draws, *, give_up_s: float = inf) -> float:
    """Return the delay of a message of one packet on an idle connection, seconds.

        delay + 0, 1, 2, 4, ... time-outs        for 0, 1, 2, 3, ... losses

    The tail loss probe of a single packet waits as long as the time-out, which then doubles from
    the second time on. Without loss this is the delay, and nothing is drawn.
    """
    state, waited_s, step_s = path.at(start), 0.0, 0.0
    while state.rate_bps == 0.0 or (state.loss_ratio > 0.0 and rng.random() < state.loss_ratio):
        wait_s = max(step_s, 2.0 * state.delay_s + MIN_RTO_S)
        waited_s += wait_s
        if waited_s > give_up_s:
            return inf
        step_s = min(waited_s, MAX_RTO_S)
        state = path.at(start + waited_s)
    return waited_s + state.delay_s


class _Sent(NamedTuple):
    """One packet on its way."""

    serial: int
    """Number of this sending."""
    packet: int
    at: float
    arrives: bool


class _Line:
    """The two directions of a path: computes the fate of each packet when it is sent."""

    def __init__(self, path: TcpPath, rng: Draws, start: float) -> None:
        self._path, self._rng = path, rng
        self.state = path.at(start)
        self._free = self._last_due = self._last_back = start
        self._queued: deque[float] = deque()
        """When each packet in the queue has left it."""
        self._limit = max(1.0, path.queue_bytes / WIRE_BYTES)
        self._noise = [rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)] if self.state.jitter_s else []
        self._noise_at = [start, start]

    def at(self, t: float) -> PathState:
        """Return the state of the path at `t`; calls are nearly in order of time."""
        if t >= self.state.until:
            self.state = self._path.at(t)
        return self.state

    def forward(self, now: float, bits: float) -> float:
        """Return when a packet that is sent now arrives; `inf` if it is lost."""
        state, random_ = self.at(now), self._rng.random
        is_lost = state.loss_ratio > 0.0 and random_() < state.loss_ratio
        delay_s = self._delay_s(state, now, 0)
        if self._path.is_lossy_first:
            if is_lost or state.rate_bps == 0.0:
                return inf
            self._last_due = max(self._last_due, now + delay_s)
            return self._through(self._last_due, bits)
        left = self._through(now, bits)
        if is_lost or left == inf:
            return inf
        self._last_due = max(self._last_due, left + delay_s)
        return self._last_due

    def back(self, now: float) -> float:
        """Return when an acknowledgement that is sent now arrives; `inf` if it is lost."""
        state = self.state if now < self.state.until else self._path.at(now)
        if state.rate_bps == 0.0:
            return inf
        if state.loss_ratio > 0.0 and self._rng.random() < state.loss_ratio:
            return inf
        self._last_back = max(self._last_back, now + self._delay_s(state, now, 1))
        return self._last_back

    def _through(self, now: float, bits: float) -> float:
        """Return when a packet leaves the bottleneck; `inf` if its queue drops it."""
        queued = self._queued
        while queued and queued[0] <= now:
            queued.popleft()
        if len(queued) > self._limit:
            return inf
        t, state = max(self._free, now), self.state
        while True:
            if t >= state.until:
                state = self._path.at(t)
            if state.rate_bps == 0.0:
                self._free = t
                return inf
            end = t + bits / state.rate_bps
            if end <= state.until:
                break
            bits -= (state.until - t) * state.rate_bps
            t = state.until
        self._free = end
        queued.append(end)
        return end

    def _delay_s(self, state: PathState, now: float, way: int) -> float:
        jitter_s = state.jitter_s
        if jitter_s == 0.0:
            return state.delay_s
        if not self._noise:
            self._noise = [self._rng.gauss(0.0, 1.0), self._rng.gauss(0.0, 1.0)]
        passed = (now - self._noise_at[way]) / (JITTER_MEMORY * jitter_s)
        if passed > 0.02:
            kept = exp(-passed)
            self._noise[way] = self._noise[way] * kept + self._rng.gauss(0.0, 1.0) * sqrt(
                1.0 - kept * kept
            )
            self._noise_at[way] = now
        return max(0.0, state.delay_s + jitter_s * self._noise[way])


class _Probe(NamedTuple):
    """A tail loss probe."""

    high: int
    """The probe is over when all packets before this one are acknowledged."""
    repairs: bool
    """It repeats a packet that was lost."""


class _Transfer:
    """One transfer of a sender; see `transfer_end`."""

    def __init__(self, line: _Line, start: float, bits: float, sender: TcpSender) -> None:
        self.tcp, self.line, self.now = sender, line, start
        self.n = max(1, ceil(bits / _FULL_BITS))
        self.last_bits = bits - (self.n - 1) * _FULL_BITS
        # The receiver.
        self.has_arrived = bytearray(self.n + 1)
        self.n_arrived = self.received = 0
        """Packets that have arrived, and the first that has not."""
        self.end = inf
        self.quick = QUICK_ACKS
        self.pending_at, self.pending_serial = inf, 0
        """When an acknowledgement that waits for a second packet is sent at the latest."""
        self.acks: deque[tuple[float, int]] = deque()
        """Acknowledgements on their way: the arrival, and the last sending that it knows of."""
        # The scoreboard of the sender.
        self.next = self.una = 0
        """The first packet that was not sent, and the first that is not acknowledged."""
        self.is_delivered = bytearray(self.n + 1)
        self.n_delivered = 0
        self.sent_at: list[float] = []
        """The last time at which each packet was sent."""
        self.out: deque[_Sent] = deque()
        """Sendings without news of their fate, in order."""
        self.suspects: deque[_Sent] = deque()
        """Sendings that a later one has overtaken, not yet counted as lost."""
        self.lost: deque[int] = deque()
        """Packets to send again."""
        self.serial = self.void = 0
        """Number of sendings; those up to `void` are no longer in `pipe`."""
        self.pipe = 0
        """Packets in flight, as the sender knows."""
        # Recovery.
        self.mode: Literal["open", "recovery", "loss"] = "open"
        self.high = 0
        """A recovery ends when all packets before this one are acknowledged."""
        self.prior = self.reduced = self.resent = 0
        """Rate reduction: window before, packets delivered, and packets sent since."""
        self.probe: _Probe | None = None
        self.rtt_s = sender.srtt_s
        self.rto_from = self.probe_from = start
        self.timeouts = 0
        """Time-outs since the last progress."""
        # Growth.
        self.is_limited, self.most_out = True, 0
        self.round_end = self.round_samples = 0
        self.round_at = self.train_at = start
        self.round_rtt_s = inf

    def run(self, deadline: float) -> float:
        """Return when the last packet arrives; `inf` is not before the deadline."""
        self.tcp.resume(self.now)
        self._send()
        while self.una < self.n:
            at, on_timer = self._timer()
            if self.pending_at <= (min(at, self.acks[0][0]) if self.acks else at):
                self._acknowledge(self.pending_at, self.pending_serial)
            elif self.acks and self.acks[0][0] <= at:
                self.now, serial = self.acks.popleft()
                self._on_ack(serial)
            elif self.end < inf or at > deadline or self.timeouts > MAX_TIMEOUTS:
                break
            else:
                self.now = at
                on_timer()
        self.tcp.sent_at = max(self.sent_at)
        return self.end if self.end <= deadline else inf

    # The way to the receiver and back.

    def _send(self) -> None:
        """Send what the window permits: lost packets first."""
        tcp, lost, n_sent = self.tcp, self.lost, 0
        while self.pipe < tcp.cwnd:
            if lost:
                packet = lost.popleft()
                if self.is_delivered[packet]:
                    continue
                self._transmit(packet)
            elif self.next < self.n:
                self._transmit_new()
            else:
                self.is_limited = self.is_limited and n_sent == 0
                break
            n_sent += 1
        else:
            self.is_limited = True
        self.most_out = max(self.most_out, self.next - self.una)

    def _transmit_new(self) -> None:
        if self.next == self.una:
            self.rto_from = self.now
        self.probe_from = self.now
        self.sent_at.append(self.now)
        self.next += 1
        self._transmit(self.next - 1)

    def _transmit(self, packet: int) -> None:
        now = self.now
        self.serial += 1
        self.pipe += 1
        self.resent += 1
        self.sent_at[packet] = now
        if packet == self.una:
            self.rto_from = now
        arrival = self.line.forward(now, self.last_bits if packet == self.n - 1 else _FULL_BITS)
        self.out.append(_Sent(self.serial, packet, now, arrival < inf))
        if arrival < inf:
            self._receive(packet, arrival)

    def _receive(self, packet: int, at: float) -> None:
        """Receive a packet; acknowledge it at once, or wait for a second one."""
        if self.pending_at < at:
            self._acknowledge(self.pending_at, self.pending_serial)
        has_hole = self.n_arrived > self.received
        if not self.has_arrived[packet]:
            self.has_arrived[packet] = 1
            self.n_arrived += 1
            while self.has_arrived[self.received]:
                self.received += 1
            if self.received == self.n:
                self.end = at
        is_second = self.pending_at < inf
        if has_hole or is_second or self.quick > 0 or self.n_arrived > self.received:
            self._acknowledge(at, self.serial)
        else:
            self.pending_at, self.pending_serial = at + DELAYED_ACK_S, self.serial

    def _acknowledge(self, at: float, serial: int) -> None:
        self.quick -= 1
        self.pending_at = inf
        arrival = self.line.back(at)
        if arrival < inf:
            self.acks.append((arrival, serial))

    # What the sender learns.

    def _on_ack(self, serial: int) -> None:
        """Take note of the fate of all sendings up to this one, and send."""
        out, before, delivered_before = self.out, self.una, self.n_delivered
        while out and out[0].serial <= serial:
            sent = out.popleft()
            if not sent.arrives:
                self.suspects.append(sent)
                continue
            self.pipe -= sent.serial > self.void
            self.rtt_s = self.now - sent.at
            if not self.is_delivered[sent.packet]:
                self.is_delivered[sent.packet] = 1
                self.n_delivered += 1
        newly = self.n_delivered - delivered_before
        while self.is_delivered[self.una]:
            self.una += 1
        if newly:
            self.tcp.on_round_trip(self.rtt_s)
        if self.una > before:
            self.timeouts = 0
            self.rto_from = self.probe_from = self.now
        self._end_recovery()
        n_lost = self._count_losses()
        if self.mode == "recovery":
            self._reduce(newly, is_clean=self.una > before and n_lost == 0)
        elif self.una > before:
            self._grow(newly)
        self._send()

    def _end_recovery(self) -> None:
        tcp = self.tcp
        if self.mode != "open" and self.una >= self.high:
            if self.mode == "recovery":
                tcp.cwnd = int(tcp.ssthresh)
            self.mode = "open"
        probe = self.probe
        if probe is not None and self.una >= probe.high:
            self.probe = None
            if probe.repairs and self.mode == "open":
                tcp.on_loss()
                tcp.cwnd = int(tcp.ssthresh)

    def _count_losses(self) -> int:
        """Count suspects as lost: at once in a recovery or behind three packets, else later."""
        suspects, n_lost = self.suspects, 0
        wait_s = self._reordering_s()
        while suspects:
            sent = suspects[0]
            is_known = bool(self.is_delivered[sent.packet])
            if not is_known and wait_s > 0.0 and sent.at + self.rtt_s + wait_s > self.now:
                break
            suspects.popleft()
            self.pipe -= sent.serial > self.void
            if not is_known and sent.serial > self.void:
                self.lost.append(sent.packet)
                n_lost += 1
        if n_lost and self.mode == "open":
            self.mode, self.high, self.prior = "recovery", self.next, self.tcp.cwnd
            self.reduced = self.resent = 0
            self.tcp.on_loss()
        return n_lost

    def _reordering_s(self) -> float:
        """Return how long a suspect may be late (RFC 8985, section 6.2)."""
        if self.mode != "open" or self.n_delivered - self.una >= DUPLICATES:
            return 0.0
        return min(self.tcp.min_rtt_s / 4.0, self.tcp.srtt_s)

    def _reduce(self, newly: int, *, is_clean: bool) -> None:
        """Set the window of a recovery: proportional rate reduction."""
        if newly == 0:
            return
        tcp = self.tcp
        self.reduced += newly
        threshold = int(tcp.ssthresh)
        room = threshold - self.pipe
        if room < 0:
            count = -(-threshold * self.reduced // self.prior) - self.resent
        else:
            count = min(room, max(self.reduced - self.resent, newly) + is_clean)
        tcp.cwnd = self.pipe + max(count, 0 if self.resent else 1)

    def _grow(self, newly: int) -> None:
        tcp = self.tcp
        if tcp.cwnd < tcp.ssthresh:
            self._watch_slow_start()
            if tcp.cwnd >= 2 * self.most_out:
                return
        elif not self.is_limited:
            return
        tcp.grow(newly, self.now)

    def _watch_slow_start(self) -> None:
        """End slow start if acknowledgements or the round trip show a queue (HyStart)."""
        tcp, now = self.tcp, self.now
        if tcp.has_left_slow_start or tcp.cwnd < HYSTART_WINDOW:
            return
        if self.una > self.round_end:
            self.round_end, self.round_samples, self.round_rtt_s = self.next, 0, inf
            self.round_at = self.train_at = now
        self.round_rtt_s = min(self.round_rtt_s, self.rtt_s)
        shortest_s, is_found = tcp.min_rtt_s, False
        if now - self.train_at <= HYSTART_TRAIN_S:
            self.train_at = now
            is_found = now - self.round_at > (shortest_s + HYSTART_ACK_S) / 2.0
        if self.round_samples < HYSTART_SAMPLES:
            self.round_samples += 1
        elif self.round_rtt_s > shortest_s + min(max(shortest_s / 8.0, 4e-3), 16e-3):
            is_found = True
        if is_found:
            tcp.has_left_slow_start, tcp.ssthresh = True, float(tcp.cwnd)

    # Timers.

    def _timer(self) -> tuple[float, Callable[[], None]]:
        """Return the time of the next timer, and its handler."""
        tcp = self.tcp
        if self.suspects:
            due = self.suspects[0].at + self.rtt_s + self._reordering_s()
            return max(self.now, due), self._on_reordering
        rto_s = min(tcp.rto_s * 2.0**self.timeouts, MAX_RTO_S)
        if self.mode == "open" and self.probe is None and self.n_delivered == self.una:
            wait_s = 2.0 * tcp.srtt_s + (MIN_RTO_S if self.next - self.una == 1 else PROBE_S)
            at = self.probe_from + (wait_s if tcp.srtt_s else FIRST_RTO_S)
            latest = self.sent_at[self.una] + rto_s
            return max(self.now, min(at, latest)), self._on_probe
        return max(self.now, self.rto_from + rto_s), self._on_timeout

    def _on_reordering(self) -> None:
        if self._count_losses() and self.mode == "recovery":
            self._reduce(1, is_clean=False)
        self._send()

    def _on_probe(self) -> None:
        """Send one packet, new or the last one, so that a loss at the end is noticed."""
        if self.next < self.n:
            self._transmit_new()
            self.probe = _Probe(self.next, repairs=False)
        else:
            packet = self.next - 1
            self.probe = _Probe(self.next, repairs=not self.has_arrived[packet])
            self._transmit(packet)
        self.rto_from = self.now

    def _on_timeout(self) -> None:
        """Count all packets in flight as lost, and start with a window of one."""
        tcp = self.tcp
        if self.mode == "open" or self.una >= self.high or self.timeouts == 0:
            tcp.on_loss()
        tcp.plateau, tcp.has_left_slow_start, tcp.cwnd, tcp.grown = 0, False, 1, 0
        self.mode, self.high, self.probe = "loss", self.next, None
        self.void, self.pipe = self.serial, 0
        self.suspects.clear()
        self.lost = deque(p for p in range(self.una, self.next) if not self.is_delivered[p])
        self.timeouts += 1
        self.rto_from = self.now
        self._send()
