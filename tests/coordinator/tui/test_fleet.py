"""The screen of all devices: filter, order and columns."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from textual.strip import Strip

from fairbed.coordinator.tui.app import ControlRoom
from fairbed.coordinator.tui.preferences import load_preferences
from fairbed.coordinator.tui.screens.fleet_dialogs import ColumnsDialog, SortDialog
from fairbed.coordinator.tui.screens.overview import Overview
from fairbed.coordinator.tui.screens.run_screen import RunScreen
from fairbed.coordinator.tui.widgets.filter_bar import FilterBar
from fairbed.coordinator.tui.widgets.fleet import ARRANGE_S, FleetTable
from tests.coordinator.store.fake_run import FakeRun
from tests.coordinator.tui.conftest import Looks
from tests.coordinator.tui.screen import SMALL, WIDEST, comes, opens, room, settled, shows, text_of

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
        assert isinstance(app.screen, RunScreen)
        assert app.screen.selected_device == run.names[6]
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


def first_devices(text: str) -> list[str]:
    """Return the names of the devices on the screen, from the top."""
    return [line.split()[1] for line in text.splitlines() if re.match(r"│ \S+-\d\d ", line)]


async def test_a_letter_sorts_and_the_slowest_device_is_three_keys_away(run: FakeRun) -> None:
    async with room(run.folder) as (app, pilot):
        await pilot.press("s")
        assert await opens(app, pilot, SortDialog)
        await pilot.press("t")
        assert await shows(app, pilot, "τ s↓", "by measured s ↓")
        by_time = sorted(
            (d for d in app.view.devices if d.tau_s is not None),
            key=lambda d: d.tau_s or 0.0,
            reverse=True,
        )
        assert first_devices(text_of(app))[: len(by_time)] == [d.name for d in by_time]
        assert isinstance(app.screen, Overview)
        assert app.screen.selected_device == by_time[0].name
        await pilot.press("r")
        assert await shows(app, pilot, "τ s↑")
        assert first_devices(text_of(app))[0] == by_time[-1].name
        await pilot.press("s", "o")
        assert await comes(pilot, lambda: "τ s↑" not in text_of(app))
        assert first_devices(text_of(app))[:6] == run.names[:6]


async def test_the_cursor_stays_on_its_device_while_lines_change_places(run: FakeRun) -> None:
    async with room(run.folder) as (app, pilot):
        await pilot.press("2", "s", "s", "down", "down")
        assert await shows(app, pilot, "state↑")
        table = app.screen.query_one(FleetTable)
        name = table.selected_device
        now_s = time.monotonic()
        table._clock = lambda: now_s
        await app.refresh_view()
        run.telemetry(run.names.index(name or ""), "training")
        run.store.flush()
        await app.refresh_view()
        before = first_devices(await settled(app, pilot))
        assert before[2] == name  # a second has not passed
        now_s += ARRANGE_S
        run.telemetry(11, "downloading")
        run.store.flush()
        await app.refresh_view()
        after = first_devices(await settled(app, pilot))
        assert (after[0], after[-1]) == (run.names[11], name)
        assert table.selected_device == name


@pytest.mark.full
async def test_a_late_arrangement_needs_no_new_row(run: FakeRun) -> None:
    async with room(run.folder) as (app, pilot):
        await pilot.press("2", "s", "s")
        table = app.screen.query_one(FleetTable)
        run.telemetry(0, "unwilling")
        run.store.flush()
        await app.refresh_view()
        with anyio.fail_after(10.0):
            while first_devices(text_of(app))[-1] != run.names[0]:
                await pilot.pause(0.05)
        assert table._timer is None


async def test_lines_that_stay_are_not_drawn_again(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    draw = FleetTable.render_line

    def counted(table: FleetTable, y: int) -> Strip:
        drawn.append(y)
        return draw(table, y)

    monkeypatch.setattr(FleetTable, "render_line", counted)
    async with room(run.folder) as (app, pilot):
        await pilot.press("2", "s", "n")
        await settled(app, pilot)
        app.screen.query_one(FleetTable)._arranged_s = -1e9  # as if it were long ago
        drawn.clear()
        run.telemetry(3, "training")
        run.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "training")
        await settled(app, pilot)
        assert len(drawn) == 1


async def test_chosen_columns_are_shown_in_their_order_and_remembered(
    run: FakeRun, tmp_path: Path
) -> None:
    file = tmp_path / "control-room.json"
    async with room(run.folder, preferences=file) as (app, pilot):
        await pilot.press("2", "C")
        assert await opens(app, pilot, ColumnsDialog)
        assert await shows(app, pilot, "[ ] kind", "[x] profile", "[x] state")
        await pilot.press("down", "space", "down", "space")
        assert await shows(app, pilot, "[ ] profile", "[ ] state")
        await pilot.press("enter")
        assert await comes(pilot, lambda: " state " not in text_of(app))
        await pilot.press("s", "t")
        assert await comes(pilot, lambda: load_preferences(file).screens["fleet"].sort == "-tau")
    async with room(run.folder, preferences=file) as (app, pilot):
        await pilot.press("2")
        assert await shows(app, pilot, "τ s↓", "Fleet · 12 devices")
        assert " state " not in text_of(app)
        await pilot.press("C", "u")
        assert await shows(app, pilot, " state ")
        await pilot.press("C", "escape")
        assert await shows(app, pilot, " state ")


@pytest.mark.full
async def test_bars_show_the_phases_of_the_open_round(
    run: FakeRun, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort = run.begin_round()
    run.store.flush()
    monkeypatch.setattr(ControlRoom, "lacks_colours", True)
    async with room(run.folder, WIDEST) as (app, pilot):
        await pilot.press("2")
        for phase, lasts_s in (("downloading", 0.5), ("training", 1.0), ("uploading", 0.4)):
            for row in cohort:
                run.telemetry(row, phase)
            run.now_s += lasts_s
            run.store.flush()
            await app.refresh_view()
        assert await shows(app, pilot, f"{run.names[cohort[0]]} ", "uploading")
        (line,) = (x for x in text_of(app).splitlines() if run.names[cohort[0]] in x[:20])
        assert re.search(" d+t+u* ", line)
    for row in cohort:
        run.telemetry(row, "uploading")
    run.store.flush()
    await looks(run.folder, "fleet-live", ["2"], colours="16", sizes=[WIDEST])
    await looks(run.folder, "fleet-live", ["2"], colours="none", sizes=[WIDEST])
    monkeypatch.undo()
    await looks(run.folder, "fleet-live", ["2"])


async def test_the_fleet_looks_as_it_should(run: FakeRun, looks: Looks) -> None:
    keys = ["2", "slash", "p", "i", "enter", "s", "t"]
    await looks(run.folder, "fleet-sorted", keys, sizes=[SMALL])
    await looks(run.folder, "fleet-sort", ["2", "s"], sizes=[SMALL])
    await looks(run.folder, "fleet-columns", ["2", "C"], sizes=[SMALL])
