"""A schedule returns the conditions at a time, and the time of the next change."""

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


def test_a_constant_profile_has_the_conditions_of_the_start() -> None:
    for name in profiles.names():
        profile = profiles.load(name)
        tracks = device_tracks(
            profile, profile.link, lambda trace, column: ONE, np.random.default_rng(7)
        )
        spec = device_spec(name, profile, host_core_speed=2.0)
        schedule = device_schedule(profile, tracks, 2.0)
        if schedule.is_constant and spec.device is not None:
            now = schedule.conditions(12.3)
            assert now.speed_ratio == pytest.approx(spec.device.speed_ratio)
            assert now.shape == spec.shape
            assert (now.outage, now.is_willing, now.clock_ratio) == (None, True, 1.0)
            assert schedule.next_change(0.0) is None


def test_this_machine_is_neither_slowed_nor_shaped() -> None:
    now = Schedule().conditions(5.0)
    assert (now.speed_ratio, now.shape, now.outage, now.is_willing) == (None, None, None, True)


def test_a_rate_of_zero_is_a_coverage_outage() -> None:
    schedule = Schedule(link=link(Series((0.0, 2.0), (1e6, 0.0), 4.0), Series.constant(5e5)))
    assert schedule.conditions(1.0).outage is None
    assert schedule.conditions(1.0).shape == Shape(down_bps=1e6, up_bps=5e5)
    outage = schedule.conditions(2.0)
    assert outage.outage == "coverage"
    assert outage.shape is not None
    assert outage.shape.down_bps == MIN_BPS  # a legal rate for every backend
    assert schedule.next_change(0.0) == 2.0
    assert schedule.next_change(2.0) == 4.0


def test_other_work_and_the_clock_slow_training() -> None:
    load, clock = Series((0.0, 1.0), (0.0, 3.5), 2.0), Series((0.0, 4.0), (1.0, 0.5), 8.0)
    schedule = Schedule(speed=speed(clock, load))
    speeds = [schedule.conditions(t).speed_ratio for t in (0.0, 1.0, 4.0, 5.0)]
    assert speeds == pytest.approx([0.8, 0.2, 0.4, 0.1])
    assert [schedule.conditions(t).clock_ratio for t in (0.0, 4.0)] == [1.0, 0.5]


def test_heat_slows_the_remaining_speed() -> None:
    now = Schedule(speed=speed()).conditions(0.0, 0.6, 81.0)
    assert now.speed_ratio == pytest.approx(0.48)
    assert now.clock_ratio == 0.6
    assert now.temperature_celsius == 81.0


@pytest.mark.parametrize(
    ("unavailable_as", "is_willing", "outage"),
    [("unwilling", False, None), ("unplugged", True, "unplugged")],
)
def test_an_unavailable_device_reports_it_or_cannot_be_reached(
    unavailable_as: str, is_willing: bool, outage: str | None
) -> None:
    schedule = Schedule(
        available=Series((0.0, 10.0), (1.0, 0.0), 20.0),
        unavailable_as=unavailable_as,  # type: ignore[arg-type]  # one of the two
    )
    assert schedule.conditions(9.9).is_willing
    unavailable = schedule.conditions(10.0)
    assert (unavailable.is_willing, unavailable.outage) == (is_willing, outage)


def test_the_most_severe_outage_counts() -> None:
    schedule = Schedule(
        link=link(Series.constant(0.0)),
        outages=(OutageWindow(1.0, 3.0, "unplugged"), OutageWindow(2.0, 4.0, "frozen")),
    )
    assert [schedule.conditions(t).outage for t in (0.0, 1.0, 2.0, 3.0, 4.0)] == [
        "coverage",
        "unplugged",
        "frozen",
        "frozen",
        "coverage",
    ]
    assert [schedule.next_change(t) for t in (0.0, 1.0, 2.0, 3.0, 4.0)] == [
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
    schedule = Schedule(link=link(Series.sampled(rates, step_s)))
    now, change = schedule.conditions(t), schedule.next_change(t)
    if change is None:
        assert schedule.conditions(t + 1e5) == now
        return
    assert change > t
    for share in (0.1, 0.5, 0.9):
        between = t + share * (change - t)
        if change - between > 1e-4:
            assert schedule.conditions(between) == now
    assert schedule.next_change(change) != change  # otherwise a follower would never advance


@pytest.mark.parametrize("step_s", [0.1, 0.3, 1.0 / 3.0, 0.7])
def test_a_change_is_in_effect_at_its_own_time(step_s: float) -> None:
    values = [1e6, 2e6, 3e6]
    schedule = Schedule(link=link(Series.sampled(values, step_s)))
    t = 0.0
    for number in range(1, 3000):
        change = schedule.next_change(t)
        assert change is not None
        t = change
        assert t == pytest.approx(number * step_s)
        shape = schedule.conditions(t).shape
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
