"""A follower computes heat from processor time, and a lower speed from heat."""

import pytest

from fairbed.profiles.series import Series
from fairbed.testbed.emulation.schedule import LOAD_INTERVAL_S, Schedule, ScheduleFollower, Speed
from tests.testbed.emulation.test_heat import thermal
from tests.testbed.emulation.test_schedule import ONE, ZERO, link


def follower(clock: Series = ONE) -> ScheduleFollower:
    speed = Speed(per_core=0.25, threads=1, cores=1, clock_ratio=clock, background_load=ZERO)
    hot = thermal(onset_s=60.0, time_constant_s=60.0, idle_celsius=40.0, limit_celsius=80.0)
    return ScheduleFollower(Schedule(speed=speed), hot)


def work(device: ScheduleFollower, seconds: int, busy: float) -> None:
    """Let a device compute for a share of its time, and read it every second."""
    cpu_s = 0.0
    for second in range(seconds + 1):
        device.update_heat(float(second), cpu_s)
        speed = device.conditions(float(second)).speed_ratio
        assert speed is not None
        cpu_s += busy * speed


def test_a_busy_device_throttles_after_its_onset() -> None:
    device = follower()
    work(device, 55, 1.0)
    assert device.conditions(55.0).clock_ratio == 1.0
    device = follower()
    work(device, 65, 1.0)
    hot = device.conditions(65.0)
    assert hot.clock_ratio == 0.6
    assert hot.speed_ratio == pytest.approx(0.25 * 0.6)
    assert hot.temperature_celsius is not None
    assert hot.temperature_celsius > 80.0


def test_an_idle_device_stays_cold() -> None:
    device = follower()
    work(device, 600, 0.02)
    assert device.conditions(600.0).clock_ratio == 1.0


def test_a_device_that_is_dead_cools() -> None:
    device = follower()
    work(device, 120, 1.0)
    for second in range(121, 400):
        device.update_heat(float(second), None)
    assert device.conditions(400.0).clock_ratio == 1.0


def test_a_restarted_device_has_no_negative_load() -> None:
    device = follower()
    device.update_heat(0.0, 100.0)
    device.update_heat(1.0, 0.1)
    assert device.conditions(1.0).temperature_celsius == 40.0


def test_devices_that_heat_up_are_read_at_the_same_times() -> None:
    device = follower(clock=Series((0.0, 5.5), (1.0, 0.5), 100.0))
    assert device.needs_cpu_time(5.0)
    device.update_heat(5.0, 0.0)
    assert not device.needs_cpu_time(5.0)
    assert device.next_update(5.0) == 5.5
    assert not device.needs_cpu_time(5.5)
    assert device.next_update(5.5) == 6.0  # the same time for all devices
    assert device.needs_cpu_time(6.0)
    assert LOAD_INTERVAL_S == 2.0


def test_a_device_that_never_changes_is_never_read() -> None:
    still = ScheduleFollower(Schedule())
    assert still.is_constant
    assert still.next_update(0.0) == float("inf")


def test_a_device_that_does_not_heat_up_ignores_its_processor_time() -> None:
    schedule = Schedule(link=link(Series((0.0, 2.0), (1e6, 2e6), 4.0)))
    cool = ScheduleFollower(schedule)
    assert not cool.needs_cpu_time(1e9)
    cool.update_heat(5.0, 4.0)
    assert cool.conditions(5.0) == schedule.conditions(5.0)
    assert cool.next_update(5.0) == 6.0


def test_a_follower_gives_the_mean_over_a_tick_with_its_heat() -> None:
    device = follower(clock=Series.sampled([1.0, 0.5], 0.05))
    device.update_heat(0.0, 0.0)
    assert device.conditions(0.0, 0.1).clock_ratio == pytest.approx(0.75)
    assert device.conditions(0.0).clock_ratio == 1.0
    still = ScheduleFollower(Schedule(link=link(Series.sampled([2e6, 0.0], 0.05))))
    shape = still.conditions(0.0, 0.1).shape
    assert shape is not None
    assert shape.down_bps == pytest.approx(1e6)
