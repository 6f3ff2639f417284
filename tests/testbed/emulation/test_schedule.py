"""A timeline says what holds at a moment, and when something else may."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed import profiles
from fairbed.profiles import device_tracks
from fairbed.profiles.series import Series
from fairbed.profiles.tracks import LinkTracks
from fairbed.testbed.backends.base import device_spec
from fairbed.testbed.emulation.conditions import Shape
from fairbed.testbed.emulation.schedule import (
    MIN_BPS,
    OutageWindow,
    Schedule,
    Speed,
    device_schedule,
)

ONE, ZERO = Series.constant(1.0), Series.constant(0.0)


def link(down: Series, up: Series | None = None, delay: Series = ZERO) -> LinkTracks:
    return LinkTracks(
        down_bps=down, up_bps=up or down, delay_s=delay, jitter_s=ZERO, loss_ratio=ZERO
    )


def speed(clock: Series = ONE, load: Series = ZERO) -> Speed:
    return Speed(per_core=0.4, threads=2, cores=4, clock_ratio=clock, background_load=load)


def test_a_profile_without_courses_has_what_its_device_was_started_with() -> None:
    for name in profiles.names():
        profile = profiles.load(name)
        tracks = device_tracks(
            profile, profile.link, lambda trace, column: ONE, np.random.default_rng(7)
        )
        spec = device_spec(name, profile, host_core_speed=2.0)
        timeline = device_schedule(profile, tracks, 2.0)
        if timeline.is_constant and spec.device is not None:
            now = timeline.conditions(12.3)
            assert now.speed_ratio == pytest.approx(spec.device.speed_ratio)
            assert now.shape == spec.shape
            assert (now.outage, now.is_willing, now.clock_ratio) == (None, True, 1.0)
            assert timeline.next_change(0.0) is None


def test_this_machine_is_neither_slowed_nor_shaped() -> None:
    now = Schedule().conditions(5.0)
    assert (now.speed_ratio, now.shape, now.outage, now.is_willing) == (None, None, None, True)


def test_a_rate_of_zero_is_a_radio_hole() -> None:
    timeline = Schedule(link=link(Series((0.0, 2.0), (1e6, 0.0), 4.0), Series.constant(5e5)))
    assert timeline.conditions(1.0).outage is None
    assert timeline.conditions(1.0).shape == Shape(down_bps=1e6, up_bps=5e5)
    hole = timeline.conditions(2.0)
    assert hole.outage == "coverage"
    assert hole.shape is not None
    assert hole.shape.down_bps == MIN_BPS  # a backend may set it without harm
    assert timeline.next_change(0.0) == 2.0
    assert timeline.next_change(2.0) == 4.0


def test_other_work_and_the_clock_slow_training() -> None:
    load, clock = Series((0.0, 1.0), (0.0, 3.5), 2.0), Series((0.0, 4.0), (1.0, 0.5), 8.0)
    timeline = Schedule(speed=speed(clock, load))
    speeds = [timeline.conditions(t).speed_ratio for t in (0.0, 1.0, 4.0, 5.0)]
    assert speeds == pytest.approx([0.8, 0.2, 0.4, 0.1])
    assert [timeline.conditions(t).clock_ratio for t in (0.0, 4.0)] == [1.0, 0.5]


def test_heat_slows_what_is_left() -> None:
    now = Schedule(speed=speed()).conditions(0.0, 0.6, 81.0)
    assert now.speed_ratio == pytest.approx(0.48)
    assert now.clock_ratio == 0.6
    assert now.temperature_celsius == 81.0


@pytest.mark.parametrize(
    ("unavailable_as", "is_willing", "outage"),
    [("unwilling", False, None), ("unplugged", True, "unplugged")],
)
def test_a_device_that_is_away_says_so_or_cannot_be_reached(
    unavailable_as: str, is_willing: bool, outage: str | None
) -> None:
    timeline = Schedule(
        available=Series((0.0, 10.0), (1.0, 0.0), 20.0),
        unavailable_as=unavailable_as,  # type: ignore[arg-type]  # one of the two
    )
    assert timeline.conditions(9.9).is_willing
    away_now = timeline.conditions(10.0)
    assert (away_now.is_willing, away_now.outage) == (is_willing, outage)


def test_the_worst_outage_of_a_moment_counts() -> None:
    timeline = Schedule(
        link=link(Series.constant(0.0)),
        outages=(OutageWindow(1.0, 3.0, "unplugged"), OutageWindow(2.0, 4.0, "frozen")),
    )
    assert [timeline.conditions(t).outage for t in (0.0, 1.0, 2.0, 3.0, 4.0)] == [
        "coverage",
        "unplugged",
        "frozen",
        "frozen",
        "coverage",
    ]
    assert [timeline.next_change(t) for t in (0.0, 1.0, 2.0, 3.0, 4.0)] == [
        1.0,
        2.0,
        3.0,
        4.0,
        None,
    ]


@given(
    st.lists(st.floats(0.0, 1e8), min_size=1, max_size=20),
    st.sampled_from([0.1, 0.25, 1.0, 1.0 / 3.0]),
    st.floats(0.0, 1e6),
)
def test_nothing_changes_before_the_next_change(
    rates: list[float], step_s: float, t: float
) -> None:
    timeline = Schedule(link=link(Series.sampled(rates, step_s)))
    now, change = timeline.conditions(t), timeline.next_change(t)
    if change is None:
        assert timeline.conditions(t + 1e5) == now
        return
    assert change > t
    for share in (0.1, 0.5, 0.9):
        between = t + share * (change - t)
        if change - between > 1e-4:
            assert timeline.conditions(between) == now
    assert timeline.next_change(change) != change  # else whoever follows would stand still


@pytest.mark.parametrize("step_s", [0.1, 0.3, 1.0 / 3.0, 0.7])
def test_a_change_is_in_force_at_its_own_moment(step_s: float) -> None:
    values = [1e6, 2e6, 3e6]
    timeline = Schedule(link=link(Series.sampled(values, step_s)))
    t = 0.0
    for number in range(1, 3000):
        change = timeline.next_change(t)
        assert change is not None
        t = change
        assert t == pytest.approx(number * step_s)
        shape = timeline.conditions(t).shape
        assert shape is not None
        assert shape.down_bps == values[number % 3]


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"^outage: must begin at 0 s or later and end after that, got 3\.0 to 2\.0 s",
    ):
        OutageWindow(3.0, 2.0, "frozen")


def test_a_device_without_a_profile_is_this_machine_with_a_link() -> None:
    tracks = device_tracks(None, None, lambda trace, column: ONE, np.random.default_rng(7))
    now = device_schedule(None, tracks).conditions(3.0)
    assert (now.speed_ratio, now.shape, now.outage, now.is_willing) == (None, None, None, True)
