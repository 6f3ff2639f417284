"""The screen of all devices: filter, order and columns."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbed.coordinator.tui.preferences import load_preferences
from fairbed.coordinator.tui.widgets.filter_bar import FilterBar
from tests.coordinator.store.fake_run import FakeRun
from tests.coordinator.tui.screen import comes, room, settled, shows, text_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    run = FakeRun(tmp_path / "live-run")
    run.play(3)
    run.store.flush()
    yield run
    run.store.close()


async def test_slash_filters_the_fleet_until_escape(run: FakeRun) -> None:
    async with room(run.folder) as (app, pilot):
        await pilot.press("2")
        assert await shows(app, pilot, "Fleet · 12 devices", "/ Filter")
        await pilot.press("slash", *"nano")
        assert await shows(app, pilot, "Fleet · 3 of 12 devices · filter /nano")
        await pilot.press("enter")
        assert await comes(pilot, lambda: app.screen.focused is app.screen.query_one("#fleet"))
        await pilot.press("down")
        assert app.screen.selected_device == run.names[6]  # type: ignore[attr-defined]  # RunScreen
        await pilot.press("escape")
        assert await shows(app, pilot, "Fleet · 12 devices")
        assert not app.screen.query_one(FilterBar).display


async def test_escape_while_typing_clears_the_filter(run: FakeRun) -> None:
    async with room(run.folder) as (app, pilot):
        await pilot.press("2", "slash", *"nano")
        assert await shows(app, pilot, "3 of 12")
        await pilot.press("escape")
        assert await shows(app, pilot, "Fleet · 12 devices")
        assert app.screen.focused is app.screen.query_one("#fleet")


async def test_a_bad_expression_is_explained_and_changes_nothing(run: FakeRun) -> None:
    async with room(run.folder) as (app, pilot):
        await pilot.press("2", "slash", *"rate")
        assert await shows(app, pilot, "0 of 12")
        await pilot.press(">", "x")
        assert await shows(app, pilot, "rate>x: must be a number as in rate>3", "filter /rate")
        await pilot.press("enter")
        assert await comes(pilot, lambda: "must be" not in text_of(app))
        assert "/rate " in await settled(app, pilot)


async def test_the_filter_is_remembered(run: FakeRun, tmp_path: Path) -> None:
    file = tmp_path / "control-room.json"
    async with room(run.folder, preferences=file) as (app, pilot):
        await pilot.press("2", "slash", *"nano", "enter")
        assert await comes(pilot, lambda: load_preferences(file).screens["fleet"].filter == "nano")
    async with room(run.folder, preferences=file) as (app, pilot):
        await pilot.press("2")
        assert await shows(app, pilot, "Fleet · 3 of 12 devices · filter /nano")
