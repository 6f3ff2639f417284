"""The packets of one TCP transfer under loss, as the sender of Linux sends them.

`transfer_end` simulates CUBIC with HyStart, selective acknowledgements, RACK, proportional rate
reduction, tail loss probe, retransmission time-out with F-RTO, and the undo of a spurious one. A
path keeps the order of its packets, so that each packet costs one step and no queue of events: its
fate and its arrival are known when it is sent.

The bottleneck is a class of HTB, as in a network of namespaces: a bucket of seconds.

    tokens(t) = min(t - free, burst),   burst as in `testbed.emulation.queues`, at the rate of then
    A packet leaves, whole, as soon as tokens >= 0, and takes bits / rate of them.

So a packet arrives as its transmission begins, three of them at once after a pause, and what one
owes keeps its length in seconds when the rate changes.

The sender counts per packet and not per sending, as Linux does. A packet that is acknowledged
leaves the count of packets in flight with all its sendings, also with a retransmission that still
waits in a queue. These statements hold between two events (`violations` checks them):

    sequence     0 <= una <= next <= n, and una is the first packet that is not acknowledged.
                 What is acknowledged has arrived, and was sent before.
    pipe         pipe = number of sendings in flight: 0 for a packet that is acknowledged, that
                 counts as lost or that was not sent; 1 for one on its way; 2 for one whose
                 retransmission is on its way after the undo of its loss.
    scoreboard   A packet from una to next is acknowledged, in flight or in `lost`; it is once in
                 `lost`. News of the last sending of a packet in flight is to come (`out`), or a
                 later sending has overtaken it (`suspects`).
    windows      window >= 1, threshold >= 2 packets.
    recovery     una < high <= next in a recovery and after a time-out.
    timer        While packets are not acknowledged, una < next, and a timer is set, to an instant
                 from now on. Time never goes back.

Not modelled: the windows of receiver and send buffer, queueing of acknowledgements behind data of
the other direction, and duplicates of an earlier transfer that are still in the queue.

Source:
    RFC 8985 (RACK and tail loss probe); RFC 6937 (rate reduction), RFC 6298 (time-out), RFC 5682
    (F-RTO), RFC 3522 (Eifel detection by time stamps), RFC 3708 (detection by DSACK), RFC 6675
    (pipe), each as in Linux 6.18, net/ipv4/tcp_input.c, tcp_output.c, tcp_recovery.c, tcp_timer.c.
    The bucket: Linux 6.18, net/sched/sch_htb.c, `htb_class_mode`, `htb_charge_class`.
Deviates:
    The sender knows which sending of a packet arrived. Linux takes an acknowledgement that is as
    old as a round trip for that of the last sending.
"""

from collections import deque
from collections.abc import Callable, Iterator
from math import ceil, exp, inf, isfinite, sqrt
from typing import Literal, NamedTuple

from fairbed.testbed.emulation.queues import burst_s
from fairbed.testbed.emulation.tcp import (
    DELAYED_ACK_S,
    DUPLICATES,
    FIRST_RTO_S,
    HYSTART_ACK_S,
    HYSTART_SAMPLES,
    HYSTART_TRAIN_S,
    HYSTART_WINDOW,
    JITTER_MEMORY,
    MAX_RTO_S,
    MAX_TIMEOUTS,
    MIN_RTO_S,
    PAYLOAD_BYTES,
    PROBE_S,
    QUICK_ACKS,
    WIRE_BYTES,
    Draws,
    PathState,
    TcpPath,
    TcpSender,
)

_FULL_BITS = 8.0 * PAYLOAD_BYTES


