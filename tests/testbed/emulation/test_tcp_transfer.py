"""The packets of a transfer: the statements of the sender hold, and spurious time-outs are undone.

Source of the sweeps: `benchmarks/_tcp_sweep.py`.
"""

import math
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._tcp_sweep import DRIVES, KINDS, drives, folder, stepped, sweep
from fairbed.testbed.emulation.queues import burst_s
from fairbed.testbed.emulation.tcp import DELAYED_ACK_S, FIRST_WINDOW, PathState, TcpPath, TcpSender
from fairbed.testbed.emulation.tcp_transfer import (
    BrokenInvariantError,
    _CheckedTransfer,
    _Line,
    transfer_end,
)

PACKET_BITS = 8.0 * 1448
DELAY_S = 0.03

DATA = folder(os.environ)
HAS_DRIVES = bool(drives(DATA))


def cliff(*steps: tuple[float, float], loss: float = 0.0, queue_bytes: float = 4e6) -> TcpPath:
    """Return a path whose rate, bit/s, holds until an instant of the same pair, seconds."""
    states = [PathState(rate_bps, DELAY_S, 0.0, loss, until) for rate_bps, until in steps]
    return stepped(states, queue_bytes)


def checked(path: TcpPath, packets: float, seed: int, sender: TcpSender | None = None) -> float:
    bits = packets * PACKET_BITS
    return transfer_end(path, 0.0, bits, random.Random(seed), sender, give_up_s=600.0, checks=True)


def arrivals(line: _Line, sent: Sequence[float]) -> list[float]:
    """Return when full packets that are sent at these instants arrive."""
    return [line.forward(t, PACKET_BITS) for t in sent]


@pytest.mark.parametrize("is_lossy_first", [False, True])
def test_a_link_sends_a_burst_after_a_pause_and_then_its_rate(is_lossy_first: bool) -> None:
    """3200 of 1514 bytes each are 2.11 packets: the first three leave at once.

    HTB in network namespaces: the first three of ten packets at 8 Mbit/s arrive in one millisecond.
    """
    packet_s = PACKET_BITS / 8e6
    path = TcpPath.constant(8e6, DELAY_S, 0.0, is_lossy_first=is_lossy_first)
    line = _Line(path, random.Random(1), 0.0)
    for pause in (0.0, 5.0):
        waits = [at - pause - DELAY_S for at in arrivals(line, [pause] * 10)]
        expected = [max(0.0, n - 3200 / 1514) * packet_s for n in range(10)]
        assert waits == pytest.approx(expected)


def test_what_a_packet_owes_keeps_its_seconds_when_the_rate_falls() -> None:
    """As in HTB, whose tokens are seconds: one more packet passes before the slow rate counts."""
    line = _Line(cliff((8e6, 1.0), (8e4, math.inf)), random.Random(1), 0.0)
    fast_s, slow_s = PACKET_BITS / 8e6, PACKET_BITS / 8e4
    line.forward(0.0, 3.5 * PACKET_BITS)
    begin = 1.0 - fast_s / 2.0
    line.forward(begin - fast_s, 4.0 * PACKET_BITS)  # owes 2.89 packets, so 1.89 at `begin`
    first, second, third = (at - DELAY_S for at in arrivals(line, [begin] * 3))
    assert first == pytest.approx(begin + (4.0 - 1.0 - 3200 / 1514) * fast_s)
    assert [second - first, third - second] == pytest.approx([slow_s, slow_s])


def test_an_outage_drops_what_is_queued_behind_the_debt_of_a_packet() -> None:
    line = _Line(cliff((8e4, 1.0), (0.0, 1.05), (8e4, math.inf)), random.Random(1), 0.0)
    arrivals(line, [0.9] * 3)  # the next one leaves 0.27 s later, after the outage
    assert arrivals(line, [0.9, 1.01]) == [math.inf, math.inf]
    assert line.forward(1.06, PACKET_BITS) < math.inf


def test_a_queue_holds_the_packets_that_wait() -> None:
    line = _Line(TcpPath.constant(8e6, DELAY_S, 0.0, queue_bytes=5 * 1514), random.Random(1), 0.0)
    found = arrivals(line, [0.0] * 10)
    assert [at < math.inf for at in found] == [True] * 8 + [False] * 2  # 3 have left


def test_a_transfer_takes_as_long_as_in_the_kernel() -> None:
    """120 kB at 8 Mbit/s and 60 ms without loss: 0.226 to 0.231 s in network namespaces.

    Less the lateness of their relay, 0.4 ms for each of seven ways.
    """
    path = TcpPath.constant(8e6, DELAY_S, 0.0)
    assert 0.223 < transfer_end(path, 0.0, 8 * 120_000, random.Random(1)) < 0.226


