"""TCP under loss: worked examples, properties, and the square-root law."""

import math
import random
import statistics
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.emulation.queues import burst_s
from fairbed.testbed.emulation.tcp import (
    BETA,
    MIN_RTO_S,
    PathState,
    TcpPath,
    TcpSender,
    expected_lossy_s,
    idles_after_overflow,
)
from fairbed.testbed.emulation.tcp_transfer import transfer_end

PACKET_BITS = 8.0 * 1448
RATE_BPS = 1e9
"""A packet takes 12 us."""

DELAY_S = 0.05


class Losses(random.Random):
    """Loses the packets and acknowledgements with these numbers, in the order of their sending."""

    def __init__(self, *lost: int) -> None:
        super().__init__(0)
        self._lost, self._n = lost, 0

    def random(self) -> float:
        """Return 0, a loss, or 1."""
        self._n += 1
        return 0.0 if self._n - 1 in self._lost else 1.0


def path(rate_bps: float = RATE_BPS, loss: float = 0.5, queue_bytes: float = math.inf) -> TcpPath:
    """Return a constant path; with `Losses` any loss ratio above 0 asks the script."""
    return TcpPath.constant(rate_bps, DELAY_S, loss, queue_bytes=queue_bytes)


def settled(window: int = 10) -> TcpSender:
    """Return a sender that knows the round trip and has a window."""
    return TcpSender(cwnd=window, ssthresh=window, srtt_s=2 * DELAY_S, min_rtt_s=2 * DELAY_S)


def test_the_time_out_grows_at_once_and_falls_by_a_quarter_per_window() -> None:
    """Round trips of 0.1 s, one of 2.1 s, and 0.1 s again, by hand (`tcp_rtt_estimator`)."""
    sender = TcpSender()
    sender.on_round_trip(0.1)
    assert sender.rto_s == pytest.approx(0.3)
    sender.on_round_trip(2.1)
    assert sender.srtt_s == pytest.approx(0.35)
    assert sender.rto_s == pytest.approx(0.35 + 0.2 + 2.0 - 0.05)
    for _ in range(100):  # within one window the deviation does not fall
        sender.on_round_trip(0.1)
    assert sender.rto_s == pytest.approx(0.1 + 2.15, abs=0.01)
    for _ in range(3):
        sender.on_round_trip(0.1, is_new_window=True)
    assert sender.rto_s == pytest.approx(0.1 + 0.2 + (2.15 - 0.2) * 0.75**2, abs=0.01)
    for _ in range(20):
        sender.on_round_trip(0.1, is_new_window=True)
    assert sender.rto_s == pytest.approx(0.1 + MIN_RTO_S, abs=0.01)


def test_the_first_window_takes_its_transmission_less_a_burst_and_one_delay() -> None:
    end = transfer_end(path(1e6, 0.0), 3.0, 10 * PACKET_BITS, random.Random(0))
    assert end == pytest.approx(3.0 + 9 * PACKET_BITS / 1e6 - burst_s(1e6) + DELAY_S, abs=1e-9)


@pytest.mark.parametrize(("packets", "round_trips"), [(10, 0), (11, 1), (30, 1), (31, 2), (70, 2)])
def test_windows_double_in_each_round_trip(packets: int, round_trips: int) -> None:
    end = transfer_end(path(loss=0.0), 0.0, packets * PACKET_BITS, random.Random(0))
    assert end == pytest.approx((2 * round_trips + 1) * DELAY_S, abs=2e-3)


def test_the_link_carries_the_integral_of_its_rate() -> None:
    """1 s at 1 Mbit/s and the rest at 10 Mbit/s; the window of 200 packets never limits.

    The last one of 89 packets of the first second keeps its length, and the last of all leaves as
    its transmission begins.
    """

    def at(t: float) -> PathState:
        return PathState(1e6 if t < 1.0 else 1e7, DELAY_S, 0.0, 0.0, 1.0 if t < 1.0 else math.inf)

    bits = 200 * PACKET_BITS
    link = TcpPath(at=at, queue_bytes=math.inf)
    end = transfer_end(link, 0.0, bits, random.Random(0), settled(200))
    slow_s = 89 * PACKET_BITS / 1e6 - burst_s(1e6)
    assert 1.0 < slow_s < 1.0 + PACKET_BITS / 1e6
    assert end == pytest.approx(slow_s + 110 * PACKET_BITS / 1e7 + DELAY_S, abs=1e-6)


