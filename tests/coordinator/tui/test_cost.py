"""Drawing of the control room: only visible lines that changed, and each once."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.widget import Widget
from textual.widgets import Footer

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.tui.app import (
    CORE_SHARE,
    LONGEST_PAUSE_S,
    SHORTEST_PAUSE_S,
    ControlRoom,
    pause_s,
)
from fairbed.coordinator.tui.reading import ViewReader
from fairbed.coordinator.tui.screens.device import DeviceDetail
from fairbed.coordinator.tui.screens.fleet import FleetScreen
from fairbed.coordinator.tui.screens.overview import Overview
from fairbed.coordinator.tui.view import DeviceView, RunView
from fairbed.coordinator.tui.widgets import fleet, timeline
from fairbed.coordinator.tui.widgets.fleet import FleetTable
from fairbed.coordinator.tui.widgets.header import RunHeader
from fairbed.coordinator.tui.widgets.log import EventLogView
from fairbed.coordinator.tui.widgets.plot import CurvePlot
from fairbed.coordinator.tui.widgets.timeline import RoundTimeline
from tests.coordinator.store.fake_run import FakeRun
from tests.coordinator.tui.screen import opens, room, settled, shows, text_of

pytestmark = pytest.mark.anyio

HEADER_LINES = 2
"""The run clock may advance meanwhile."""

PARTS: tuple[type[Widget], ...] = (RunHeader, FleetTable, RoundTimeline, EventLogView, CurvePlot)
EVERYTHING: tuple[type[Widget], ...] = (*PARTS, Footer)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    run = FakeRun(tmp_path / "live-run")
    run.play(3)
    run.store.flush()
    yield run
    run.store.close()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Lines that each kind of widget has drawn, how often a footer was built, and what was made
    to be drawn: pictures of rounds, lines of devices.
    """
    counts: Counter[str] = Counter()

    def count(kind: type[Widget]) -> None:
        draw = kind.render_line

        def counted(self: Widget, y: int) -> object:
            counts[kind.__name__] += 1
            return draw(self, y)

        monkeypatch.setattr(kind, "render_line", counted)

    for kind in PARTS:
        count(kind)
    compose = Footer.compose

    def counted_compose(self: Footer) -> object:
        counts["Footer"] += 1
        return compose(self)

    monkeypatch.setattr(Footer, "compose", counted_compose)
    draw_picture, make_line = timeline.timeline_lines, FleetTable._line

    def counted_picture(*args: Any, **options: Any) -> list[timeline.Line]:
        counts["made"] += 1
        return draw_picture(*args, **options)

    def counted_line(self: FleetTable, device: DeviceView) -> fleet.Line:
        counts["made"] += 1
        return make_line(self, device)

    monkeypatch.setattr(timeline, "timeline_lines", counted_picture)
    monkeypatch.setattr(FleetTable, "_line", counted_line)
    return counts


async def refreshed(app: ControlRoom, run: FakeRun) -> None:
    """Refresh the screen until it shows all rows of the run."""
    run.store.flush()
    await app.refresh_view()


async def test_an_update_without_changes_draws_nothing(run: FakeRun, drawn: Counter[str]) -> None:
    async with room(run.folder) as (app, pilot):
        await settled(app, pilot)
        drawn.clear()
        for _ in range(3):
            for row in range(run.devices):
                run.telemetry(row, "idle")
            await refreshed(app, run)
            await settled(app, pilot)
        assert not any(drawn[kind.__name__] for kind in EVERYTHING)


async def test_a_device_that_changes_is_one_line_of_the_fleet(
    run: FakeRun, drawn: Counter[str]
) -> None:
    async with room(run.folder) as (app, pilot):
        await settled(app, pilot)
        drawn.clear()
        run.telemetry(5, "unwilling")
        await refreshed(app, run)
        assert await shows(app, pilot, "unwilling")
        assert drawn["FleetTable"] == 1
        assert not any(drawn[kind.__name__] for kind in EVERYTHING if kind is not FleetTable)


async def test_a_burst_is_drawn_once(run: FakeRun, drawn: Counter[str]) -> None:
    async with room(run.folder) as (app, pilot):
        cohort = run.begin_round()
        await refreshed(app, run)
        await settled(app, pilot)
        drawn.clear()
        for _ in range(50):
            run.now_s += 0.01
            for row in cohort:
                run.telemetry(row, "uploading")
        await refreshed(app, run)
        assert await shows(app, pilot, "uploading", "open for 0.5")
        await settled(app, pilot)
        assert drawn["FleetTable"] == len(cohort)
        assert drawn["RoundTimeline"] == 1 + len(cohort)
        assert drawn["RunHeader"] <= HEADER_LINES
        assert drawn["CurvePlot"] + drawn["EventLogView"] + drawn["Footer"] == 0


async def test_a_hidden_part_is_drawn_when_it_is_shown(run: FakeRun, drawn: Counter[str]) -> None:
    async with room(run.folder) as (app, pilot):
        await pilot.press("6")
        await settled(app, pilot)
        drawn.clear()
        run.play(1)
        run.telemetry(5, "unwilling")
        await refreshed(app, run)
        await settled(app, pilot)
        assert drawn["EventLogView"] > 0
        assert (
            drawn["FleetTable"] + drawn["RoundTimeline"] + drawn["CurvePlot"] + drawn["made"] == 0
        )
        await pilot.press("1")
        assert await shows(app, pilot, "unwilling", "round 4 ")


