"""The share of exchanges that delays of this machine spoil, and the dilation that is enough."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.emulation.machine_delay import (
    FIXED_S,
    LARGEST_AUTO,
    QUEUED_S,
    UNTIMED_TARGET,
    ExchangeTimes,
    MachineDelay,
)


def equal_times(seconds: float, n: int = 3) -> ExchangeTimes:
    times_s = np.full((1, n), seconds)
    return ExchangeTimes(times_s, times_s, 0.0)


def test_half_of_the_exchanges_are_untimed_if_the_median_delay_is_a_twentieth_of_them() -> None:
    delay = MachineDelay(0.002, sigma=0.7)
    assert delay.untimed_share(equal_times(0.04), 1.0) == pytest.approx(0.5)
    assert delay.untimed_share(equal_times(0.01), 4.0) == pytest.approx(0.5), "dilated"
    at_one_sigma = 0.04 * math.exp(0.7)
    assert delay.untimed_share(equal_times(at_one_sigma), 1.0) == pytest.approx(0.1587, abs=1e-4)


def test_devices_at_once_wait_for_the_same_cores() -> None:
    assert MachineDelay.of(4, 2.0).median_s == pytest.approx(FIXED_S + 2 * QUEUED_S)
    assert MachineDelay.of(40, 20.0).median_s == MachineDelay.of(4, 2.0).median_s


def test_each_device_counts_alike_and_an_unknown_time_does_not() -> None:
    delay, times_s = MachineDelay(0.002), np.array([[0.0001, 100.0, math.nan, 100.0]])
    times = ExchangeTimes(times_s, times_s, 0.5)
    assert delay.untimed_share(times, 1.0) == pytest.approx(1 / 3)
    assert times.shortest_s == 0.0001
    unknown = ExchangeTimes(np.full((1, 2), np.nan), np.full((1, 2), np.nan), 0.0)
    assert math.isnan(delay.untimed_share(unknown, 1.0))
    assert delay.sufficient_dilation(unknown, 3) == 3


def test_devices_that_stay_warm_have_shorter_exchanges() -> None:
    delay = MachineDelay(0.002)
    cold_s, warm_s = np.array([[10.0]]), np.array([[0.0001]])
    assert delay.untimed_share(ExchangeTimes(cold_s, warm_s, 0.25), 1.0) == pytest.approx(0.25)
    assert ExchangeTimes(cold_s, warm_s, 0.0).shortest_s == 10.0


@given(
    st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=5), st.integers(1, 50), st.integers(1, 20)
)
def test_the_dilation_is_enough_and_one_less_is_not(
    seconds: list[float], at_once: int, least: int
) -> None:
    times_s = np.array([seconds])
    times, delay = ExchangeTimes(times_s, times_s, 0.0), MachineDelay.of(at_once, 2.0)
    k = delay.sufficient_dilation(times, least)
    assert least <= k <= max(least, LARGEST_AUTO)
    assert k == LARGEST_AUTO or delay.untimed_share(times, k) <= UNTIMED_TARGET
    assert k == least or delay.untimed_share(times, k - 1) > UNTIMED_TARGET


def test_a_fleet_that_needs_more_than_the_largest_dilation_keeps_it() -> None:
    assert MachineDelay.of(4, 2.0).sufficient_dilation(equal_times(1e-4), 100) == 100
    assert MachineDelay.of(4, 2.0).sufficient_dilation(equal_times(1e-4), 2) == LARGEST_AUTO