def transfer_end(
    path: TcpPath,
    start: float,
    bits: float,
    rng: Draws,
    sender: TcpSender | None = None,
    *,
    give_up_s: float = inf,
    is_dialogue: bool = False,
    checks: bool = False,
) -> float:
    """Return when the last byte of a transfer arrives; `inf` if not within `give_up_s`.

    Args:
        path: The path of the data; acknowledgements have its delay and loss, too.
        start: The sender has all bytes at this instant, seconds.
        bits: TCP payload, more than 0.
        rng: Draws losses and jitter.
        sender: The sender; it is changed. None is that of a new connection.
        give_up_s: Longest transfer.
        is_dialogue: The receiver has just answered on this connection. It waits for a second packet
            from the first one on, until it has waited in vain ("pingpong", `tcp_delack_timer`).
        checks: Check the statements of this module after each event; for tests.

    Raises:
        BrokenInvariantError: One of them does not hold.
    """
    kind = _CheckedTransfer if checks else _Transfer
    transfer = kind(_Line(path, rng, start), start, bits, sender or TcpSender())
    transfer.is_dialogue = is_dialogue
    return transfer.run(start + give_up_s)


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
        self._free = -inf
        """The bucket has 0 tokens then."""
        self._last_due = self._last_back = start
        self._queued: deque[float] = deque()
        """When each packet in the queue leaves it."""
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
        if len(queued) + 1 > self._limit:
            return inf
        left, state = max(self._free, now), self.state
        while left >= state.until and state.rate_bps > 0.0:
            state = self._path.at(state.until)
        if state.rate_bps == 0.0:
            return inf
        tokens_s = min(left - self._free, burst_s(state.rate_bps))
        self._free = left - tokens_s + bits / state.rate_bps
        queued.append(left)
        return left

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


