"""Durations of transfers and work under varying conditions, compared with the emulation."""

from math import inf

import numpy as np
import pytest

from fairbed.profiles.quantities import Quantity
from fairbed.profiles.schema import Thermal
from fairbed.profiles.series import Series
from fairbed.profiles.tracks import LinkTracks
from fairbed.testbed.emulation.heat import Heat
from fairbed.testbed.emulation.link import LinkDirection
from fairbed.testbed.emulation.schedule import (
    LOAD_INTERVAL_S,
    OutageWindow,
    Schedule,
    ScheduleFollower,
    Speed,
)
from fairbed.testbed.emulation.tcp import slow_start_s
from fairbed.testbed.replay.world.integrals import ComputeIntegral, LinkIntegral

NONE = Series.constant(0.0)
STEPS = Series((0.0, 1.0, 3.0, 4.5), (8e6, 2e6, 0.0, 16e6), 6.0)
THERMAL = Thermal(
    sustained=Quantity(value=0.5, tag="literature", source="made up"),
    onset=Quantity(value=20.0, tag="literature", source="made up"),
    time_constant=Quantity(value=30.0, tag="literature", source="made up"),
)


def link(down: Series = STEPS, *outages: OutageWindow) -> Schedule:
    up = Series.constant(1e6)
    tracks = LinkTracks(down, up, Series.constant(0.02), NONE, NONE)
    return Schedule(link=tracks, outages=outages)


def processor(busy: Series = NONE, *outages: OutageWindow) -> Schedule:
    speed = Speed(
        per_core=0.5, threads=1, cores=2, clock_ratio=Series.constant(1.0), background_load=busy
    )
    return Schedule(speed=speed, outages=outages)


def test_bits_take_the_integral_of_the_rate() -> None:
    integral = LinkIntegral(link(), 1e3)
    assert integral.carry(0.0, 8e6, "down") == pytest.approx(1.0)
    assert integral.carry(0.5, 8e6, "down") == pytest.approx(3.0)  # 4 + 4 Mbit
    assert integral.carry(0.5, 9e6, "down") == pytest.approx(4.5 + 1e6 / 16e6)
    assert integral.carry(3.2, 0.0, "down") == pytest.approx(4.5)
    assert integral.carry(0.0, 8e6, "up") == pytest.approx(11.0)  # no bits pass during an outage
    assert integral.carry(6.0 * 7, 8e6, "down") == pytest.approx(43.0)


def test_a_transfer_waits_for_acknowledgements_until_its_windows_fill_the_line() -> None:
    """A round trip of 40 ms; windows of 14.48, 28.96, 57.92 kB ..."""
    integral = LinkIntegral(link(Series.constant(8e6)), 1e3)
    assert integral.transfer(0.0, 8e4, "down") == pytest.approx(0.01)
    assert integral.transfer(0.0, 8 * 40e3, "down") == pytest.approx(0.04 + (40e3 - 14480) / 1e6)
    assert integral.transfer(0.0, 8 * 86e3, "down") == pytest.approx(0.08 + (86e3 - 43440) / 1e6)
    assert integral.transfer(0.0, 8 * 1e6, "down") == pytest.approx(0.08 + (1e6 - 43440) / 1e6)
    assert integral.transfer(0.0, 8 * 40e3, "up") == pytest.approx(0.32)  # 1 Mbit/s is always busy


@pytest.mark.parametrize("down_bps", [5e5, 4e6, 1.7e7, 3e8])
@pytest.mark.parametrize("n_bytes", [1e3, 2e4, 86634, 4.4e6])
def test_a_fleet_waits_as_its_devices_do(down_bps: float, n_bytes: float) -> None:
    transmission_s = 8 * n_bytes / down_bps
    walked_s = LinkIntegral(link(Series.constant(down_bps)), 1e3).transfer(0.0, 8 * n_bytes, "down")
    waited_s = slow_start_s(8 * n_bytes, np.array([transmission_s]), np.array([0.04]))
    assert transmission_s + waited_s[0] == pytest.approx(walked_s)
    assert not slow_start_s(8 * n_bytes, np.array([transmission_s]), np.array([0.0])).any()


@pytest.mark.parametrize("kind", ["coverage", "unplugged", "frozen"])
def test_no_bits_pass_in_an_outage(kind: str) -> None:
    window = OutageWindow(0.5, 10.0, kind)  # type: ignore[arg-type]  # each of the three
    integral = LinkIntegral(link(Series.constant(8e6), window), 1e3)
    assert integral.carry(0.0, 8e6, "down") == pytest.approx(10.5)


