"""From moments and bytes to rates and errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._fidelity.arithmetic import (
    drift,
    goodput_bps,
    median_step_error,
    quantile,
    resumed_s,
    volume_error,
    volumes,
)


def test_a_rate_is_between_arrivals_and_leaves_the_warm_up_out() -> None:
    times = [10.0, 10.4, 11.0, 12.0, 13.0, 13.1]
    totals = [9000, 9500, 10_000, 11_000, 12_000, 99_999]
    assert goodput_bps(times, totals, 0.5) == pytest.approx(8000.0)


def test_a_rate_does_not_begin_or_end_while_tcp_waits_for_what_was_lost() -> None:
    times = [0.0, 1.0, 2.0, 6.0, 7.0, 8.0, 9.0, 10.0, 14.0]
    totals = [1000, 2000, 3000, 7000, 8000, 9000, 10_000, 11_000, 15_000]
    assert goodput_bps(times, totals, 1.5, 1.5) == pytest.approx(8000.0)
    lost_at_2 = [1000, 2000, 2000, 7000, 8000, 9000, 10_000, 10_000, 15_000]
    assert goodput_bps(times, lost_at_2, 1.5, 1.5) == pytest.approx(8000.0)  # from 6 to 9 s


@given(st.floats(1e3, 1e9), st.integers(4, 200), st.floats(0.0, 1e6))
def test_an_even_stream_has_its_rate_wherever_the_window_begins(
    rate_bps: float, count: int, begin: float
) -> None:
    gap_s = 8 * 1448 / rate_bps
    times = [begin + index * gap_s for index in range(count)]
    totals = [1448 * (index + 1) for index in range(count)]
    if times[1] > times[0] and times[-2] > times[1]:  # as far as floats can tell
        found = goodput_bps(times, totals, 0.0)
        rounding = 4 * abs(times[-1]) * 2**-52 / (times[-2] - times[1])
        assert found == pytest.approx(rate_bps, rel=1e-9 + 4 * rounding)


@pytest.mark.parametrize("times", [[], [1.0], [1.0, 1.2], [1.0, 2.1, 2.2]])
def test_too_few_arrivals_are_no_rate(times: list[float]) -> None:
    with pytest.raises(ValueError, match="need two arrivals after 1 s"):
        goodput_bps(times, [1] * len(times), 1.0)


def test_volumes_are_what_came_in_each_step() -> None:
    times, totals = [0.2, 0.9, 1.0, 2.5], [10, 20, 25, 40]
    assert volumes(times, totals, 0.0, 1.0, 3) == [25, 0, 15]
    assert volumes(times, totals, 0.5, 1.0, 1) == [15]
    assert volumes([], [], 0.0, 1.0, 2) == [0.0, 0.0]


def test_the_volume_may_be_right_where_no_second_is() -> None:
    got, wanted = [50.0, 150.0, 0.0], [100.0, 100.0, 0.0]
    assert volume_error(got, wanted) == 0.0
    assert median_step_error(got, wanted) == 0.5


def test_nothing_wanted_is_no_error_but_no_measurement() -> None:
    with pytest.raises(ValueError, match="need some volume"):
        volume_error([1.0], [0.0])
    with pytest.raises(ValueError, match="need some volume"):
        median_step_error([1.0], [0.0])


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile(list(range(1, 101)), 0.95) == 95
    assert quantile([7.0], 0.0) == 7.0
    with pytest.raises(ValueError, match="need some values"):
        quantile([], 0.5)


def test_a_stream_goes_on_with_the_first_byte_after_the_hole() -> None:
    assert resumed_s([1.0, 4.5, 4.6], 4.0) == 0.5
    assert resumed_s([1.0], 4.0) is None


def test_drift_is_relative_to_the_mean() -> None:
    assert drift(9.0, 11.0) == pytest.approx(0.2)
    assert drift(11.0, 9.0) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="two positive"):
        drift(0.0, 1.0)
