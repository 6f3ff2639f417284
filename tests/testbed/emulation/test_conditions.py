"""Conditions in seconds of this machine when time is dilated."""

from fairbed.testbed.emulation.conditions import Conditions, Shape

SHAPE = Shape(down_bps=8e6, up_bps=None, delay_s=0.02, jitter_s=0.001, loss_ratio=0.1)


def test_a_dilated_link_is_slower_and_loses_the_same_share() -> None:
    assert SHAPE.dilated(4.0) == Shape(
        down_bps=2e6, up_bps=None, delay_s=0.08, jitter_s=0.004, loss_ratio=0.1
    )
    one_way = Shape(down_bps=None, up_bps=6e6)
    assert one_way.dilated(2.0) == Shape(down_bps=None, up_bps=3e6)


def test_a_dilated_queue_has_the_same_bytes_and_a_longer_target() -> None:
    shape = Shape(down_bps=8e6, down_queue_bytes=40_000, codel_target_s=0.005)
    assert shape.dilated(4.0) == Shape(down_bps=2e6, down_queue_bytes=40_000, codel_target_s=0.02)


def test_only_a_link_without_limits_is_plain() -> None:
    assert Shape().is_plain
    assert not Shape(loss_ratio=0.1).is_plain
    assert not Shape(up_bps=1e6).is_plain


def test_dilated_conditions_have_a_slower_processor_and_link() -> None:
    now = Conditions(0.5, SHAPE, "coverage", clock_ratio=0.8, temperature_celsius=60.0)
    assert now.dilated(1.0) is now
    assert now.dilated(2.0) == Conditions(
        0.25, SHAPE.dilated(2.0), "coverage", clock_ratio=0.8, temperature_celsius=60.0
    )
    assert Conditions(None, None).dilated(2.0) == Conditions(None, None)
