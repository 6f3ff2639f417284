"""What the last seconds of a planned link say, beside the instant of a selection."""

import pytest

from experiments.oracle.errors import RecentRate
from fairbed.profiles.series import Series

MB = 1_000_000
STEPS = Series.sampled([8e6] * 5 + [2e6] * 5, 1.0)


def test_the_last_five_seconds_by_hand() -> None:
    """3 s at 8 Mbit/s and 2 s at 2: 5.6 on average, 2 at the instant."""
    assert RecentRate(STEPS, 0.0).extra_s(MB, 7.0, 7.0) == pytest.approx(8.0 / 5.6 - 8.0 / 2.0)


def test_they_reach_back_over_the_end_of_a_course_and_not_before_its_beginning() -> None:
    assert RecentRate(STEPS, 0.0).extra_s(MB, 12.0, 12.0) == pytest.approx(8.0 / 4.4 - 8.0 / 8.0)
    assert RecentRate(STEPS, 0.0).extra_s(MB, 3.0, 3.0) == pytest.approx(0.0, abs=1e-12)
    assert RecentRate(STEPS, 0.0).extra_s(MB, 0.0, 0.0) == 0.0


def test_tcp_waits_less_where_the_line_is_slower() -> None:
    """10,000 bytes are one window, which nothing waits for; of 100,000 the first windows are."""
    slow = RecentRate(STEPS, 0.06)
    assert slow.extra_s(10_000, 7.0, 7.0) == pytest.approx(0.08 / 5.6 - 0.08 / 2.0)
    lines_s = 0.8 / 5.6 - 0.8 / 2.0
    first_window_s = 8.0 * 14480 / 5.6e6
    waiting_s = (0.06 - first_window_s) + (0.06 - 2.0 * first_window_s) - (0.06 - 8.0 * 14480 / 2e6)
    assert slow.extra_s(100_000, 7.0, 7.0) == pytest.approx(lines_s + waiting_s)


def test_what_was_told_earlier_is_of_earlier_seconds() -> None:
    """The 5 s until 6 s, 4 of them fast, beside what holds at 7 s."""
    assert RecentRate(STEPS, 0.0).extra_s(MB, 7.0, 6.0) == pytest.approx(8.0 / 6.8 - 8.0 / 2.0)


def test_a_link_that_never_moves_takes_no_longer() -> None:
    assert RecentRate(Series.constant(3e6), 0.06).extra_s(MB, 7.0, 7.0) == 0.0


def test_in_a_hole_the_instant_counts_as_the_mean_as_in_a_replay() -> None:
    series = Series.sampled([8e6] * 9 + [0.0], 1.0)
    recent_bps = (4.8 * 8e6) / 5.0
    assert RecentRate(series, 0.0).extra_s(MB, 9.2, 9.2) == pytest.approx(
        8e6 / recent_bps - 8.0 / 7.2
    )


def test_a_link_that_was_gone_for_long_is_thought_to_carry_a_little() -> None:
    series = Series.sampled([8e6] * 5 + [0.0] * 6, 1.0)
    extra_s = RecentRate(series, 0.0).extra_s(1000, 10.5, 10.5)
    assert extra_s == pytest.approx(8e3 / 1e3 - 8e3 / series.mean)
