"""The driver applies each change at its tick, and only what has changed."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise

import anyio
import pytest

from fairbed.profiles.series import Series
from fairbed.testbed.backends.schedule_driver import (
    RECORD_INTERVAL_S,
    TICK_S,
    LoopClock,
    ScheduleDriver,
)
from fairbed.testbed.emulation.condition_log import ConditionMeans
from fairbed.testbed.emulation.conditions import Conditions
from fairbed.testbed.emulation.schedule import (
    LOAD_INTERVAL_S,
    OutageWindow,
    Schedule,
    ScheduleFollower,
    Speed,
)
from tests.testbed.emulation.test_heat import thermal
from tests.testbed.emulation.test_schedule import ONE, ZERO, link

LIMIT_S = 60.0


class OverError(Exception):
    """The time of a test is over."""


class FakeClock:
    """A clock that advances only when a task sleeps or works."""

    def __init__(self, until: float, late_s: Callable[[float], float] = lambda now: 0.0) -> None:
        self.time = 1000.0
        self._until, self._late_s = self.time + until, late_s

    def now(self) -> float:
        return self.time

    async def sleep_until(self, instant: float) -> None:
        await anyio.lowlevel.checkpoint()
        if instant > self._until:
            self.time = self._until
            raise OverError
        self.time = max(self.time, instant) + self._late_s(instant - 1000.0)


class Fleet:
    """Records which conditions were applied at which time."""

    def __init__(self, clock: FakeClock, takes_s: float = 0.0) -> None:
        self._clock, self._takes_s = clock, takes_s
        self.applied: list[tuple[float, dict[str, Conditions]]] = []
        self.cpu_s_at: Callable[[float], float] = lambda now: 0.0
        self.n_reads = 0

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        self.applied.append((self._clock.now() - 1000.0, dict(conditions)))
        self._clock.time += self._takes_s

    def cpu_s(self, name: str) -> float | None:
        self.n_reads += 1
        return self.cpu_s_at(self._clock.now() - 1000.0)

    def times(self, name: str) -> list[float]:
        return [now for now, changed in self.applied if name in changed]


def drive(
    followers: Mapping[str, ScheduleFollower],
    clock: FakeClock,
    fleet: Fleet,
    note: Callable[[str, ConditionMeans], None] | None = None,
    start_s: float = 0.0,
    dilation: float = 1.0,
) -> ScheduleDriver:
    driver = ScheduleDriver(
        fleet, followers, clock=clock, note=note, start_s=start_s, dilation=dilation
    )

    async def run() -> None:
        with anyio.fail_after(LIMIT_S), suppress(OverError):
            await driver.run()

    anyio.run(run)
    return driver


def trace(values: list[float], step_s: float = 1.0, **others: object) -> ScheduleFollower:
    return ScheduleFollower(Schedule(link=link(Series.sampled(values, step_s))))


def test_after_a_day_every_change_is_still_at_its_time() -> None:
    clock = FakeClock(86_400.0, late_s=lambda now: 0.004)
    fleet = Fleet(clock, takes_s=0.002)
    minutes = trace([1e6, 2e6], 60.0)
    driver = drive({"device": minutes}, clock, fleet)
    times = fleet.times("device")
    assert len(times) == 86_400 / 60.0 + 1
    assert all(now == pytest.approx(60.0 * n + 0.004, abs=1e-6) for n, now in enumerate(times))
    assert driver.punctuality.skipped == 0
    assert driver.punctuality.late_p99_s == pytest.approx(0.006, abs=1e-6)


@pytest.mark.parametrize("step_s", [0.02, 0.05, 0.25, 0.37])
def test_a_driver_applies_the_mean_of_the_trace_over_each_tick(step_s: float) -> None:
    """Issue 19: 20 and 0 Mbit/s every 50 ms gave 20 Mbit/s, the rate at the ticks."""
    clock = FakeClock(30.0)
    fleet = Fleet(clock)
    series = Series.sampled([20e6, 0.0], step_s)
    drive({"device": ScheduleFollower(Schedule(link=link(series)))}, clock, fleet)
    changes = [(now, changed["device"]) for now, changed in fleet.applied]
    bits = 0.0
    for (now, applied), (until, _) in pairwise([*changes, (30.0, changes[-1][1])]):
        if applied.outage is None and applied.shape is not None:
            bits += (applied.shape.down_bps or 0.0) * (until - now)
    assert bits == pytest.approx(series.integral(0.0, 30.0), rel=1e-4)


def test_changes_of_one_tick_are_applied_in_one_call() -> None:
    clock = FakeClock(10.0)
    fleet = Fleet(clock)
    followers = {
        f"device-{n}": ScheduleFollower(
            Schedule(link=link(Series.sampled([1e6, 2e6], 1.0).starting_at(0.001 * n)))
        )
        for n in range(50)
    }
    drive(followers, clock, fleet)
    assert [len(changed) for _, changed in fleet.applied] == [50, *[49, 50] * 10]
    # device 0 changes at ticks; the others have a tick with the mean of both rates before


def test_a_change_within_a_tick_is_in_the_mean_of_that_tick_and_whole_in_the_next() -> None:
    clock = FakeClock(100.0)
    fleet = Fleet(clock)
    step_s = 0.73
    rates = [1e6, 2e6, 3e6]
    drive({"device": trace(rates, step_s)}, clock, fleet)
    series = Series.sampled(rates, step_s)
    for now, changed in fleet.applied[:-1]:
        shape = changed["device"].shape
        assert shape is not None
        mean = series.integral(now, now + TICK_S) / TICK_S
        assert shape.down_bps == pytest.approx(mean, rel=1e-4)
    assert 2 * 136 - 14 < len(fleet.applied) <= 2 * 136 + 1  # 136 changes, few at a tick


def test_a_driver_that_wakes_up_late_skips_and_counts_missed_ticks() -> None:
    clock = FakeClock(20.0, late_s=lambda now: 5.03 if 7.95 < now < 8.05 else 0.0)
    fleet = Fleet(clock)
    rising = [1e6 * (n + 1) for n in range(100)]
    driver = drive({"device": trace(rising, 0.1)}, clock, fleet)
    times = fleet.times("device")
    rates = [
        changed["device"].shape.down_bps for _, changed in fleet.applied if changed["device"].shape
    ]
    late = next(i for i, now in enumerate(times) if now > 8.05)
    assert times[late] == pytest.approx(13.03)
    assert rates[late] == rising[130 % 100]  # the rate at 13.0 s: missed ticks are skipped
    assert times[late + 1] == pytest.approx(13.1)
    punctuality = driver.punctuality
    assert punctuality.skipped == 50
    assert punctuality.late_max_s == pytest.approx(5.03)
    assert punctuality.late_p50_s == pytest.approx(0.0, abs=1e-6)


def test_a_backend_that_is_slow_costs_ticks_but_no_drift() -> None:
    clock = FakeClock(60.0)
    fleet = Fleet(clock, takes_s=0.25)
    rising = [1e6 * (n + 1) for n in range(1000)]
    driver = drive({"device": trace(rising, 0.1)}, clock, fleet)
    assert driver.punctuality.skipped > 100
    for now, changed in fleet.applied:
        shape = changed["device"].shape
        assert shape is not None
        assert shape.down_bps == rising[int(now / TICK_S + 1e-6)]  # the rate at this time


def test_a_device_that_heats_up_is_read_and_changed_only_when_it_throttles() -> None:
    clock = FakeClock(300.0)
    fleet = Fleet(clock)
    speed = Speed(per_core=0.25, threads=1, cores=1, clock_ratio=ONE, background_load=ZERO)
    hot = thermal(onset_s=60.0, time_constant_s=60.0)
    follower = ScheduleFollower(Schedule(speed=speed), hot)
    fleet.cpu_s_at = lambda now: 0.25 * min(now, 100.0)  # it trains for 100 s
    drive({"pi": follower}, clock, fleet)
    changes = [(now, changed["pi"].clock_ratio) for now, changed in fleet.applied]
    assert [ratio for _, ratio in changes] == [1.0, 0.6, 1.0]
    assert 60.0 <= changes[1][0] <= 60.0 + 2 * LOAD_INTERVAL_S
    assert changes[2][0] > 100.0
    assert fleet.n_reads == 300.0 / LOAD_INTERVAL_S + 1


def test_a_resumed_run_continues_in_its_traces() -> None:
    clock = FakeClock(1.0)
    fleet = Fleet(clock)
    drive({"device": trace([1e6, 2e6, 3e6], 10.0)}, clock, fleet, start_s=25.0)
    shape = fleet.applied[0][1]["device"].shape
    assert shape is not None
    assert shape.down_bps == 3e6


def test_the_last_conditions_are_recorded_when_the_run_ends() -> None:
    clock = FakeClock(500.0)
    fleet = Fleet(clock)
    recorded: list[ConditionMeans] = []
    window = OutageWindow(12.0, 15.0, "unplugged")
    follower = ScheduleFollower(Schedule(outages=(window,)))
    drive({"device": follower}, clock, fleet, lambda _, means: recorded.append(means))
    assert [(s.start_s, s.end_s, s.outage_s) for s in recorded] == [
        pytest.approx((0.0, 12.0, 0.0)),
        pytest.approx((12.0, 15.0, 3.0)),
        pytest.approx((15.0, 500.0, 0.0)),
    ]


def test_an_outage_begins_and_ends_at_its_time() -> None:
    clock = FakeClock(30.0)
    fleet = Fleet(clock)
    window = OutageWindow(12.0, 15.0, "unplugged")
    drive({"device": ScheduleFollower(Schedule(outages=(window,)))}, clock, fleet)
    assert [(now, changed["device"].outage) for now, changed in fleet.applied] == [
        (0.0, None),
        (pytest.approx(12.0), "unplugged"),
        (pytest.approx(15.0), None),
    ]


def test_configured_means_are_recorded_once_a_second_and_add_up() -> None:
    clock = FakeClock(60.0)
    recorded: list[ConditionMeans] = []
    rates = [1e6 * (n % 7) for n in range(1, 50)]
    follower = trace(rates, 0.1)
    driver = drive(
        {"device": follower}, clock, Fleet(clock), lambda _, means: recorded.append(means)
    )
    assert driver.punctuality.changes > 500
    assert len(recorded) <= 61
    assert all(s.end_s - s.start_s >= RECORD_INTERVAL_S - 1e-6 for s in recorded[:-1])
    volume = sum((s.down_bps or 0.0) * (s.end_s - s.start_s) for s in recorded)
    assert volume == pytest.approx(Series.sampled(rates, 0.1).integral(0.0, 60.0), rel=1e-3)


def test_dilation_scales_the_speed_and_keeps_the_heat() -> None:
    def heats(dilation: float) -> tuple[list[tuple[float, float]], float | None]:
        clock = FakeClock(100.0)
        fleet = Fleet(clock)
        speed = Speed(per_core=0.4, threads=1, cores=1, clock_ratio=ONE, background_load=ZERO)
        follower = ScheduleFollower(
            Schedule(speed=speed), thermal(onset_s=60.0, time_constant_s=60.0)
        )
        fleet.cpu_s_at = lambda now: 0.4 * now  # k times the time at 1 / k of the speed
        drive({"pi": follower}, clock, fleet, dilation=dilation)
        changes = [(now, changed["pi"].clock_ratio) for now, changed in fleet.applied]
        return changes, fleet.applied[0][1]["pi"].speed_ratio

    (changes, speed), (slow_changes, slow_speed) = heats(1.0), heats(4.0)
    assert slow_changes == changes
    assert speed == pytest.approx(0.4)
    assert slow_speed == pytest.approx(0.1)


def test_it_sleeps_by_the_clock_of_the_loop() -> None:
    async def run() -> None:
        clock = LoopClock()
        instant = clock.now() + 0.05
        await clock.sleep_until(instant)
        assert clock.now() >= instant

    anyio.run(run)


def test_time_between_the_making_of_a_driver_and_its_begin_counts() -> None:
    clock = FakeClock(1.0)
    fleet = Fleet(clock)
    driver = ScheduleDriver(fleet, {"d": trace([1e6, 2e6], 10.0)}, clock=clock, start_s=5.0)
    clock.time += 7.0
    clock_until = clock.time

    async def run() -> None:
        with suppress(OverError):
            await driver.run()

    anyio.run(run)
    ((at, changed),) = fleet.applied
    assert at == clock_until - 1000.0
    shape = changed["d"].shape
    assert shape is not None
    assert shape.down_bps == 2e6