class _Before(NamedTuple):
    """The sender before a time-out that may prove spurious."""

    cwnd: int
    ssthresh: float


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
        self.quick, self.is_dialogue = QUICK_ACKS, False
        """Packets that it acknowledges one by one, unless it is in a dialogue."""
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
        self.last: list[int] = []
        """Number of the last sending of each packet."""
        self.is_resent = bytearray(self.n)
        self.flight = bytearray(self.n)
        """Sendings of each packet in flight, as the sender counts them."""
        self.pipe = 0
        """Their sum."""
        self.out: deque[_Sent] = deque()
        """Sendings without news of their fate, in order."""
        self.suspects: deque[_Sent] = deque()
        """Sendings that a later one has overtaken, not yet counted as lost."""
        self.lost: deque[int] = deque()
        """Packets to send again."""
        self.serial = 0
        """Number of sendings."""
        # Recovery.
        self.mode: Literal["open", "recovery", "loss"] = "open"
        self.high = 0
        """A recovery ends when all packets before this one are acknowledged."""
        self.prior = self.reduced = self.resent = 0
        """Rate reduction: window before, packets delivered, and packets sent since."""
        self.probe: _Probe | None = None
        self.rtt_s = sender.srtt_s
        self.rtt_end = 0
        """The time-out falls when all packets before this one are acknowledged."""
        self.rto_from = self.probe_from = start
        self.timeouts = 0
        """Time-outs since the last progress."""
        # A time-out without a loss.
        self.before: _Before | None = None
        self.resent_from = inf
        """The first retransmission since the sender left `open`."""
        self.unproven = 0
        """Retransmissions that the receiver has not reported as duplicates."""
        self.tries_new = False
        """The next acknowledgements show whether the time-out was spurious (F-RTO)."""
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
                self._acknowledge_late()
            elif self.acks and self.acks[0][0] <= at:
                self.now, serial = self.acks.popleft()
                self._on_ack(serial)
            elif at > deadline or self.timeouts > MAX_TIMEOUTS or self._has_no_news:
                break
            else:
                self.now = at
                on_timer()
        self.tcp.sent_at = max(self.sent_at)
        return self.end if self.end <= deadline else inf

    @property
    def _has_no_news(self) -> bool:
        """Whether all has arrived and the sender does not hear of it any more."""
        return self.end < inf and not self.acks and self.pending_at == inf

    # The way to the receiver and back.

    def _send(self, *, new_only: bool = False) -> None:
        """Send what the window permits: lost packets first."""
        tcp, lost, n_sent = self.tcp, self.lost, 0
        while self.pipe < tcp.cwnd:
            if lost and not new_only:
                packet = lost.popleft()
                if self.is_delivered[packet]:
                    continue
                self.flight[packet] = 1
                self.pipe += 1
                self.unproven += 1
                self._retransmit(packet)
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
        packet, now = self.next, self.now
        if packet == self.una:
            self.rto_from = now
        self.probe_from = now
        self.sent_at.append(now)
        self.last.append(self.serial + 1)
        self.flight[packet] = 1
        self.pipe += 1
        self.next += 1
        self._transmit(packet)

    def _retransmit(self, packet: int) -> None:
        self.sent_at[packet] = self.now
        self.last[packet] = self.serial + 1
        self.is_resent[packet] = 1
        if packet == self.una:
            self.rto_from = self.now
        self._transmit(packet)

    def _transmit(self, packet: int) -> None:
        now = self.now
        self.serial += 1
        self.resent += 1
        arrival = self.line.forward(now, self.last_bits if packet == self.n - 1 else _FULL_BITS)
        self.out.append(_Sent(self.serial, packet, now, arrival < inf))
        if arrival < inf:
            self._receive(packet, arrival)

    def _receive(self, packet: int, at: float) -> None:
        """Receive a packet; acknowledge it at once, or wait for a second one."""
        if self.pending_at < at:
            self._acknowledge_late()
        has_hole = self.n_arrived > self.received
        if self.has_arrived[packet]:
            self.quick, self.is_dialogue = QUICK_ACKS, False
        else:
            self.has_arrived[packet] = 1
            self.n_arrived += 1
            while self.has_arrived[self.received]:
                self.received += 1
            if self.received == self.n:
                self.end = at
        is_second = self.pending_at < inf
        is_quick = self.quick > 0 and not self.is_dialogue
        if has_hole or is_second or is_quick or self.n_arrived > self.received:
            self._acknowledge(at, self.serial)
        else:
            self.pending_at, self.pending_serial = at + DELAYED_ACK_S, self.serial

    def _acknowledge_late(self) -> None:
        """Acknowledge a packet without a second one, and wait for none in vain again."""
        self.is_dialogue = False
        self._acknowledge(self.pending_at, self.pending_serial)

    def _acknowledge(self, at: float, serial: int) -> None:
        self.quick -= 1
        self.pending_at = inf
        arrival = self.line.back(at)
        if arrival < inf:
            self.acks.append((arrival, serial))

    # What the sender learns.

    def _on_ack(self, serial: int) -> None:
        """Take note of the fate of all sendings up to this one, and send."""
        out, flight, is_delivered = self.out, self.flight, self.is_delivered
        before, delivered_before = self.una, self.n_delivered
        is_loss, has_original = self.mode == "loss", False
        while True:  # up to the sending that caused the acknowledgement
            sent = out.popleft()
            packet = sent.packet
            if not sent.arrives:
                if flight[packet] and self.last[packet] == sent.serial:
                    self.suspects.append(sent)
                continue
            if not is_delivered[packet]:
                is_delivered[packet] = 1
                self.n_delivered += 1
                self.pipe -= flight[packet]
                flight[packet] = 0
                self.rtt_s = self.now - sent.at
                if is_loss and packet < self.high and not self.is_resent[packet]:
                    has_original = True
            elif sent.serial == serial and self.unproven:
                self.unproven -= 1
            if sent.serial == serial:
                break
        newly = self.n_delivered - delivered_before
        while is_delivered[self.una]:
            self.una += 1
        if newly:
            is_new_window = self.una > self.rtt_end
            if is_new_window:
                self.rtt_end = self.next
            self.tcp.on_round_trip(self.rtt_s, is_new_window=is_new_window)
        if self.una > before:
            self.timeouts = 0
            self.rto_from = self.probe_from = self.now
        new_only = is_loss and self._judge_timeout(
            sent, is_new=newly > 0, is_progress=self.una > before, has_original=has_original
        )
        self._end_recovery()
        n_lost = self._count_losses()
        if self.mode == "recovery":
            self._reduce(newly, is_clean=self.una > before and n_lost == 0)
        elif self.una > before:
            self._grow(newly)
        self._send(new_only=new_only)

    def _judge_timeout(
        self, cause: _Sent, *, is_new: bool, is_progress: bool, has_original: bool
    ) -> bool:
        """Undo a time-out without a loss; return whether only new packets are sent.

        A time-out was spurious if a packet of before it arrives that was not sent again (F-RTO), if
        the acknowledgement echoes the time of the first sending (Eifel), or if the receiver has
        reported each retransmission as a duplicate (DSACK).

        Args:
            cause: The sending that caused the acknowledgement.
            is_new: It acknowledges a packet.
            is_progress: It acknowledges the first one.
            has_original: It acknowledges one that was sent before the time-out, and once.

        Source: `tcp_process_loss` and `tcp_may_undo`, Linux.
        """
        is_echo = cause.packet < self.una and cause.at < self.resent_from
        may_undo = self.before is not None and (is_echo or self.unproven == 0)
        if (is_progress and may_undo) or (self.tries_new and has_original):
            self._undo_timeout()
        elif self.tries_new and self.next > self.high:
            if cause.packet >= self.una or not is_new:
                self.tries_new = False
        elif self.tries_new and is_progress and self.una < self.high:
            self.high = self.next
            self.tries_new = self.next < self.n
            return self.tries_new
        return False

    def _undo_timeout(self) -> None:
        """Restore the window of before the time-out; no packet counts as lost any more.

        Packets that were sent again count twice from here on, as in `tcp_undo_cwnd_reduction`.
        """
        tcp, before = self.tcp, self.before
        if before is not None:
            tcp.cwnd = max(tcp.cwnd, before.cwnd)
            tcp.ssthresh = max(tcp.ssthresh, before.ssthresh)
        unknown_from = self.out[0].serial if self.out else self.serial + 1
        for packet in range(self.una, self.next):
            if self.is_delivered[packet]:
                continue
            if self.flight[packet] == 0:
                self.flight[packet] = 1
                self.pipe += 1
                if self.last[packet] < unknown_from:
                    at = self.sent_at[packet]
                    self.suspects.append(_Sent(self.last[packet], packet, at, arrives=False))
            elif self.flight[packet] == 1 and self.is_resent[packet]:
                self.flight[packet] = 2
                self.pipe += 1
        self.suspects = deque(sorted(self.suspects))
        self.lost.clear()
        self.timeouts = 0
        self._open()

    def _open(self) -> None:
        self.mode, self.before, self.resent_from, self.tries_new = "open", None, inf, False

    def _end_recovery(self) -> None:
        tcp = self.tcp
        if self.mode != "open" and self.una >= self.high:
            if self.mode == "recovery":
                tcp.cwnd = int(tcp.ssthresh)
            self._open()
        probe = self.probe
        if probe is not None and self.una >= probe.high:
            self.probe = None
            if probe.repairs and self.mode == "open":
                tcp.on_loss()
                tcp.cwnd = int(tcp.ssthresh)

    def _count_losses(self) -> int:
        """Count suspects as lost: at once in a recovery or behind three packets, else later."""
        suspects, n_lost, is_again = self.suspects, 0, False
        wait_s = self._reordering_s() if suspects else 0.0
        while suspects:
            if wait_s > 0.0 and suspects[0].at + self.rtt_s + wait_s > self.now:
                break
            packet = suspects.popleft().packet
            self.pipe -= self.flight[packet]
            self.flight[packet] = 0
            self.lost.append(packet)
            n_lost += 1
            is_again = is_again or bool(self.is_resent[packet])
        if n_lost and (self.mode == "open" or (self.mode == "loss" and is_again)):
            self.mode, self.high, self.prior = "recovery", self.next, self.tcp.cwnd
            self.resent_from = min(self.resent_from, self.now)
            self.before, self.tries_new = None, False
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
        """Return the time of the next timer, and its handler.

        Source: `tcp_schedule_loss_probe`, `tcp_send_loss_probe` and `tcp_rearm_rto`, Linux.
        """
        tcp = self.tcp
        if self.suspects:
            due = self.suspects[0].at + self.rtt_s + self._reordering_s()
            return max(self.now, due), self._on_reordering
        rto_s = min(tcp.rto_s * 2.0**self.timeouts, MAX_RTO_S)
        if self.mode == "open" and self.n_delivered == self.una and self.probe_from > -inf:
            wait_s = 2.0 * tcp.srtt_s + (MIN_RTO_S if self.next - self.una == 1 else PROBE_S)
            at = self.probe_from + (wait_s if tcp.srtt_s else FIRST_RTO_S)
            latest = self.sent_at[self.una] + rto_s
            if self.probe is None:
                return max(self.now, min(at, latest)), self._on_probe
            # The second probe is not sent, and the time-out counts from the first packet.
            return max(self.now, min(at, self.probe_from + rto_s), latest), self._on_timeout
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
            self._retransmit(packet)
        self.rto_from, self.probe_from = self.now, -inf

    def _on_timeout(self) -> None:
        """Count the packets in flight as lost, and start with a window of one.

        Packets that were sent less than a round trip ago do not count as lost. The window is
        reduced once, until all packets of before are acknowledged.

        Source: `tcp_enter_loss` and `tcp_timeout_mark_lost`, Linux.
        """
        tcp, is_open = self.tcp, self.mode == "open"
        if is_open or (self.mode == "loss" and self.timeouts == 0):
            kept = (tcp.cwnd >> 1) + (tcp.cwnd >> 2)
            self.before, self.unproven = _Before(tcp.cwnd, max(tcp.ssthresh, kept)), 0
            tcp.on_loss()
        self.tries_new = is_open or self.timeouts > 0
        self.lost.clear()
        for packet in range(self.una, self.next):
            if self.is_delivered[packet]:
                continue
            if packet == self.una or self.sent_at[packet] + self.rtt_s <= self.now:
                self.unproven += bool(self.flight[packet] and self.is_resent[packet])
                self.pipe -= self.flight[packet]
                self.flight[packet] = 0
            if self.flight[packet] == 0:
                self.lost.append(packet)
        tcp.plateau, tcp.has_left_slow_start, tcp.grown = 0, False, 0
        tcp.cwnd = self.pipe + 1
        tcp.timeouts += 1
        self.mode, self.high, self.probe = "loss", self.next, None
        self.resent_from = min(self.resent_from, self.now)
        self.timeouts += 1
        self.rto_from = self.now
        self._send()