def test_retransmissions_of_delivered_packets_do_not_fill_the_window() -> None:
    """The rate falls from 100 to 0.1 Mbit/s with a window in the queue.

    Originals arrive after the time-out. When they were counted by sending, their retransmissions in
    the queue filled the window, and the timer read the time of a packet that was never sent.
    """
    path, sender = cliff((1e8, 0.5), (1e5, math.inf), loss=0.02), TcpSender()
    end = checked(path, 300, 18, sender)
    assert 300 * PACKET_BITS / 1e8 < end < 300 * PACKET_BITS / 1e5
    assert sender.timeouts > 0


def test_a_time_out_without_a_loss_is_undone() -> None:
    """The rate falls from 8 to 0.01 Mbit/s: a packet takes 1.2 s, more than the time-out of 0.3 s.

    The acknowledgement after the time-out echoes the first sending. So few packets of the 89 in the
    queue are sent twice, and the window is that of before.
    """
    path, sender = cliff((8e6, 0.2), (1e4, 30.0), (8e6, math.inf)), TcpSender()
    transfer = _CheckedTransfer(_Line(path, random.Random(1), 0.0), 0.0, 100 * PACKET_BITS, sender)
    assert transfer.run(600.0) < 30.0 + 0.2
    assert sender.timeouts >= 1
    assert 1 <= transfer.serial - transfer.n <= 5
    assert sender.cwnd > 2 * FIRST_WINDOW
    assert sender.ssthresh == math.inf


def test_a_second_probe_is_a_time_out_if_the_first_packet_is_old() -> None:
    """Captured in the kernel, an upload of 120 kB, the rate falls from 8 to 0.04 Mbit/s at 0.17 s.

    0.201 s the last acknowledgement at the fast rate, 0.343 s a probe two round trips later, 0.491
    s the next acknowledgement, 0.719 s two round trips later the time-out, although the time-out
    is 0.41 s: it counts from the sending of the first packet, at 0.13 s.
    """
    states = [
        PathState(8e6, DELAY_S, 0.0, 0.0, 0.1705),
        PathState(4e4, DELAY_S, 0.0, 0.0, math.inf),
    ]
    path, sender = stepped(states, 4e5, is_lossy_first=True), TcpSender()
    transfer = _Timers(_Line(path, random.Random(1), 0.0), 0.0, 8 * 120_000, sender)
    transfer.run(60.0)
    (probe, probed_at), (timeout, timed_out_at), *later = transfer.seen
    assert (probe, timeout) == ("probe", "timeout")
    assert probed_at == pytest.approx(0.343, abs=0.01)
    assert timed_out_at == pytest.approx(0.719, abs=0.05)
    assert not later


class _Timers(_CheckedTransfer):
    """Notes probes and time-outs."""

    def __init__(self, line: _Line, start: float, bits: float, sender: TcpSender) -> None:
        super().__init__(line, start, bits, sender)
        self.seen = list[tuple[str, float]]()

    def _on_probe(self) -> None:
        self.seen.append(("probe", self.now))
        super()._on_probe()

    def _on_timeout(self) -> None:
        self.seen.append(("timeout", self.now))
        super()._on_timeout()


def test_a_time_out_with_a_loss_is_not_undone() -> None:
    """A hole drops a window and all its retransmissions."""
    path, sender = cliff((8e6, 0.5), (0.0, 8.0), (8e6, math.inf)), TcpSender()
    checked(path, 2000, 1, sender)
    assert sender.timeouts >= 3
    assert sender.ssthresh < math.inf


rates = st.one_of(st.just(0.0), st.floats(3e4, 1e8))


@given(
    steps=st.lists(st.tuples(rates, st.floats(0.01, 20.0)), min_size=1, max_size=8),
    loss=st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.3]),
    queue_s=st.floats(0.01, 60.0),
    sizes=st.lists(st.floats(0.1, 600.0), min_size=1, max_size=5),
    jitter_s=st.sampled_from([0.0, 0.01]),
    is_lossy_first=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_statements_hold_on_any_path(
    steps: Sequence[tuple[float, float]],
    loss: float,
    queue_s: float,
    sizes: Sequence[float],
    jitter_s: float,
    is_lossy_first: bool,
    seed: int,
) -> None:
    states, t = [], 0.0
    for rate_bps, lasting_s in steps:
        t += lasting_s
        states.append(PathState(rate_bps, DELAY_S, jitter_s, loss, t))
    states.append(PathState(1e6, DELAY_S, jitter_s, loss, math.inf))
    fastest = max(state.rate_bps for state in states)
    path = stepped(states, queue_s * fastest / 8.0, is_lossy_first=is_lossy_first)
    sender, rng, t = TcpSender(), random.Random(seed), 0.0
    for packets in sizes:
        end = transfer_end(
            path, t, packets * PACKET_BITS, rng, sender, give_up_s=300.0, checks=True
        )
        assert end >= t + (math.ceil(packets) - 1) * PACKET_BITS / fastest - burst_s(3e4)
        t = end if end < math.inf else t + 300.0


