"""A link that changes while it carries pieces delivers the integral of its rate, in order."""

from bisect import bisect_right
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.profiles.series import Series
from fairbed.testbed.emulation.link import QUEUE_S, LinkDirection, Piece

STEP_S = 0.5

rates = st.lists(st.just(0.0) | st.floats(1e5, 5e7), min_size=2, max_size=12).filter(any)


def greedy(
    link: LinkDirection, rate: Series, delay: Series, until: float
) -> list[tuple[Piece, int]]:
    """Send over a link as fast as it accepts bytes, while it follows the two series."""
    sent: list[tuple[Piece, int]] = []
    now = 0.0
    changes = [index * STEP_S for index in range(1, int(until / STEP_S) + 1)]
    while now < until:
        while not link.is_full(now):
            size = link.chunk_bytes
            sent.append((link.send(now, size), size))
        ahead = bisect_right(changes, now)
        change_at = changes[ahead] if ahead < len(changes) else inf
        if link.ready_at < change_at:
            now = max(link.ready_at, now)
        elif change_at < inf:
            now = change_at
            link.change(now, rate.at(now + 1e-9), delay.at(now + 1e-9))
        else:
            break
    return sent


@given(rates, st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4))
def test_the_volume_is_the_integral_of_the_rate(values: list[float], delays: list[float]) -> None:
    rate, delay = Series.sampled(values, STEP_S), Series.sampled(delays, STEP_S)
    link = LinkDirection(rate.at(0.0), delay.at(0.0))
    chunk_bits = 8 * max(LinkDirection(value, 0.0).chunk_bytes for value in values)
    until = len(values) * STEP_S
    sent = greedy(link, rate, delay, until)
    for step in range(1, 4 * len(values)):
        now = step * STEP_S / 4
        left_bits = sum(8 * size for piece, size in sent if piece.left_at <= now)
        assert left_bits == pytest.approx(rate.integral(0.0, now), abs=chunk_bits + 1.0)


@given(rates, st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4), st.integers(0, 99))
def test_pieces_keep_their_order_through_all_changes(
    values: list[float], delays: list[float], seed: int
) -> None:
    rate, delay = Series.sampled(values, STEP_S), Series.sampled(delays, STEP_S)
    random = Random(seed)
    link = LinkDirection(rate.at(0.0), delay.at(0.0), 0.05, lambda: random.gauss(0.0, 1.0))
    dues = [piece.due for piece, _ in greedy(link, rate, delay, len(values) * STEP_S)]
    assert dues == sorted(dues)


def test_an_outage_delays_pieces_and_they_continue_after_it() -> None:
    link = LinkDirection(8e3, 0.1)
    first, second = link.send(0.0, 1000), link.send(0.0, 1000)  # a second each
    link.change(0.25, 0.0, 0.1)
    assert (first.due, second.due) == (inf, inf)
    assert link.is_full(0.25)
    link.change(10.25, 16e3, 0.1)
    assert first.due == pytest.approx(10.25 + 0.75 / 2 + 0.1)
    assert second.due == pytest.approx(10.25 + 0.75 / 2 + 0.5 + 0.1)


def test_sent_bits_keep_their_arrival_time() -> None:
    link = LinkDirection(8e6, 5.0)
    piece = link.send(0.0, 1000)
    link.change(1.0, 0.0, 0.0)
    assert piece.due == pytest.approx(5.001)
    assert link.send(1.0, 1000).due == inf


def test_a_link_without_a_limit_can_have_an_outage_too() -> None:
    link = LinkDirection(None, 0.0)
    link.change(1.0, 0.0, 0.0)
    piece = link.send(1.5, 1000)
    assert piece.due == inf
    link.change(2.0, None, 0.0)
    assert piece.due == 2.0
    assert not link.is_full(2.0)


def test_the_end_of_a_stream_waits_for_the_end_of_an_outage() -> None:
    link = LinkDirection(1e6, 0.0)
    link.change(0.0, 0.0, 0.0)
    assert link.send(1.0, 0).due == inf


def test_jitter_has_the_configured_deviation() -> None:
    random = Random(7)
    link = LinkDirection(None, 1.0, 0.02, lambda: random.gauss(0.0, 1.0))
    delays = [link.send(now, 100).due - now for now in map(float, range(2000))]
    mean = sum(delays) / len(delays)
    assert mean == pytest.approx(1.0, abs=0.002)
    assert (sum((d - mean) ** 2 for d in delays) / len(delays)) ** 0.5 == pytest.approx(
        0.02, rel=0.05
    )


def test_equal_seeds_give_equal_jitter() -> None:
    def dues(seed: int) -> list[float]:
        random = Random(seed)
        link = LinkDirection(1e6, 0.05, 0.02, lambda: random.gauss(0.0, 1.0))
        return [link.send(0.0, 1000).due for _ in range(50)]

    assert dues(1) == dues(1) != dues(2)


def test_a_faster_link_wakes_its_sender_earlier() -> None:
    link = LinkDirection(1e5, 0.0)
    while not link.is_full(0.0):
        link.send(0.0, link.chunk_bytes)
    before = link.ready_at
    link.change(0.0, 1e6, 0.0)
    assert link.ready_at < before - QUEUE_S / 2


def test_bad_changes_are_refused_and_change_nothing() -> None:
    link = LinkDirection(8e3, 0.0)
    piece = link.send(0.0, 1000)
    with pytest.raises(ValueError, match=r"^rate_bps must be >= 0 or None, got -1"):
        link.change(0.0, -1.0, 0.0)
    with pytest.raises(ValueError, match=r"^jitter_s must be >= 0, got -1"):
        link.change(0.0, 1.0, 0.0, -1.0)
    assert piece.due == 1.0
