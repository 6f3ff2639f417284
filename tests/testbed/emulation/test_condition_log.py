"""Means of configured conditions are exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.profiles.series import Series
from fairbed.testbed.emulation.condition_log import ConditionLog
from fairbed.testbed.emulation.conditions import Conditions, Outage, Shape


def has(down_bps: float, outage: Outage | None = None, is_willing: bool = True) -> Conditions:
    shape = Shape(down_bps=down_bps, up_bps=None, delay_s=0.02)
    return Conditions(0.5, shape, outage, is_willing=is_willing)


@given(st.lists(st.floats(0.0, 1e9), min_size=2, max_size=30), st.integers(1, 29))
def test_the_volume_of_all_intervals_is_the_integral(rates: list[float], every: int) -> None:
    log = ConditionLog(0.0, has(rates[0]))
    volume = 0.0
    for second, rate in enumerate(rates[1:], 1):
        log.record(float(second), has(rate))
        if second % every == 0:
            means = log.take(float(second))
            assert means is not None
            assert means.down_bps is not None
            volume += means.down_bps * (means.end_s - means.start_s)
    last = log.take(float(len(rates)))
    assert last is not None
    assert last.down_bps is not None
    volume += last.down_bps * (last.end_s - last.start_s)
    assert volume == pytest.approx(Series.sampled(rates, 1.0).integral(0.0, len(rates)))


def test_an_outage_has_rate_zero_and_is_counted() -> None:
    log = ConditionLog(10.0, has(1e6))
    log.record(11.0, has(1e6, "coverage"))
    log.record(14.0, has(1e6, is_willing=False))
    means = log.take(15.0)
    assert means is not None
    assert (means.start_s, means.end_s) == (10.0, 15.0)
    assert means.down_bps == pytest.approx(2e6 / 5.0)
    assert (means.outage_s, means.unwilling_s) == (3.0, 1.0)
    assert means.speed_ratio == pytest.approx(0.5)
    assert means.up_bps is None


def test_a_frozen_device_has_no_speed_meanwhile() -> None:
    log = ConditionLog(0.0, has(1e6))
    log.record(1.0, has(1e6, "frozen"))
    means = log.take(4.0)
    assert means is not None
    assert means.speed_ratio == pytest.approx(0.125)


def test_an_empty_interval_has_no_means() -> None:
    assert ConditionLog(1.0, has(1e6)).take(1.0) is None


def test_a_device_without_a_shaped_link_has_no_rates() -> None:
    log = ConditionLog(2.0, Conditions(None, None, clock_ratio=0.5))
    assert log.start == 2.0
    log.record(3.0, Conditions(None, Shape(down_bps=1e6)))
    log.record(4.0, Conditions(None, None, outage="unplugged"))
    means = log.take(6.0)
    assert means is not None
    assert (means.speed_ratio, means.down_bps, means.up_bps) == (None, None, None)
    assert (means.delay_s, means.clock_ratio, means.outage_s) == (0.0, 0.875, 2.0)
    assert log.start == 6.0
