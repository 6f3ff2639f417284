"""Series: periodic steps, compared with a plain scan and numpy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.profiles.series import Series

BUMP = Series((0.0, 1.0, 3.0), (5.0, 2.0, 2.0), 4.0)


@st.composite
def series(draw: st.DrawFn) -> Series:
    steps = draw(st.lists(st.integers(1, 50), min_size=1, max_size=12))
    times = tuple(float(t) / 8.0 for t in np.concatenate([[0], np.cumsum(steps)]))
    values = draw(
        st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=len(steps), max_size=len(steps))
    )
    return Series(times[:-1], tuple(values), times[-1])


def test_holds_each_value_until_the_next_and_begins_again() -> None:
    assert [BUMP.at(t) for t in (0.0, 0.99, 1.0, 3.5, 4.0, 5.0)] == [5.0, 5.0, 2.0, 2.0, 5.0, 2.0]


def test_a_row_that_repeats_its_value_is_no_change() -> None:
    assert [BUMP.next_change(t) for t in (0.0, 1.0, 3.9, 4.0)] == [1.0, 4.0, 4.0, 5.0]


def test_a_constant_never_changes() -> None:
    constant = Series((0.0, 1.0), (3.0, 3.0), 2.0)
    assert constant.is_constant
    assert constant.next_change(7.0) is None
    assert Series.constant(3.0).at(1e9) == 3.0


@given(series(), st.integers(0, 999))
def test_the_next_change_is_the_first_other_value(track: Series, eighths: int) -> None:
    t = eighths / 8.0
    change = track.next_change(t)
    if change is None:
        assert track.is_constant
        return
    assert change > t
    between = np.arange(t, change, 1 / 8)
    assert {track.at(moment) for moment in between} == {track.at(t)}
    assert track.at(change) != track.at(t)


@given(series(), st.lists(st.tuples(st.integers(0, 999), st.integers(-2, 20)), min_size=1))
def test_any_previous_step_gives_the_same_value(
    track: Series, looks: list[tuple[int, int]]
) -> None:
    for eighths, step in looks:
        t = eighths / 8.0
        value, until, found = track.followed(t, step)
        assert (value, until) == track.held(t)
        assert value == track.at(t) == track.values[found]
        assert track.t_s[found] <= t % track.period_s


@given(series(), st.integers(0, 400), st.integers(0, 400))
def test_the_integral_is_the_sum_of_its_eighths(track: Series, start: int, length: int) -> None:
    moments = (start + np.arange(length)) / 8.0
    total = sum(track.at(moment) for moment in moments) / 8.0
    assert track.integral(start / 8.0, (start + length) / 8.0) == pytest.approx(total, abs=1e-9)


def test_the_mean_weighs_values_by_their_time() -> None:
    assert BUMP.mean == pytest.approx((5.0 + 3 * 2.0) / 4.0)
    assert (BUMP.lowest, BUMP.highest) == (2.0, 5.0)
    assert Series.sampled([5.0, 2.0, 2.0, 2.0], 1.0).mean == BUMP.mean


@pytest.mark.parametrize(
    ("times", "values", "period_s", "words"),
    [
        ((), (), 1.0, "as many times as values, at least one, got 0 and 0"),
        ((0.0, 1.0), (1.0,), 2.0, "got 2 and 1"),
        ((0.5,), (1.0,), 1.0, "must begin at 0 s, got 0.5"),
        ((0.0, 2.0, 2.0), (1.0, 1.0, 1.0), 3.0, "got 2.0 after 2.0 at row 2"),
        ((0.0, math.nan), (1.0, 1.0), 3.0, "got nan after 0.0 at row 1"),
        ((0.0, 2.0), (1.0, 1.0), 2.0, "got 2.0 after 2.0 at row 2"),
        ((0.0,), (1.0,), math.inf, "got inf after 0.0 at row 1"),
        ((0.0, 1.0), (1.0, -1.0), 2.0, "got -1.0 at row 1"),
        ((0.0, 1.0), (math.nan, 1.0), 2.0, "got nan at row 0"),
    ],
)
def test_a_bad_series_is_refused_by_row(
    times: tuple[float, ...], values: tuple[float, ...], period_s: float, words: str
) -> None:
    with pytest.raises(ValueError, match=r"^series: ") as caught:
        Series(times, values, period_s)
    assert words in str(caught.value)


@given(series(), st.integers(0, 999), st.integers(0, 999))
def test_starting_later_shifts_the_series(track: Series, start: int, eighths: int) -> None:
    moved = track.starting_at(start / 8.0)
    assert moved.period_s == track.period_s
    assert moved.at(eighths / 8.0) == track.at((start + eighths) / 8.0)


def test_starting_anywhere_keeps_the_rules_of_series() -> None:
    rng = np.random.default_rng(1)
    steps = np.cumsum(rng.random(200))
    track = Series((0.0, *steps[:-1].tolist()), tuple(rng.random(200).tolist()), float(steps[-1]))
    for start in [*rng.random(200) * 3 * track.period_s, *steps.tolist()]:
        moved = track.starting_at(float(start))  # would raise
        assert moved.mean == pytest.approx(track.mean, rel=1e-6)