def test_a_lost_packet_within_a_window_costs_a_round_trip() -> None:
    """It is sent again when the third packet behind it is acknowledged.

    Each packet is drawn before its acknowledgement, so that the fourth one is drawn seventh.
    """
    end = transfer_end(path(), 0.0, 10 * PACKET_BITS, Losses(6), settled())
    assert end == pytest.approx(3 * DELAY_S, abs=2e-3)


def test_a_loss_reduces_the_window_of_the_next_transfer() -> None:
    sender = settled(100)
    transfer_end(path(), 0.0, 100 * PACKET_BITS, Losses(6), sender)
    assert sender.cwnd == pytest.approx(100 * BETA, abs=1.0)
    assert sender.ssthresh == pytest.approx(100 * BETA, abs=1.0)


def test_a_probe_repairs_a_loss_at_the_end() -> None:
    """A single packet is out: its probe waits for the time-out, from the sending of the packet."""
    end = transfer_end(path(), 0.0, 10 * PACKET_BITS, Losses(18), settled())
    assert end == pytest.approx(2 * DELAY_S + MIN_RTO_S + DELAY_S, abs=5e-3)


def test_without_a_second_packet_a_loss_takes_time_outs_that_double() -> None:
    waits = [
        transfer_end(path(), 0.0, PACKET_BITS, Losses(*range(n)), settled()) - DELAY_S
        for n in range(4)
    ]
    rto_s = 2 * DELAY_S + MIN_RTO_S
    assert waits == pytest.approx([0.0, rto_s, 2 * rto_s, 4 * rto_s], abs=5e-3)


def test_after_a_hole_a_transfer_continues_at_a_doubled_time_out() -> None:
    """The hole is from 0.3 to 5 s; the first send after it is a time-out of up to 4.4 s later."""

    def at(t: float) -> PathState:
        if t < 0.3:
            return PathState(1e6, DELAY_S, 0.0, 0.0, 0.3)
        if t < 5.0:
            return PathState(0.0, DELAY_S, 0.0, 0.0, 5.0)
        return PathState(1e6, DELAY_S, 0.0, 0.0, math.inf)

    link = TcpPath(at=at, queue_bytes=20_000)
    bits = 1e6
    end = transfer_end(link, 0.0, bits, random.Random(0), settled())
    earliest = 5.0 + (bits - 0.3e6) / 1e6
    assert earliest < end < earliest + 5.0


def test_a_path_without_end_of_its_hole_never_ends_a_transfer() -> None:
    assert transfer_end(path(0.0), 0.0, 1e6, random.Random(0)) == math.inf


def test_a_transfer_that_takes_too_long_never_ends() -> None:
    assert transfer_end(path(1e6), 0.0, 1e6, random.Random(0), give_up_s=0.9) == math.inf


def test_a_pause_halves_the_window_for_each_time_out_down_to_the_first() -> None:
    sender = settled(100)
    sender.sent_at = 1.0
    sender.resume(1.0 + 2.5 * sender.rto_s)
    assert sender.cwnd == 25
    assert sender.ssthresh == 100
    sender.sent_at = 2.0
    sender.resume(60.0)
    assert sender.cwnd == 10


def test_cubic_reaches_the_plateau_after_k_seconds() -> None:
    """K = cbrt(W_max (1 - beta) / C): 4.2 s for 100 packets (RFC 9438, eq. 2).

    A window per 0.1 s is acknowledged, which Reno would need 40 s for.
    """
    sender = TcpSender(cwnd=100, ssthresh=100.0, min_rtt_s=0.0)
    sender.on_loss()
    sender.cwnd = int(sender.ssthresh)
    k_s = ((100 - sender.cwnd) / 0.4) ** (1 / 3)
    windows = {}
    for tick in range(100):
        sender.grow(sender.cwnd, 0.1 * tick)
        windows[tick] = sender.cwnd
    assert windows[round(10 * k_s)] == pytest.approx(100, abs=3)
    assert windows[99] > 140


def seconds(loss: float, n: int, *, rate_bps: float, bits: float) -> Iterator[float]:
    """Yield the durations of transfers over one connection, with a pause after each."""
    sender, rng, t = TcpSender(), random.Random(1), 0.0
    link = TcpPath.constant(rate_bps, DELAY_S, loss)
    for _ in range(n):
        end = transfer_end(link, t, bits, rng, sender)
        yield end - t
        t = end + 2.0