async def test_events_received_while_the_log_is_hidden_are_shown_later(run: FakeRun) -> None:
    async with room(run.folder) as (app, pilot):
        await pilot.press("6")
        await settled(app, pilot)
        await pilot.press("3")
        await settled(app, pilot)
        run.event("noted", "the lamp went out")
        await refreshed(app, run)
        assert "lamp" not in await settled(app, pilot)
        await pilot.press("6")
        assert await shows(app, pilot, "the lamp went out")


async def test_a_covered_screen_is_drawn_when_it_is_uncovered(
    run: FakeRun, drawn: Counter[str]
) -> None:
    async with room(run.folder) as (app, pilot):
        await pilot.press("enter")
        assert await opens(app, pilot, DeviceDetail)
        await settled(app, pilot)
        drawn.clear()
        run.telemetry(5, "unwilling")
        await refreshed(app, run)
        await settled(app, pilot)
        assert drawn["FleetTable"] + drawn["RoundTimeline"] + drawn["made"] == 0
        await pilot.press("escape")
        assert await opens(app, pilot, Overview)
        assert await shows(app, pilot, "unwilling")


async def test_the_footer_is_rebuilt_when_a_key_changes_its_command(
    run: FakeRun, drawn: Counter[str]
) -> None:
    async def send(_command: object) -> None:
        pass

    async with room(run.folder, send_command=send) as (app, pilot):
        await settled(app, pilot)
        drawn.clear()
        run.play(2)
        await refreshed(app, run)
        await settled(app, pilot)
        assert drawn["Footer"] == 0
        run.store.set_status("paused")
        await refreshed(app, run)
        assert await shows(app, pilot, "p Resume")
        assert drawn["Footer"] == 1


async def test_a_large_fleet_draws_only_the_lines_that_are_seen(
    tmp_path: Path, drawn: Counter[str]
) -> None:
    run = FakeRun(tmp_path / "large", devices=200)
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        await settled(app, pilot)
        drawn.clear()
        for row in range(run.devices):
            run.telemetry(row, "unwilling")
        await refreshed(app, run)
        seen = (await settled(app, pilot)).count("unwilling")
        assert 0 < seen < 40
        assert drawn["FleetTable"] <= seen + 1
        await pilot.press("2", "pagedown", "pagedown")
        await settled(app, pilot)
        assert isinstance(app.screen, FleetScreen)
        assert app.screen.selected_device in run.names[30:]
        assert app.screen.selected_device in text_of(app)
        assert " idle " not in text_of(app)
    run.store.close()


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Rows that SQLite returned, by the first table of the query."""
    counts: Counter[str] = Counter()
    query = RunReader._query

    def counted(self: RunReader, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        rows = query(self, sql, values)
        table = re.search(r"FROM\s+\W*(\w+)", sql)
        counts[table[1] if table else ""] += len(rows)
        return rows

    monkeypatch.setattr(RunReader, "_query", counted)
    return counts


def test_a_tick_reads_new_rows_only(tmp_path: Path, rows_read: Counter[str]) -> None:
    run = FakeRun(tmp_path / "large", devices=200)
    run.play(3)
    run.store.flush()
    with RunReader(run.folder) as reader:
        feed, view = ViewReader(reader), RunView()
        view = feed.refresh(view) or view
        rows_read.clear()
        for row in range(5):
            run.telemetry(row, "idle")
        run.store.flush()
        view = feed.refresh(view) or view
        assert rows_read["telemetry"] == 5
        assert rows_read.total() < 30
        rows_read.clear()
        assert feed.refresh(view) is None
        assert rows_read.total() <= 1
    run.store.close()


def test_a_run_opens_without_reading_the_rows_of_each_device_in_each_round(
    tmp_path: Path, rows_read: Counter[str]
) -> None:
    read = []
    for rounds in (30, 60):
        run = FakeRun(tmp_path / f"rounds-{rounds}", devices=20)
        run.play(rounds)
        with RunReader(run.finish()) as reader:
            rows_read.clear()
            ViewReader(reader).refresh(RunView())
            read.append(rows_read.copy())
    assert read[1]["selection"] == read[0]["selection"] > 0
    assert read[1]["device_metric"] == read[0]["device_metric"] > 0
    assert read[1]["exchange"] == read[0]["exchange"] > 0
    per_round = read[1].total() - read[0].total()
    assert per_round <= 4 * 30  # a row of `round`, one of `metric`, and a few events


@pytest.mark.parametrize(
    ("spent_s", "waits_s"),
    [
        (0.0, SHORTEST_PAUSE_S),
        (CORE_SHARE * SHORTEST_PAUSE_S, SHORTEST_PAUSE_S),
        (CORE_SHARE * 0.5, 0.5),
        (CORE_SHARE * LONGEST_PAUSE_S, LONGEST_PAUSE_S),
        (30.0, LONGEST_PAUSE_S),
    ],
)
def test_a_screen_that_costs_more_changes_less_often(spent_s: float, waits_s: float) -> None:
    assert pause_s(spent_s) == pytest.approx(waits_s)
