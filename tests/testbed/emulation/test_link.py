"""A link has its rate and its delay and keeps the order, whatever is sent when."""

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.profiles import LinkQueue
from fairbed.testbed.emulation.link import MIN_CHUNK_BYTES, QUEUE_S, LinkDirection, set_up_s
from fairbed.testbed.emulation.queues import depth_bytes

rates = st.floats(1e4, 1e9)
delays = st.floats(0.0, 2.0)
gaps = st.lists(st.tuples(st.floats(0.0, 0.5), st.integers(1, 1 << 18)), min_size=1, max_size=60)


def arrivals(
    link: LinkDirection, pieces: list[tuple[float, int]]
) -> list[tuple[float, float, int]]:
    """Send each piece after its gap, cut to chunks; return (sent, due, bytes)."""
    now, found = 0.0, []
    for gap_s, n_bytes in pieces:
        now += gap_s
        while n_bytes > 0:
            piece = min(n_bytes, link.chunk_bytes)
            found.append((now, link.send(now, piece).due, piece))
            n_bytes -= piece
    return found


@given(rates, delays, gaps)
def test_no_window_carries_more_than_the_rate_and_one_chunk(
    rate: float, delay: float, pieces: list[tuple[float, int]]
) -> None:
    link = LinkDirection(rate, delay)
    found = arrivals(link, pieces)[:200]
    for first in range(len(found)):
        carried = 0
        for _, due, n_bytes in found[first:]:
            carried += n_bytes
            window_s = due - found[first][1]
            assert 8 * carried <= rate * window_s * (1 + 1e-6) + 8 * link.chunk_bytes + 1e-3


@given(st.none() | rates, delays, gaps)
def test_pieces_keep_their_order_and_are_never_early(
    rate: float | None, delay: float, pieces: list[tuple[float, int]]
) -> None:
    link = LinkDirection(rate, delay)
    last = 0.0
    for sent, due, n_bytes in arrivals(link, pieces):
        on_the_line_s = 0.0 if rate is None else 8 * n_bytes / rate
        assert due >= sent + on_the_line_s + delay - 1e-9
        assert due >= last
        last = due


@given(rates, delays, st.integers(1, 10_000))
def test_a_busy_link_is_fully_used(rate: float, delay: float, chunks: int) -> None:
    link = LinkDirection(rate, delay)
    due = 0.0
    for _ in range(min(chunks, 500)):
        due = link.send(0.0, link.chunk_bytes).due
    sent = min(chunks, 500) * link.chunk_bytes
    assert due == pytest.approx(8 * sent / rate + delay)


@given(rates, delays)
def test_a_sender_that_waits_when_full_keeps_the_queue_short(rate: float, delay: float) -> None:
    link = LinkDirection(rate, delay)
    now = 0.0
    for _ in range(300):
        link.send(now, link.chunk_bytes)
        assert link.free_at - now <= QUEUE_S + 8 * link.chunk_bytes / rate + 1e-9
        if link.is_full(now):
            now = link.ready_at
            assert now < link.free_at  # it continues before the link is idle


@pytest.mark.parametrize("depth_s", [0.02, 0.3, 1.5])
def test_a_message_waits_behind_a_stream_for_the_depth_of_the_queue(depth_s: float) -> None:
    rate_bps = 4e6
    size = depth_bytes(LinkQueue(depth_s=depth_s), rate_bps)
    link = LinkDirection(rate_bps, 0.0, queue_bytes=size)
    now, waits = 0.0, []
    for _ in range(2000):
        while not link.is_full(now):
            link.send(now, link.chunk_bytes)
        waits.append(link.free_at - now)
        now += (link.ready_at - now) / 7.0
    assert max(waits) <= depth_s + 8 * link.chunk_bytes / rate_bps
    assert min(waits) >= 0.85 * depth_s - 1e-9


def test_a_queue_keeps_its_bytes_when_its_link_becomes_slower() -> None:
    link = LinkDirection(8e6, 0.0, queue_bytes=depth_bytes(LinkQueue(), 8e6))
    assert link.queue_s == pytest.approx(0.1, rel=1e-4)
    link.change(1.0, 1e6, 0.0)
    assert link.queue_s == pytest.approx(0.8, rel=1e-4)


def test_a_link_that_states_no_queue_has_a_tenth_of_a_second_at_any_rate() -> None:
    assert LinkDirection(1e6, 0.0).queue_s == LinkDirection(1e9, 0.0).queue_s == QUEUE_S


def test_a_smaller_delay_keeps_the_order_of_pieces() -> None:
    link = LinkDirection(1e6, 1.0)
    late = link.send(0.0, 1000).due
    link.change(0.5, 1e6, 0.0)
    assert link.send(0.5, 1000).due >= late


def test_a_link_without_a_limit_only_delays() -> None:
    link = LinkDirection(None, 0.25)
    assert [link.send(1.0, 1 << 18).due for _ in range(3)] == [1.25] * 3
    assert not link.is_full(1.0)


def test_chunks_are_at_least_a_segment_and_2_ms_of_a_fast_link() -> None:
    assert LinkDirection(1e5, 0.0).chunk_bytes == MIN_CHUNK_BYTES
    assert LinkDirection(100e6, 0.0).chunk_bytes == 25_000


def test_a_connection_takes_a_round_trip_to_open() -> None:
    link = LinkDirection(8e6, 0.05)
    assert link.send(10.0, 1000, not_before=10.0 + set_up_s(0.05)).due == pytest.approx(10.151)


@pytest.mark.parametrize(
    ("rate", "delay", "name"),
    [(-1.0, 0.0, "rate_bps"), (1.0, -1.0, "delay_s"), (nan, 0.0, "rate_bps")],
)
def test_bad_numbers_are_refused(rate: float, delay: float, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be >"):
        LinkDirection(rate, delay)


def test_a_link_without_random_numbers_has_no_jitter() -> None:
    link = LinkDirection(None, 0.1, jitter_s=0.05)
    assert [link.send(float(t), 1000).due for t in range(3)] == [0.1, 1.1, 2.1]
