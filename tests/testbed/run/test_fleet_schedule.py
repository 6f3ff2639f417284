"""A failure of the schedule driver ends the run; nothing else does."""

from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from fairbed.coordinator.store import NewRun, RunReader, Store, StoreError
from fairbed.testbed.emulation.conditions import Conditions
from fairbed.testbed.errors import BackendError
from fairbed.testbed.experiment.file import EmulationConfig, Experiment, FleetConfig, OutageConfig
from fairbed.testbed.experiment.fleet import PlannedDevice, plan_fleet
from fairbed.testbed.run.fleet_schedule import count_unplugged, follow_schedules
from fairbed.testbed.run.stopping import StopControl

LIMIT_S = 30.0


class Fleet:
    """A backend that notes its first conditions, or refuses them."""

    def __init__(self, refusal: str | None = None) -> None:
        self.applied = anyio.Event()
        self._refusal = refusal

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        await checkpoint()
        self.applied.set()
        if self._refusal is not None:
            raise BackendError(self._refusal)

    def cpu_s(self, name: str) -> float | None:
        return None


def devices(*outages: OutageConfig) -> list[PlannedDevice]:
    group = FleetConfig(profile="raspberry-pi-4b", link="gigabit-ethernet", count=4, outage=outages)
    emulation = EmulationConfig(unavailable_as="unplugged")
    return plan_fleet(Experiment(name="driven", fleet=(group,), emulation=emulation), {})


def new_store(folder: Path) -> Store:
    return Store.create(
        folder,
        NewRun(
            run_id="run",
            name="driven",
            experiment_toml="",
            seed=0,
            config_hash="",
            version="0",
        ),
    )


def drive(
    folder: Path, refusal: str | None = None, *, breaks_store: bool = False
) -> Exception | None:
    """Drive a fleet until its conditions are applied or refused; return the error, if any."""

    async def run() -> Exception | None:
        fleet, stop, store = Fleet(refusal), StopControl(), new_store(folder)
        hole = OutageConfig(start_s=3600.0, duration_s=1.0)
        with anyio.fail_after(LIMIT_S):
            async with (
                anyio.create_task_group() as group,
                follow_schedules(fleet, devices(hole), store, stop, group, 1.0),
            ):
                await fleet.applied.wait()
                if breaks_store:
                    store.close()
        store.close()
        return stop.failure

    return anyio.run(run)


def test_the_conditions_at_the_end_of_a_run_are_recorded(tmp_path: Path) -> None:
    assert drive(tmp_path / "run") is None
    with RunReader(tmp_path / "run") as reader:
        rows = [row for device in devices() for row in reader.conditions(device.spec.name)]
    assert [row.device for row in rows] == [f"raspberry-pi-4b-{n}" for n in range(1, 5)]
    assert [row.down_bps for row in rows] == pytest.approx([940e6] * 4)  # means over an interval


def test_a_backend_failure_ends_the_run(tmp_path: Path) -> None:
    broken = drive(tmp_path / "run", "proxy-0: takes no orders any more")
    assert str(broken) == "proxy-0: takes no orders any more"


def test_a_store_failure_ends_the_run(tmp_path: Path) -> None:
    assert isinstance(drive(tmp_path / "run", breaks_store=True), StoreError)


@pytest.mark.parametrize(("t", "missing"), [(0.0, 4), (9.0, 4), (10.0, 0)])
def test_the_start_does_not_wait_for_devices_without_link(t: float, missing: int) -> None:
    plane = OutageConfig(kind="unplugged", start_s=0.0, duration_s=10.0)
    assert count_unplugged(devices(plane), t) == missing
