"""Connections whose packets are lost: what is sent beside the transfers, and what is kept."""

import math
from typing import Any

import pytest

from fairbed.profiles.series import Series
from fairbed.profiles.tracks import LinkTracks
from fairbed.testbed.emulation.cell import Direction
from fairbed.testbed.emulation.schedule import Schedule
from fairbed.testbed.replay.world.columns import VaryingConditions
from fairbed.testbed.replay.world.phases import GRANT, MODEL, OFFER, TRAIN, UPDATE
from fairbed.testbed.replay.world.tcp_links import StreamDraws, TcpLinks

BITS = 8.0 * 345_128


def links(loss: Series | float = 0.02, *, seed: int = 1, rows: int = 1) -> TcpLinks:
    """Return the connections of devices at 6 and 4 Mbit/s with 30 ms delay."""
    of_loss = loss if isinstance(loss, Series) else Series.constant(loss)
    down, up, delay = (Series.constant(value) for value in (6e6, 4e6, 0.03))
    tracks = LinkTracks(down, up, delay, Series.constant(0.0), of_loss)
    schedules = {row: Schedule(link=tracks) for row in range(rows)}
    queues = dict.fromkeys(schedules, (1e5, 1e5))
    return TcpLinks(VaryingConditions(links=schedules, lossy=queues), seed)


def sent(one: TcpLinks, way: Direction, start: float, message: int, seed: int = 0) -> float:
    """Send the data of an exchange, or a message; return when it arrives."""
    draws = StreamDraws(seed, message)
    if message in (MODEL, UPDATE):
        return one.transfer(0, way, start, BITS, draws, math.inf, message)
    return one.message(0, way, start, draws, math.inf, message)


def window(one: TcpLinks, way: Direction) -> int:
    """Return the congestion window after the last message in a direction."""
    one.begin([0])
    ((_, _, cwnd, *_),) = [row for row in one.to_state()["now"] if row[1] == way]
    return int(cwnd)


def windows_after(pause_s: float, way: Direction, message: int, loss: float = 0.02) -> float:
    """Return the mean window of a message that follows a transfer after a pause."""
    found = []
    for seed in range(40):
        one = links(loss)
        end = sent(one, way, 0.0, MODEL if way == "down" else UPDATE, seed)
        one.begin([0])
        sent(one, way, end + pause_s, message, seed)
        found.append(window(one, way))
    return sum(found) / len(found)


def test_lost_contexts_shrink_the_window_of_an_uplink_that_waits() -> None:
    """Nothing widens it: a single packet at a time does not fill a window."""
    soon, late = (windows_after(pause_s, "up", OFFER) for pause_s in (2.0, 600.0))
    assert late < 0.6 * soon
    assert late < 4.0
    assert windows_after(600.0, "down", TRAIN) > 1.4 * late, "no contexts on the downlink"


def test_without_loss_a_wait_changes_no_window() -> None:
    assert windows_after(600.0, "up", OFFER, 0.0) == windows_after(2.0, "up", OFFER, 0.0) == 10.0


def test_contexts_are_lost_in_the_windows_of_the_link() -> None:
    """The link loses packets from 100 s on; the exchange is over by then."""
    windows = Series((0.0, 100.0), (0.0, 0.2), 1e4)
    found = {}
    for wait_s in (50.0, 400.0):
        one = links(windows)
        sent(one, "up", 0.0, UPDATE)
        one.begin([0])
        sent(one, "up", wait_s, OFFER)
        found[wait_s] = window(one, "up")
    assert found[50.0] >= 10
    assert found[400.0] <= 4


def test_a_message_that_is_computed_again_starts_from_the_one_before() -> None:
    """An upload is first computed as if it was granted at once."""
    one, other = links(), links()
    for each in (one, other):
        sent(each, "down", 0.0, TRAIN)
        sent(each, "up", 0.0, OFFER)
    for granted in (3.0, 4.0, 9.0):
        sent(one, "down", granted, GRANT)
        again = sent(one, "up", granted, UPDATE)
    sent(other, "down", 9.0, GRANT)
    assert sent(other, "up", 9.0, UPDATE) == again
    assert one.to_state()["now"] == other.to_state()["now"] == []
    for each in (one, other):
        each.begin([0])
    assert one.to_state() == other.to_state()


def test_devices_have_lost_packets_before_the_first_round() -> None:
    """A connection that has sent nothing is faster than it will ever be again."""

    def first_s(joined_bits: float) -> float:
        took = 0.0
        for seed in range(20):
            one = links(seed=seed)
            one.join({0: joined_bits})
            took += sent(one, "down", 0.0, MODEL, seed) / 20
        return took

    assert first_s(8e6) > 1.3 * first_s(0.0)


def test_a_probe_leaves_its_losses_to_the_connection() -> None:
    one = links(0.1)
    one.probe(0, "up", 0.0, 8.0 * 65_536, math.inf)
    assert window(one, "up") < 10


@pytest.mark.parametrize("seeds", [(1, 1), (1, 2)])
def test_packets_outside_of_exchanges_are_lost_by_the_seed(seeds: tuple[int, int]) -> None:
    states: list[Any] = []
    for seed in seeds:
        one = links(seed=seed)
        one.join({0: BITS})
        states.append(one.to_state())
    assert (states[0] == states[1]) == (seeds[0] == seeds[1])


def test_the_state_of_an_exchange_in_flight_is_kept() -> None:
    one, other = links(), links()
    for message, way in ((TRAIN, "down"), (MODEL, "down"), (OFFER, "up")):
        sent(one, "up" if way == "up" else "down", 1.0, message)
    other.load_state(one.to_state())
    assert sent(one, "up", 9.0, UPDATE) == sent(other, "up", 9.0, UPDATE)
    assert one.to_state() == other.to_state()