def test_a_checked_transfer_has_the_times_of_an_unchecked_one() -> None:
    path = cliff((1e8, 0.5), (1e5, 4.0), (0.0, 6.0), (1e6, math.inf), loss=0.05)
    for seed in range(20):
        ends = {
            transfer_end(path, 0.0, 2e6, random.Random(seed), checks=checks)
            for checks in (False, True)
        }
        assert len(ends) == 1


class _PipeBySending(_CheckedTransfer):
    """Counts a retransmission until its own news, as the model did before."""

    def _end_recovery(self) -> None:
        super()._end_recovery()
        self.pipe += sum(sent.packet < self.una for sent in self.out)


class _ForgottenLoss(_CheckedTransfer):
    """Forgets a packet that counts as lost."""

    def _count_losses(self) -> int:
        n_lost = super()._count_losses()
        if n_lost:
            self.lost.pop()
        return n_lost


class _LateTimer(_CheckedTransfer):
    """Lets the end of a recovery be after the last packet that was sent."""

    def _on_timeout(self) -> None:
        super()._on_timeout()
        self.high = self.next + 1


@pytest.mark.parametrize(
    ("kind", "statement"),
    [(_PipeBySending, "pipe"), (_ForgottenLoss, "scoreboard"), (_LateTimer, "recovery")],
)
def test_a_broken_statement_is_an_error(kind: type[_CheckedTransfer], statement: str) -> None:
    path = cliff((1e8, 0.5), (1e5, math.inf), loss=0.02)
    line = _Line(path, random.Random(18), 0.0)
    with pytest.raises(BrokenInvariantError, match=f"^{statement}: .* una \\d+, next \\d+ of 200"):
        kind(line, 0.0, 200 * PACKET_BITS, TcpSender()).run(600.0)


@pytest.mark.parametrize("transfers", [400, pytest.param(1_500, marks=pytest.mark.full)])
def test_a_sweep_of_hostile_links_breaks_no_statement(transfers: int) -> None:
    """Constant links, cliffs and holes; a broken statement names its seed and connection."""
    swept = sweep(transfers, seed=transfers)
    assert not swept.broken
    assert swept.transfers.keys() == set(KINDS[:-1])
    assert swept.transfers.total() >= transfers
    assert swept.timeouts > transfers


@pytest.mark.skipif(not HAS_DRIVES, reason=f"needs {DRIVES} in FAIRBED_DATA")
@pytest.mark.parametrize("transfers", [200, pytest.param(600, marks=pytest.mark.full)])
def test_a_sweep_of_recorded_drives_breaks_no_statement(transfers: int) -> None:
    swept = sweep(transfers, seed=transfers, data=DATA, kinds=("drive",))
    assert not swept.broken
    assert swept.transfers.keys() == {"drive"}


def test_a_sweep_does_not_depend_on_its_processes() -> None:
    one, two = (sweep(200, seed=3, processes=processes) for processes in (1, 2))
    one.took_s = two.took_s = 0.0
    assert one == two


def test_a_sweep_without_data_has_no_drives(tmp_path: Path) -> None:
    assert drives(None) == drives(tmp_path) == ()
    assert folder({}) is None


def test_in_a_dialogue_a_receiver_waits_in_vain_for_a_second_packet_once() -> None:
    """A window of one packet: its acknowledgement is 40 ms late. Later ones are sent at once."""
    ends = []
    for is_dialogue in (False, True):
        path, sender = TcpPath.constant(1e9, DELAY_S, 0.0), TcpSender(cwnd=1, ssthresh=2.0)
        bits, rng = 9 * PACKET_BITS, random.Random(1)
        ends.append(transfer_end(path, 0.0, bits, rng, sender, is_dialogue=is_dialogue))
    assert ends[1] - ends[0] == pytest.approx(DELAYED_ACK_S)