@pytest.mark.parametrize("loss", [0.005, 0.01])
def test_long_transfers_follow_the_square_root_law(loss: float) -> None:
    """Rate = packet / round trip * sqrt(1.5 / p), for this `BETA`, too.

    Source: Mathis et al., CCR 27(3), 1997, eq. 3; RFC 9438, section 4.3.
    """
    bits = 2e8
    (long,) = seconds(loss, 1, rate_bps=RATE_BPS, bits=bits)
    law_bps = PACKET_BITS / (2 * DELAY_S) * math.sqrt(1.5 / loss)
    assert bits / long == pytest.approx(law_bps, rel=0.2)


def test_a_short_queue_slows_a_long_path() -> None:
    """A queue of ten packets before a window of 86 loses them, and the link idles."""
    bits, rate_bps = 2e7, 1e7
    short = transfer_end(path(rate_bps, 0.0, 15_000), 0.0, bits, random.Random(0))
    deep = transfer_end(path(rate_bps, 0.0, 250_000), 0.0, bits, random.Random(0))
    assert deep < 1.2 * bits / rate_bps
    assert short > 1.1 * deep


def test_loss_before_the_bottleneck_leaves_its_rate_to_other_packets() -> None:
    """A link of 0.2 Mbit/s is always busy: a tenth of the packets is sent twice through it."""
    bits, rate_bps = 4e6, 2e5
    took = {
        first: statistics.median(
            transfer_end(
                TcpPath.constant(rate_bps, 0.001, 0.1, is_lossy_first=first),
                0.0,
                bits,
                random.Random(seed),
                settled(40),
            )
            for seed in range(10)
        )
        for first in (True, False)
    }
    assert took[False] / took[True] == pytest.approx(1.0 / 0.9, rel=0.04)


@given(
    rate_bps=st.floats(1e5, 1e8),
    loss=st.sampled_from([0.0, 0.001, 0.01, 0.1]),
    packets=st.floats(0.01, 300.0),
    jitter_s=st.sampled_from([0.0, 0.005]),
    seed=st.integers(0, 2**32),
)
def test_a_transfer_is_never_faster_than_its_link_and_repeats_exactly(
    rate_bps: float, loss: float, packets: float, jitter_s: float, seed: int
) -> None:
    link = TcpPath.constant(
        rate_bps, DELAY_S, loss, jitter_s=jitter_s, queue_bytes=max(15_000, rate_bps / 80)
    )
    bits = packets * PACKET_BITS
    first = transfer_end(link, 1.0, bits, random.Random(seed))
    assert first == transfer_end(link, 1.0, bits, random.Random(seed))
    sent_s = (packets - 1.0) * PACKET_BITS / rate_bps - burst_s(rate_bps)
    assert 1.0 + max(0.0, sent_s) <= first < math.inf
    if jitter_s == 0.0:
        assert first >= 1.0 + max(0.0, sent_s) + DELAY_S - 1e-9


@pytest.mark.parametrize(("loss", "within"), [(0.0, 1e-9), (0.01, 0.35), (0.05, 0.35)])
@pytest.mark.parametrize("rate_bps", [2e6, 2e7])
def test_the_closed_form_under_loss_is_near_the_mean_of_the_simulation(
    loss: float, within: float, rate_bps: float
) -> None:
    bits = 4e6
    lossless_s = np.array([bits / rate_bps])
    expected_s = expected_lossy_s(bits, lossless_s, np.array([2 * DELAY_S]), np.array([loss]))
    if loss == 0.0:
        assert expected_s == pytest.approx(lossless_s, rel=within)
    else:
        mean_s = statistics.mean(seconds(loss, 10, rate_bps=rate_bps, bits=bits))
        assert float(expected_s[0]) == pytest.approx(mean_s, rel=within)


@pytest.mark.parametrize(("queue_s", "idles"), [(0.04, True), (0.05, False)])
def test_a_queue_below_three_sevenths_of_the_round_trip_leaves_a_link_idle(
    queue_s: float, idles: bool
) -> None:
    """0.43 of a round trip of 0.1 s at the rate of the link: 1 / 0.7 - 1."""
    queue_bytes = queue_s * 1e7 / 8.0 * 1514 / 1448
    assert idles_after_overflow(queue_bytes, 1e7, 2 * DELAY_S) is idles
