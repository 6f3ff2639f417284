"""The size of a queue: stated in bytes or in time, or the default."""

import pytest

from fairbed.profiles import LinkQueue, LinkTracks
from fairbed.profiles.series import Series
from fairbed.testbed.emulation.queues import (
    FRAME_BYTES,
    MAX_QUEUE_BYTES,
    PAYLOAD_BYTES,
    burst_bytes,
    burst_s,
    codel_target_s,
    depth_bytes,
    depth_s,
    queue_bytes,
)

ZERO = Series.constant(0.0)


@pytest.mark.parametrize(
    ("queue", "rate_bps", "expected"),
    [
        (LinkQueue(), 1e5, 10 * FRAME_BYTES),
        (LinkQueue(), 8e6, 104_558),  # 100 ms of 8 Mbit/s carry 100,000 bytes of payload
        (LinkQueue(), 10e9, MAX_QUEUE_BYTES),
        (LinkQueue(), float("inf"), MAX_QUEUE_BYTES),
        (LinkQueue(depth_s=0.3), 8e6, 313_674),
        (LinkQueue(depth_s=0.001), 1e6, 2 * FRAME_BYTES),
        (LinkQueue(depth_s=60.0), 1e9, MAX_QUEUE_BYTES),
        (LinkQueue(depth_bytes=20_000), 1e9, 20_000),
    ],
)
def test_a_queue_has_its_depth_or_a_tenth_of_a_second(
    queue: LinkQueue, rate_bps: float, expected: int
) -> None:
    assert depth_bytes(queue, rate_bps) == expected


def test_a_full_queue_is_sent_in_its_depth() -> None:
    assert depth_s(depth_bytes(LinkQueue(depth_s=0.25), 5e6), 5e6) == pytest.approx(0.25, rel=1e-4)
    payload = depth_bytes(LinkQueue(depth_bytes=151_400), 5e6) * PAYLOAD_BYTES / FRAME_BYTES
    assert depth_s(151_400, 5e6) == pytest.approx(8 * payload / 5e6)


def test_each_direction_has_its_own_fastest_rate() -> None:
    down = Series((0.0, 1.0), (8e6, 2e6), 2.0)
    link = LinkTracks(down, Series.constant(1.6e6), ZERO, ZERO, ZERO, LinkQueue(depth_s=0.2))
    assert queue_bytes(link, "down") == depth_bytes(LinkQueue(depth_s=0.2), 8e6)
    assert queue_bytes(link, "up") == depth_bytes(LinkQueue(depth_s=0.2), 1.6e6)


def test_only_fq_codel_has_a_target() -> None:
    assert codel_target_s(LinkQueue()) is None
    assert codel_target_s(LinkQueue(discipline="fq_codel")) == 0.005


@pytest.mark.parametrize(
    ("rate_bps", "burst"),
    [
        (100_000, 3200),
        (1_000_000, 3200),
        (100_000_000, 6250),
        (500_000_000, 31_250),
        (10_000_000_000, 625_000),
    ],
)
def test_a_burst_grows_with_the_rate_from_a_minimum(rate_bps: int, burst: int) -> None:
    assert burst_bytes(rate_bps) == burst
    payload_bps = rate_bps * PAYLOAD_BYTES / FRAME_BYTES
    assert burst_s(payload_bps) == pytest.approx(8.0 * burst / rate_bps)
