"""Screen of the estimator."""

import re
from pathlib import Path

import pytest

from fairbed.coordinator.tui.screens.device import DeviceDetail
from fairbed.coordinator.tui.screens.estimator import EstimatorScreen
from tests.coordinator.store.fake_run import FakeRun, fake_run
from tests.coordinator.tui.conftest import Colours, Looks
from tests.coordinator.tui.screen import SMALL, WIDE, lines_on, opens, room, settled, shows

pytestmark = pytest.mark.anyio


async def test_errors_phases_and_devices_are_shown(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run")
    async with room(folder, WIDE) as (app, pilot):
        await pilot.press("5")
        assert await shows(app, pilot, "mixture, 111 of 116 exchanges: median error 2.9 %")
        assert await shows(app, pilot, "newest 10 rounds", "prediction", "spread s", "jetson-06")
        await pilot.press("down", "enter")
        assert await opens(app, pilot, DeviceDetail)
        assert isinstance(app.screen, DeviceDetail)
        assert app.screen.selected_device == "raspberry-pi-05"
    async with room(folder, SMALL) as (app, pilot):
        await pilot.press("5")
        assert await shows(app, pilot, "median error 2.9 %", "prediction", "error    bias   τ s")


async def test_no_number_is_cut_where_names_are_long(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run", has_long_names=True)
    run.play(run.rounds)
    async with room(run.finish(), SMALL) as (app, pilot):
        await pilot.press("5")
        assert await shows(app, pilot, "raspberry-pi-3b-plus-04")
        lines = lines_on(app)
    assert any(line.split()[-5:] == ["device", "count", "error", "bias", "│"] for line in lines)
    whole = r" raspberry-pi-3b-plus-04 +\d+ of \d+ +\d\.\d % +\+\d\.\d % +│$"
    assert any(re.search(whole, line) for line in lines)


async def test_a_new_round_changes_the_errors_and_keeps_the_cursor(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.play(3)
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        await pilot.press("5")
        assert await shows(app, pilot, "mixture, 8 of 12 exchanges")
        await pilot.press("down")
        screen = app.screen
        assert isinstance(screen, EstimatorScreen)
        run.play(2)
        run.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "mixture, 16 of 20 exchanges")
        assert screen.selected_device is not None
        assert await shows(app, pilot, screen.selected_device)
    run.store.close()


async def test_a_run_without_rounds_has_no_errors(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        await pilot.press("5")
        assert await shows(app, pilot, "no prediction yet")
        assert app.screen.selected_device is None  # type: ignore[attr-defined]
        await pilot.press("enter")
        await settled(app, pilot)
        assert isinstance(app.screen, EstimatorScreen)
    run.store.close()


@pytest.mark.parametrize("colours", ["all", "none", pytest.param("16", marks=pytest.mark.full)])
async def test_estimator_looks_as_it_should(tmp_path: Path, looks: Looks, colours: Colours) -> None:
    await looks(fake_run(tmp_path / "digits-run"), "estimator", ("5",), colours=colours)
