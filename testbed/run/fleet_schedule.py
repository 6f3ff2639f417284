"""Apply the schedules of the devices during a run, and record the configured conditions."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from fairbed.coordinator.store import Store, StoreError
from fairbed.coordinator.store.tables import ConditionRow
from fairbed.testbed.backends.schedule_driver import TICK_S, Driven, ScheduleDriver
from fairbed.testbed.emulation.condition_log import ConditionMeans
from fairbed.testbed.errors import BackendError
from fairbed.testbed.experiment.fleet import PlannedDevice
from fairbed.testbed.run.stopping import StopControl

LAST_ROWS_S = 5.0
"""Longest wait for the driver to record the last conditions; seconds."""


def count_unplugged(devices: Sequence[PlannedDevice], t: float) -> int:
    """Return how many devices have no link at `t`: the start of a run does not wait for them."""
    now = (device.schedule.conditions(t) for device in devices)
    return sum(conditions.outage == "unplugged" for conditions in now)


@asynccontextmanager
async def follow_schedules(
    backend: Driven | None,
    devices: Sequence[PlannedDevice],
    store: Store,
    stop: StopControl,
    group: TaskGroup,
    dilation: float,
    run_clock: Callable[[], float],
) -> AsyncIterator[None]:
    """Apply the schedules of devices with changing conditions while the context lasts.

    Schedules follow the clock on which the run records its instants, as those of a replay do. A
    failure of the driver ends the run.

    Args:
        backend: Applies conditions; None if no device is emulated.
        devices: The fleet.
        store: Receives the configured conditions, and knows where a resumed run continues.
        stop: Ends the run after a failure.
        group: Owns the driver's task.
        dilation: Seconds of this machine in one second of the fleet.
        run_clock: Returns the seconds since the run was created, as its rows have them.
    """
    followers = {
        device.spec.name: device.follower(store.resume_offset_s())
        for device in devices
        if device.spec.is_driven
    }
    if backend is None or not followers:
        yield
        return

    def note(name: str, means: ConditionMeans) -> None:
        store.add(_row(name, means))

    driver = ScheduleDriver(backend, followers, dilation=dilation, start_s=run_clock(), note=note)
    scope, ended = anyio.CancelScope(), anyio.Event()

    async def drive() -> None:
        try:
            with scope:
                await driver.run()
        except (BackendError, StoreError) as exc:
            stop.fail(exc)
        finally:
            ended.set()

    group.start_soon(drive, name="run.driver")
    try:
        yield
    finally:
        scope.cancel()
        with anyio.move_on_after(LAST_ROWS_S, shield=True):
            await ended.wait()
        _record_punctuality(driver, len(followers), stop)


def _record_punctuality(driver: ScheduleDriver, n_devices: int, stop: StopControl) -> None:
    """Record how late the driver applied changes."""
    punctuality = driver.punctuality
    is_late = punctuality.late_p99_s > TICK_S
    if stop.coordinator is not None:
        stop.coordinator.note(
            "driven",
            f"{n_devices} devices: {punctuality}"
            + ("; this machine is too busy to follow the traces" if is_late else ""),
            "warning" if is_late else "info",
        )


def _row(name: str, stretch: ConditionMeans) -> ConditionRow:
    return ConditionRow(
        at_s=stretch.end_s,
        duration_s=stretch.end_s - stretch.start_s,
        device=name,
        speed_ratio=stretch.speed_ratio,
        clock_ratio=stretch.clock_ratio,
        temperature_celsius=stretch.celsius,
        down_bps=stretch.down_bps,
        up_bps=stretch.up_bps,
        delay_s=stretch.delay_s,
        jitter_s=stretch.jitter_s,
        loss_ratio=stretch.loss_ratio,
        outage_s=stretch.outage_s,
        unwilling_s=stretch.unwilling_s,
    )
