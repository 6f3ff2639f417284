"""The screens of one device: facts, curves, exchanges, and its log."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import DataTable

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import DeviceLogRow
from fairbed.coordinator.tui.screens.device import DeviceDetail
from fairbed.coordinator.tui.screens.device_log import DeviceLogScreen
from fairbed.coordinator.tui.screens.fleet import FleetScreen
from fairbed.coordinator.tui.screens.fleet_dialogs import ColumnsDialog, SortDialog
from fairbed.coordinator.tui.screens.overview import Overview
from fairbed.coordinator.tui.widgets.plot import CurvePlot
from tests.coordinator.store.fake_run import FakeRun
from tests.coordinator.tui.conftest import Colours, Looks
from tests.coordinator.tui.screen import (
    SMALL,
    WIDE,
    WIDEST,
    comes,
    lines_on,
    opens,
    room,
    settled,
    shows,
    text_of,
)

pytestmark = pytest.mark.anyio

TITLES = (
    "Exchange time, s",
    "Phases, s",
    "Phases, s",
    "µ, cores",
    "Clock / nominal clock",
    "Temperature, °C",
    "Links, Mbit/s",
    "Loss",
    "Accuracy",
)
"""Of the curves of the fake run, in their order."""

TO_DEVICE = ("2", "down", "down", "enter")
"""Keys to the screen of the third device."""


def log(run: FakeRun, *lines: tuple[str, str], row: int = 2, first: int = 0) -> None:
    """Store lines of the log of a device, with level and text, a second apart."""
    for number, (level, text) in enumerate(lines, first):
        at_s, device = run.now_s - len(lines) + number - first, run.names[row]
        run.store.add(DeviceLogRow(at_s=at_s, device=device, number=number, level=level, text=text))


def with_log(folder: Path) -> FakeRun:
    """Return a run of 30 rounds, in which one device has trouble in the middle."""
    run = FakeRun(folder)
    run.play(15)
    log(run, ("info", "joining"), ("warning", "link lost: connection refused"))
    log(run, ("info", "not of the third device"), row=3)
    nan = "loss became NaN after 12 mini-batches"
    run.event("failed", nan, device=run.names[2], level="error")
    run.play(15)
    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_log(tmp_path_factory.mktemp("runs") / "digits-run").finish()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    run = FakeRun(tmp_path / "live-run")
    run.play(3)
    run.store.flush()
    yield run
    run.store.close()


async def test_a_device_looks_as_it_should(finished: Path, looks: Looks) -> None:
    await looks(finished, "device", TO_DEVICE)


@pytest.mark.parametrize("colours", ["16", "none"])
@pytest.mark.full
async def test_the_curves_of_a_device_are_told_apart_without_colours(
    finished: Path, looks: Looks, colours: Colours
) -> None:
    await looks(finished, "device", (*TO_DEVICE, "s"), sizes=(WIDE,), colours=colours)


async def test_the_slowest_device_its_slowest_phase_and_its_log_are_five_keys_away(
    tmp_path: Path,
) -> None:
    run = FakeRun(tmp_path / "run")
    run.play(20)
    with RunReader(run.folder) as reader:
        times = reader.measured_times()
    slowest = max(times, key=times.__getitem__)
    log(run, ("warning", "the clock of the processor is reduced"), row=run.names.index(slowest))
    async with room(run.finish(), SMALL) as (app, pilot):
        assert isinstance(app.screen, Overview)
        await pilot.press("2")
        assert await opens(app, pilot, FleetScreen)
        await pilot.press("s")
        assert await opens(app, pilot, SortDialog)
        await pilot.press("t")
        assert await opens(app, pilot, FleetScreen)
        await pilot.press("enter")
        assert await shows(app, pilot, f"─ {slowest} ─", "slowest phase  train, ")
        await pilot.press("l")
        assert await shows(app, pilot, f"Log of {slowest}", "! the clock of the processor")


@pytest.mark.parametrize("size", [SMALL, WIDEST], ids=["80x24", "200x60"])
async def test_every_fact_and_column_is_explained(finished: Path, size: tuple[int, int]) -> None:
    async with room(finished, size) as (app, pilot):
        await pilot.press(*TO_DEVICE)
        assert await shows(app, pilot, "slowest phase  train,")
        assert isinstance(app.screen, DeviceDetail)
        explained = {label for label, _ in app.screen.explanations()}
        columns = app.screen.query_one(DataTable).ordered_columns
        facts = {label for label, _ in app.screen._facts[0]}
    assert {column.label.plain for column in columns} | facts <= explained


async def test_the_log_of_a_device_looks_as_it_should(finished: Path, looks: Looks) -> None:
    await looks(finished, "device-log", (*TO_DEVICE, "l"), sizes=(SMALL, WIDE))


@pytest.mark.parametrize("size", [SMALL, WIDE], ids=["80x24", "120x40"])
@pytest.mark.full
async def test_a_key_shows_each_curve_and_comes_back_to_the_first(
    finished: Path, size: tuple[int, int]
) -> None:
    async with room(finished, size) as (app, pilot):
        await pilot.press(*TO_DEVICE)
        assert await opens(app, pilot, DeviceDetail)
        assert await shows(app, pilot, "slowest phase  train,")
        titles = []
        for _ in range(2 * len(TITLES)):
            await pilot.press("s")
            plot = app.screen.query_one(CurvePlot)
            titles.append(str(plot.border_title).split("  ")[0] if plot.display else "facts")
        await pilot.press("S")
        assert await comes(pilot, lambda: str(plot.border_title).startswith(titles[-2]))
    facts = ["facts"] if size == SMALL else []
    every = [*TITLES, *facts] if size == SMALL else [*TITLES[1:], TITLES[0]]
    assert titles == (2 * every)[: 2 * len(TITLES)]


async def test_the_exchanges_of_a_device_can_be_filtered(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.play(12)
    with RunReader(run.folder) as reader:
        rows = reader.exchanges_of(run.names[2])
    run.store.add(replace(rows[1], outcome="failed", reason="loss became NaN", is_valid=False))
    async with room(run.finish()) as (app, pilot):
        await pilot.press(*TO_DEVICE)
        assert await shows(app, pilot, f"newest first ({len(rows)})")
        for expression, number in (("nan", 1), ("tau>0 !failed", len(rows) - 1)):
            await pilot.press("slash", *expression, "enter")
            assert await shows(app, pilot, f"newest first ({number} of {len(rows)})"), expression
            assert app.screen.query_one(DataTable).row_count == number
            await pilot.press("escape")
            assert await shows(app, pilot, f"newest first ({len(rows)})")
        await pilot.press("escape")
        assert await opens(app, pilot, FleetScreen)


@pytest.mark.full
async def test_problems_alone_and_a_text_can_be_looked_for_in_the_log(finished: Path) -> None:
    async with room(finished) as (app, pilot):
        await pilot.press(*TO_DEVICE)
        assert await opens(app, pilot, DeviceDetail)
        await pilot.press("l")
        assert await opens(app, pilot, DeviceLogScreen)
        assert await shows(app, pilot, "joining", "(4 lines)", "loss became NaN")
        assert "not of the third device" not in text_of(app)
        await pilot.press("e")
        assert await shows(app, pilot, "(2 of 4 lines)", "! link lost", "!! failed: loss became")
        assert "joining" not in text_of(app)
        await pilot.press("e")
        assert await shows(app, pilot, "joining", "(4 lines)")
        await pilot.press("slash", *"refused", "enter")
        assert await shows(app, pilot, "(1 of 4 lines)", "connection refused")
        await pilot.press("escape", "escape")
        assert await opens(app, pilot, DeviceDetail)


async def test_a_round_without_the_device_draws_nothing_of_it_anew(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    cohort = run.begin_round()
    row = next(i for i in range(run.devices) if i not in cohort)
    async with room(run.folder) as (app, pilot):
        await pilot.press("2", *["down"] * row, "enter")
        assert await shows(app, pilot, f"─ {run.names[row]} ─", "slowest phase")
        await settled(app, pilot)
        for kind, name in ((CurvePlot, "redraw"), (DataTable, "clear")):
            monkeypatch.setattr(kind, name, lambda *_, **__: drawn.append("again"))
        run.close_round()
        run.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "4/30", "of 4 rounds")
        assert drawn == []


@pytest.mark.full
async def test_in_the_past_of_a_run_a_device_has_what_it_had_then(finished: Path) -> None:
    async with room(finished) as (app, pilot):
        await pilot.press(*TO_DEVICE)
        assert await shows(app, pilot, "newest first (10)", "1, newest 0:45 failed")
        await pilot.press("g", "5", "enter")
        assert await shows(app, pilot, "newest first (2)", "problems       none")
        await pilot.press("l")
        assert await shows(app, pilot, "joined", "(1 of 4 lines)")
        assert "link lost" not in text_of(app)
        await pilot.press("end")
        assert await shows(app, pilot, "(4 lines)", "link lost")


async def test_new_lines_are_followed_until_one_scrolls_up(run: FakeRun) -> None:
    log(run, *[("info", f"line {i}") for i in range(30)], row=0)
    run.store.flush()
    async with room(run.folder, SMALL) as (app, pilot):
        await pilot.press("enter")
        assert await opens(app, pilot, DeviceDetail)
        await pilot.press("l")
        assert await shows(app, pilot, "line 29")
        run.now_s += 5.0
        run.telemetry(1, "idle")
        log(run, ("info", "the newest line"), row=0, first=30)
        run.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "the newest line")
        await pilot.press("home")
        assert await shows(app, pilot, "line 0", "line 1")
        run.now_s += 5.0
        run.telemetry(1, "idle")
        log(run, ("error", "a later line"), row=0, first=31)
        run.store.flush()
        await app.refresh_view()
        await settled(app, pilot)
        assert "a later line" not in text_of(app)
        await pilot.press("f")
        assert await shows(app, pilot, "!! a later line")


async def test_a_line_that_arrives_late_stands_where_it_belongs(run: FakeRun) -> None:
    name = run.names[0]
    run.event("late", "no upload within 60 s", device=name, level="warning")
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        await pilot.press("enter")
        assert await opens(app, pilot, DeviceDetail)
        await pilot.press("l")
        assert await shows(app, pilot, "no upload within 60 s")
        log(run, ("warning", "link lost"), row=0)
        run.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "link lost")
        lines = lines_on(app)
    (lost,) = [i for i, line in enumerate(lines) if "link lost" in line]
    (late,) = [i for i, line in enumerate(lines) if "no upload" in line]
    assert lost == late - 1


async def test_a_device_on_a_small_terminal_shows_facts_and_exchanges(finished: Path) -> None:
    async with room(finished, SMALL) as (app, pilot):
        await pilot.press("enter")
        assert await opens(app, pilot, DeviceDetail)
        assert await shows(app, pilot, "slowest phase  train,", "profile", "accuracy", "queue Z")
        assert sum(" done " in line for line in lines_on(app)) >= 4


async def test_a_long_fact_is_wrapped_under_itself_and_brackets_are_no_markup(
    run: FakeRun,
) -> None:
    machine = {
        "model": "[/bold] Raspberry Pi Zero 2 W, 512 MB, microSD card of class A1, in a case"
    }
    with RunReader(run.folder) as reader:
        row = reader.devices()[0]
    run.store.add(replace(row, capabilities=json.dumps(machine)))
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        await pilot.press("enter")
        assert await shows(app, pilot, "[/bold] Raspberry Pi Zero 2 W")
        lines = (await settled(app, pilot)).splitlines()
    (first,) = [i for i, line in enumerate(lines) if "Raspberry Pi Zero 2 W" in line]
    column = lines[first].index("[/bold]")
    assert lines[first + 1][:column].strip(" │") == ""
    assert lines[first + 1][column] != " "


async def test_throttling_and_nominal_rates_stand_beside_the_measured_ones(run: FakeRun) -> None:
    with RunReader(run.folder) as reader:
        (_, context), *_ = reader.telemetry_latest()
    hot = replace(context, device=run.names[0], clock_ratio=0.6, throttled="throttled,capped")
    run.store.add(replace(hot, temperature_celsius=83.0))
    run.store.flush()
    async with room(run.folder, WIDEST) as (app, pilot):
        await pilot.press("enter")
        assert await shows(app, pilot, "83 °C, clock 60.0 %, throttled: throttled,capped")
        assert await shows(app, pilot, "19M of 20M down, 9.5M of 10M up, bit/s")


async def test_columns_of_the_store_are_added_and_taken_away(finished: Path) -> None:
    async with room(finished) as (app, pilot):
        await pilot.press("enter")
        assert await opens(app, pilot, DeviceDetail)
        assert "dispatched_at_s" not in text_of(app)
        await pilot.press("C")
        assert await opens(app, pilot, ColumnsDialog)
        await pilot.press("down", "space", "enter")
        assert await shows(app, pilot, "dispatched_at_s")
        await pilot.press("slash", *"dispatched_at_s<0", "enter")
        assert await shows(app, pilot, "Exchanges, newest first (0 of ")
        await pilot.press("slash", "escape", "C")
        assert await opens(app, pilot, ColumnsDialog)
        await pilot.press("u")
        assert await comes(pilot, lambda: "dispatched_at_s" not in text_of(app))
