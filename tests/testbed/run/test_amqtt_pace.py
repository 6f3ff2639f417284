"""What a device may send on amqtt, which has no limits of its own."""

from typing import Any

import pytest

amqtt_broker = pytest.importorskip("fairbed.testbed.run.amqtt_broker", exc_type=ImportError)


def send(pace: Any, from_s: float, until_s: float) -> int:
    """Send as fast as the pace allows; return the number of packets."""
    now, sent = from_s, 0
    while now < until_s:
        now += pace.delay_s(now)
        sent += 1
    return sent


def test_a_burst_does_not_wait_then_packets_are_paced() -> None:
    pace = amqtt_broker.Pace()
    waits = [pace.delay_s(100.0) for _ in range(amqtt_broker.BURST + 1)]
    assert waits[:-1] == [0.0] * amqtt_broker.BURST
    assert waits[-1] == pytest.approx(amqtt_broker.PACKET_COST_S)


def test_a_flood_is_slowed_down_more_and_more() -> None:
    pace = amqtt_broker.Pace()
    assert send(pace, 100.0, 110.0) < amqtt_broker.BURST + 10 * 200
    send(pace, 110.0, 300.0)
    assert send(pace, 300.0, 310.0) < 200  # 20 a second, and it falls on


def test_a_device_that_rests_is_as_fast_as_before() -> None:
    pace = amqtt_broker.Pace()
    send(pace, 100.0, 300.0)
    assert pace.delay_s(1_000.0) == 0.0
    assert send(pace, 1_000.0, 1_001.0) > amqtt_broker.BURST


def test_an_agent_in_seven_rounds_a_second_never_waits() -> None:
    """It sends about 15 packets in a round: contexts, messages, acknowledgements, chunks."""
    pace, waits = amqtt_broker.Pace(), 0.0
    for number in range(7 * 600):
        waits += sum(pace.delay_s(100.0 + number / 7) for _ in range(15))
    assert waits == 0.0
