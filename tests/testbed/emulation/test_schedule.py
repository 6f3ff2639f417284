"""A schedule returns the conditions at a time, and the time of the next change."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed import profiles
from fairbed.profiles import LinkQueue, device_tracks
from fairbed.profiles.series import Series
from fairbed.profiles.tracks import LinkTracks
from fairbed.testbed.backends.base import device_spec
from fairbed.testbed.emulation.conditions import Conditions, Outage, Shape
from fairbed.testbed.emulation.schedule import (
    MIN_BPS,
    ROUNDING_S,
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


def rates(now: Conditions) -> list[float | None]:
    assert now.shape is not None
    return [now.shape.down_bps, now.shape.up_bps]


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
    assert schedule.conditions(1.0).shape == Shape(
        down_bps=1e6, up_bps=5e5, down_queue_bytes=15_140, up_queue_bytes=15_140
    )
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


def test_the_mean_of_a_tick_has_the_volume_of_the_trace() -> None:
    fast = Schedule(link=link(Series.sampled([20e6, 0.0], 0.05)))
    now = fast.mean_conditions(0.0, 0.1)
    assert now.outage is None
    assert rates(now) == pytest.approx([10e6, 10e6])
    assert rates(fast.conditions(0.0)) == [20e6, 20e6]


def test_a_whole_tick_without_coverage_is_an_outage_and_a_part_is_in_the_mean() -> None:
    hole = Schedule(link=link(Series((0.0, 1.03, 1.57), (10e6, 0.0, 10e6), 4.0)))
    ticks = [hole.mean_conditions(tick / 10, 0.1) for tick in range(9, 17)]
    assert [now.outage for now in ticks] == [None, None, *["coverage"] * 4, None, None]
    assert rates(ticks[1]) == rates(ticks[6]) == pytest.approx([3e6, 3e6])


def test_a_hole_of_one_direction_stops_both_in_the_mean_too() -> None:
    down, up = Series.sampled([8e6, 4e6], 0.04), Series.sampled([2e6, 0.0, 1e6], 0.05)
    schedule = Schedule(link=link(down, up))
    expected = [(8e6 * 0.04 + 4e6 * 0.01) / 0.1, 2e6 * 0.05 / 0.1]
    assert rates(schedule.mean_conditions(0.0, 0.1)) == pytest.approx(expected)


def test_delay_jitter_loss_and_speed_are_means_over_the_time_of_a_tick() -> None:
    tracks = LinkTracks(
        down_bps=Series.constant(1e6),
        up_bps=Series.constant(1e6),
        delay_s=Series.sampled([0.010, 0.030], 0.05),
        jitter_s=Series.sampled([0.002, 0.004], 0.05),
        loss_ratio=Series.sampled([0.0, 0.1], 0.025),
    )
    clock = Series.sampled([1.0, 0.5], 0.05)
    now = Schedule(speed=speed(clock), link=tracks).mean_conditions(0.0, 0.1, 0.8, 70.0)
    assert now.shape is not None
    means = [now.shape.delay_s, now.shape.jitter_s, now.shape.loss_ratio]
    assert means == pytest.approx([0.020, 0.003, 0.05])
    assert now.speed_ratio == pytest.approx(0.4 * 2 * 0.75 * 0.8)
    assert now.clock_ratio == pytest.approx(0.75 * 0.8)
    assert now.temperature_celsius == 70.0


def test_a_coverage_window_is_in_the_mean_and_other_states_are_those_of_the_tick() -> None:
    def at(tick: int, kind: Outage) -> tuple[Outage | None, float | None]:
        window = OutageWindow(0.13, 0.34, kind)
        schedule = Schedule(link=link(Series.constant(1e6)), outages=(window,))
        now = schedule.mean_conditions(tick / 10, 0.1)
        assert now.shape is not None
        return now.outage, None if now.outage else now.shape.down_bps

    assert [at(tick, "coverage") for tick in range(5)] == [
        (None, 1e6),
        (None, pytest.approx(0.3e6)),
        ("coverage", None),
        (None, pytest.approx(0.6e6)),
        (None, 1e6),
    ]
    for kind in ("unplugged", "frozen"):
        assert [at(tick, kind)[0] for tick in range(5)] == [None, None, kind, kind, None]


@given(
    st.lists(st.sampled_from([0.0, 1e5, 3e6, 2e7]), min_size=1, max_size=12),
    st.lists(st.sampled_from([0.0, 1e5, 3e6]), min_size=1, max_size=5),
    st.sampled_from([0.013, 0.02, 0.05, 0.1, 0.25, 1.0 / 3.0]),
    st.sampled_from([0.03, 0.1, 0.7]),
)
def test_the_means_of_all_ticks_have_the_volume_that_a_replay_integrates(
    down: list[float], up: list[float], down_step_s: float, up_step_s: float
) -> None:
    schedule = Schedule(link=link(Series.sampled(down, down_step_s), Series.sampled(up, up_step_s)))
    given_bits = [0.0, 0.0]
    for tick in range(40):
        now = schedule.mean_conditions(tick / 10, 0.1)
        if now.outage is None and now.shape is not None:
            given_bits[0] += 0.1 * (now.shape.down_bps or 0.0)
            given_bits[1] += 0.1 * (now.shape.up_bps or 0.0)
    exact_bits, t = [0.0, 0.0], 0.0
    while t < 4.0 - ROUNDING_S:  # as `testbed.replay.world.integrals` steps through a schedule
        now, change = schedule.conditions(t), schedule.next_change(t)
        until = 4.0 if change is None else min(change, 4.0)
        if now.outage is None and now.shape is not None:
            exact_bits[0] += (until - t) * (now.shape.down_bps or 0.0)
            exact_bits[1] += (until - t) * (now.shape.up_bps or 0.0)
        t = until
    least = 40 * 0.1 * MIN_BPS  # of a tick with a lower mean
    assert given_bits == pytest.approx(exact_bits, rel=1e-4, abs=least)


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


def test_a_queue_keeps_the_size_that_its_fastest_rate_gives_it() -> None:
    rates = Series((0.0, 2.0), (1e6, 8e6), 4.0)
    queue = LinkQueue(depth_s=0.3, discipline="fq_codel")
    schedule = Schedule(link=replace(link(rates, Series.constant(1e6)), queue=queue))
    shapes = [schedule.conditions(t).shape for t in (1.0, 3.0)]
    assert [shape and shape.down_queue_bytes for shape in shapes] == [313_674, 313_674]
    assert [shape and shape.up_queue_bytes for shape in shapes] == [39_209, 39_209]
    assert [shape and shape.codel_target_s for shape in shapes] == [0.005, 0.005]