class BrokenInvariantError(AssertionError):
    """The state of a transfer is not one that a sender can have."""


class _CheckedTransfer(_Transfer):
    """A transfer that checks its state before each event."""

    def __init__(self, line: _Line, start: float, bits: float, sender: TcpSender) -> None:
        super().__init__(line, start, bits, sender)
        self._checked_at, self._until_full = start, 0

    def _timer(self) -> tuple[float, Callable[[], None]]:
        for broken in self._violations():
            raise BrokenInvariantError(f"{broken}: {self._state()}")
        self._checked_at = self.now
        at, on_timer = super()._timer()
        if not self.now <= at < inf:
            raise BrokenInvariantError(f"timer: must be from now on, got {at}: {self._state()}")
        return at, on_timer

    def _violations(self) -> Iterator[str]:
        una, next_, flight, tcp = self.una, self.next, self.flight, self.tcp
        if not 0 <= una < next_ <= self.n:
            yield "sequence: una < next <= n"
        if not len(self.sent_at) == len(self.last) == next_:
            yield "sequence: a time and a number for each packet sent"
        if self.is_delivered.find(0) != una or self.is_delivered.rfind(1) >= next_:
            yield "sequence: una is the first packet that is not acknowledged"
        if self.n_delivered != self.is_delivered.count(1) or una > self.received:
            yield "sequence: an acknowledged packet has arrived"
        if self.pipe != flight.count(1) + 2 * flight.count(2) or flight.rstrip(b"\0")[next_:]:
            yield "pipe: the sum of the sendings in flight"
        if tcp.cwnd < 1 or tcp.ssthresh < 2:
            yield "windows: at least 1 and 2 packets"
        if self.mode != "open" and not una < self.high <= next_:
            yield "recovery: una < high <= next"
        if self.now < self._checked_at or not isfinite(self.now):
            yield "timer: time never goes back"
        self._until_full -= 1
        if self._until_full < 0:  # rarely in large windows, so that a check costs a constant
            self._until_full = (next_ - una) // 16
            yield from self._of_scoreboard()

    def _of_scoreboard(self) -> Iterator[str]:
        lost = [packet for packet in self.lost if not self.is_delivered[packet]]
        unlucky, flight = set(lost), self.flight
        if len(unlucky) != len(lost):
            yield "scoreboard: a packet is once in `lost`"
        news = {sent.serial for sent in self.out} | {sent.serial for sent in self.suspects}
        for packet in range(self.una, self.next):
            states = bool(self.is_delivered[packet]), packet in unlucky, flight[packet] > 0
            if sum(states) != 1:
                yield f"scoreboard: acknowledged, in flight or lost, packet {packet}"
            if states[0] and not self.has_arrived[packet]:
                yield f"sequence: an acknowledged packet has arrived, packet {packet}"
            if states[2] and self.last[packet] not in news:
                yield f"scoreboard: news of the last sending, packet {packet}"
        for sent in self.suspects:
            if not flight[sent.packet] or self.last[sent.packet] != sent.serial or sent.arrives:
                yield f"scoreboard: a suspect is the last sending, packet {sent.packet}"

    def _state(self) -> str:
        return (
            f"at {self.now:.6g} s, {self.mode}, una {self.una}, next {self.next} of {self.n}, "
            f"window {self.tcp.cwnd}, pipe {self.pipe}, {len(self.lost)} to send again, "
            f"{len(self.suspects)} overtaken, {self.timeouts} time-outs"
        )
