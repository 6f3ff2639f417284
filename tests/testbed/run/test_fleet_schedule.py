"""The schedules of a live run: on its clock, with its errors."""

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
from fairbed.testbed.replay.world.tcp_links import path_of
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


LOSSY = """
title = "Loss in windows"
licence = "CC0-1.0"

[link]
down_bps = { value = 6e6, tag = "literature", source = "invented" }
up_bps = { value = 4e6, tag = "literature", source = "invented" }
delay_s = { value = 0.03, tag = "literature", source = "invented" }

[link.loss_ratio]
value = 0.01
tag = "literature"
source = "invented"
spread = { quantiles = [[0.0, 0.0], [0.5, 0.01], [0.95, 0.08]], step_s = 25.0, correlation = 0.0 }
"""


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
                follow_schedules(fleet, devices(hole), store, stop, group, 1.0, lambda: 0.0),
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


def test_a_live_run_and_a_replay_have_the_same_loss_windows_at_the_same_instants(
    tmp_path: Path,
) -> None:
    """Both count from the instant at which the run was created, however late its driver begins."""
    (tmp_path / "windows.toml").write_text(LOSSY)
    group = FleetConfig(profile="raspberry-pi-4b", link=str(tmp_path / "windows.toml"), count=4)
    both = Experiment(name="windows", seed=5, fleet=(group,))
    live, again = (plan_fleet(both, {}) for _ in range(2))
    applied: dict[str, float] = {}
    for late_s in (0.0, 3.7, 26.0, 130.0):
        applied.clear()

        class Applying(Fleet):
            async def apply(self, conditions: Mapping[str, Conditions]) -> None:
                for name, one in conditions.items():
                    assert one.shape is not None
                    applied[name] = one.shape.loss_ratio
                await super().apply(conditions)

        async def run(late_s: float = late_s) -> None:
            fleet, stop, store = Applying(), StopControl(), new_store(tmp_path / f"{late_s}")
            with anyio.fail_after(LIMIT_S):
                async with (
                    anyio.create_task_group() as tasks,
                    follow_schedules(fleet, live, store, stop, tasks, 1.0, lambda: late_s),
                ):
                    await fleet.applied.wait()
            store.close()

        anyio.run(run)
        for device in again:
            replayed = path_of(device.schedule, "up", 1e5).at(late_s).loss_ratio
            assert applied[device.spec.name] == pytest.approx(replayed)
    assert len(set(applied.values())) == 4, "each device has windows of its own"