@pytest.mark.parametrize(
    ("kind", "lasts_s", "gone_at"),
    [
        ("coverage", 14.0, inf),
        ("coverage", 16.0, 20.0),
        ("frozen", 16.0, 20.0),
        ("unplugged", 4.0, inf),
        ("unplugged", 6.0, 10.0),
    ],
)
def test_a_silent_device_is_lost(kind: str, lasts_s: float, gone_at: float) -> None:
    window = OutageWindow(5.0, 5.0 + lasts_s, kind)  # type: ignore[arg-type]  # each of the three
    integral = LinkIntegral(link(Series.constant(8e6), window), 1e3)
    assert integral.gone_at(0.0, 60.0) == pytest.approx(gone_at)
    assert integral.gone_at(0.0, 7.0) == inf


def test_a_transfer_that_never_ends_is_infinite() -> None:
    assert LinkIntegral(link(Series((0.0,), (0.0,), 1.0)), 1e3).carry(0.0, 1.0, "down") == inf
    assert LinkIntegral(link(Series.constant(1e3)), 10.0).carry(inf, 1.0, "down") == inf
    dead = processor(NONE, OutageWindow(0.0, 1e8, "frozen"))
    assert ComputeIntegral(dead, None, 0.5, 100.0).work(0.0, 1.0) == inf


@pytest.mark.parametrize("start", [0.0, 0.7, 2.2, 3.3, 5.9])
@pytest.mark.parametrize("megabits", [0.1, 3.0, 25.0])
def test_the_duration_equals_that_of_the_emulation(start: float, megabits: float) -> None:
    schedule = link()
    now = schedule.conditions(start)

    def rate(t: float) -> float:
        conditions = schedule.conditions(t)
        assert conditions.shape is not None
        return (conditions.shape.down_bps or 0.0) if conditions.outage is None else 0.0

    line = LinkDirection(rate(start), 0.0, free_at=start)
    piece = line.send(start, int(megabits * 1e6 / 8))
    t = start
    while piece.left_at == inf or piece.left_at > (schedule.next_change(t) or inf):
        t = schedule.next_change(t) or inf
        line.change(t, rate(t), 0.0)
    assert now.shape is not None
    assert LinkIntegral(schedule, 1e3).carry(start, megabits * 1e6, "down") == pytest.approx(
        piece.left_at
    )


def test_work_takes_the_integral_of_the_speed() -> None:
    busy = Series((0.0, 2.0), (0.0, 1.5), 10.0)  # half a core is left from 2 s on
    work_integral = ComputeIntegral(processor(busy), None, 0.5, 1e3)
    assert work_integral.work(0.0, 1.0) == pytest.approx(2.0)
    assert work_integral.work(0.0, 1.5) == pytest.approx(4.0)
    frozen = ComputeIntegral(processor(NONE, OutageWindow(1.0, 4.0, "frozen")), None, 0.5, 1e3)
    assert frozen.work(0.0, 1.0) == pytest.approx(5.0)


def test_heat_slows_work_down_as_the_emulation_does() -> None:
    schedule = processor()
    heat = Heat(THERMAL)
    work_integral = ComputeIntegral(schedule, heat, 0.5, 1e5)
    follower = ScheduleFollower(schedule, THERMAL, cores=2, threads=1)
    # The follower of the emulation, with which the device computes without a pause.
    t, done, speed = 0.0, 0.0, 0.5
    follower.update_heat(0.0, 0.0)
    follower.conditions(0.0)
    while done < 200.0:
        t, done = t + LOAD_INTERVAL_S, done + LOAD_INTERVAL_S * speed
        follower.update_heat(t, done)
        speed = follower.conditions(t).speed_ratio or 0.0
    end = t - (done - 200.0) / speed
    assert work_integral.work(0.0, 200.0) == pytest.approx(end, abs=LOAD_INTERVAL_S)
    assert end > 450.0, "the device was throttled"


def test_a_hot_device_is_slow_until_it_cools_down() -> None:
    heat = Heat(THERMAL)
    work_integral = ComputeIntegral(processor(), heat, 1.0, 1e5)
    took = work_integral.work(0.0, 20.0)
    assert took == pytest.approx(20.0 + (20.0 - 20.0 * 0.5) / 0.25, rel=0.1)
    assert heat.is_throttled
    rested = ComputeIntegral(processor(), heat, 1.0, 1e5).work(took + 300.0, 1.0)
    assert rested - (took + 300.0) == pytest.approx(2.0)


def test_a_link_without_a_limit_takes_no_time() -> None:
    free = LinkIntegral(Schedule(outages=(OutageWindow(2.0, 3.0, "coverage"),)), 1e3)
    assert free.carry(1.0, 8e9, "down") == 1.0
    assert free.transfer(2.5, 8e9, "up") == 3.0
