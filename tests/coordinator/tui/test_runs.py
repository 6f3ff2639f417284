"""The list of runs: read lazily, opened in place, two laid over each other."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.tui import run_list
from fairbed.coordinator.tui.app import MAX_OPEN, SendCommand
from fairbed.coordinator.tui.filters import parse_filter
from fairbed.coordinator.tui.run_list import (
    COLUMNS,
    FIELDS,
    RunLine,
    RunList,
    differences,
    flat,
    overlaid,
    read_line,
    read_series,
    sorted_lines,
)
from fairbed.coordinator.tui.screens.exit_dialog import ExitDialog
from fairbed.coordinator.tui.screens.overlay import OverlayScreen
from fairbed.coordinator.tui.screens.overview import Overview
from fairbed.coordinator.tui.screens.runs import RunsScreen
from fairbed.wire.messages import OperatorAnswer, OperatorCommand
from tests.coordinator.store.fake_run import BETA, FakeRun, as_older, fake_run
from tests.coordinator.tui.conftest import Looks
from tests.coordinator.tui.screen import comes, opens, room, settled, shows, text_of

pytestmark = pytest.mark.anyio


def make_runs(root: Path) -> FakeRun:
    """Write four runs, a day apart; return the last one, which is live."""
    long = FakeRun(root / "a-long", rounds=12, watts=2.0)
    long.play(12)
    long.finish()
    fake_run(root / "b-short", rounds=5, devices=6)
    as_older(fake_run(root / "c-old", rounds=1))
    live = FakeRun(root / "d-live")
    live.play(3)
    live.store.flush()
    for day, name in enumerate(("a-long", "b-short", "d-live"), start=1):
        with closing(sqlite3.connect(root / name / DATABASE)) as connection, connection:
            connection.execute(
                "UPDATE run SET created = ?, clock = ?",
                (f"2026-01-0{day}T10:00:00+00:00", "virtual" if name == "b-short" else "real"),
            )
    return live


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    live = make_runs(tmp_path / "runs")
    yield tmp_path / "runs"
    live.store.close()


def listed(root: Path) -> RunList:
    runs = RunList(root)
    while runs.read():
        pass
    return runs


def test_a_line_has_what_the_run_achieved(root: Path) -> None:
    line = read_line(root / "a-long")
    assert (line.name, line.status, line.kind) == ("a-long", "done", "live")
    assert line.info is not None
    assert line.info.rounds_completed == 12
    with closing(sqlite3.connect(root / "a-long" / DATABASE)) as connection:
        largest, energy_j = connection.execute(
            "SELECT (SELECT queue_max FROM round WHERE round = 12), "
            "(SELECT sum(energy_j) FROM exchange WHERE busy_s IS NOT NULL)"
        ).fetchone()
        selected = connection.execute(
            "SELECT sum(is_selected) / 12.0 FROM selection GROUP BY device"
        ).fetchall()
    assert line.least_rate is not None
    assert line.least_rate == pytest.approx(BETA - largest / 12)
    assert min(rate for (rate,) in selected) >= line.least_rate - 1e-9
    assert line.energy_j == pytest.approx(energy_j)
    assert read_line(root / "b-short").kind == "replay"
    assert read_line(root / "b-short").energy_j is None
    old = read_line(root / "c-old")
    assert (old.status, old.info, old.kind) == ("older format", None, "")
    assert "an older Fairbed wrote it" in old.problem


def test_the_least_rate_follows_what_operators_set(root: Path) -> None:
    before = read_line(root / "a-long").least_rate
    with closing(sqlite3.connect(root / "a-long" / DATABASE)) as connection, connection:
        connection.execute(
            "INSERT INTO command (id, at_s, wall, action, operator, name, value, text, round, "
            "is_accepted, answer) VALUES ('1', 1, '', 'set', 'local', 'beta', ?, '', 7, 1, '')",
            (BETA / 2,),
        )
    assert before is not None
    assert read_line(root / "a-long").least_rate == pytest.approx(before - BETA / 4)


def test_a_folder_is_read_in_parts_and_again_only_where_it_changed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def noted(folder: Path) -> RunLine:
        read.append(folder.name)
        return read_line(folder)

    monkeypatch.setattr(run_list, "read_line", noted)
    runs = RunList(root)
    assert runs.read(limit=3)
    assert (len(runs.lines), runs.total) == (3, 4)
    assert not runs.read(limit=3)
    assert sorted(read) == ["a-long", "b-short", "c-old", "d-live"]
    assert not runs.read()
    assert len(read) == 4
    with closing(sqlite3.connect(root / "b-short" / DATABASE)) as connection, connection:
        connection.execute("UPDATE run SET status = 'failed'")
    runs.read()
    assert read[4:] == ["b-short"]
    assert {line.name: line.status for line in runs.lines}["b-short"] == "failed"


def test_a_run_that_was_killed_or_removed_is_noticed(root: Path, tmp_path: Path) -> None:
    run = FakeRun(root / "e-killed")
    run.play(1)
    run.store.flush()
    runs = listed(root)
    assert {line.name: line.status for line in runs.lines}["e-killed"] == "running"
    run.store._lock.release()  # as after a kill
    runs.read()
    assert {line.name: line.status for line in runs.lines}["e-killed"] == "interrupted"
    run.store.close()
    (root / "a-long").rename(tmp_path / "elsewhere")
    runs.read()
    assert "a-long" not in {line.name for line in runs.lines}
    assert RunList(tmp_path / "nothing").read() is False


def test_only_the_newest_of_very_many_runs_are_listed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "MAX_RUNS", 2)
    runs = listed(root)
    assert (len(runs.lines), runs.total) == (2, 4)


def test_lines_are_sorted_and_filtered(root: Path) -> None:
    lines = listed(root).lines

    def names(key: str, *, is_reversed: bool = False) -> str:
        return "".join(x.name[0] for x in sorted_lines(lines, key, is_reversed=is_reversed))

    assert names("started", is_reversed=True) == "dbac"
    assert names("rounds") == "dbac"
    assert names("rounds", is_reversed=True) == "abdc"
    assert names("energy", is_reversed=True)[0] == "a"
    for column in COLUMNS:
        assert sorted(names(column.key)) == ["a", "b", "c", "d"]
    for text, expected in (
        ("kind:replay", "b"),
        ("rounds>4 accuracy>0.1", "ab"),
        ("status:older", "c"),
        ("live", "ad"),
    ):
        keeps = parse_filter(text, FIELDS)
        assert sorted(x.name[0] for x in lines if keeps(x)) == list(expected), text


def test_two_runs_are_compared(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = read_series(root / "a-long"), read_series(root / "b-short")
    curves = overlaid((first, second))
    assert [len(curve.points) for curve in curves["over-rounds"]] == [12, 5]
    assert [curve.label for curve in curves["queues"]] == ["A", "B"]
    assert curves["over-time"][0].points[0][0] > 1.0
    rows = {row[0]: row[1:] for row in differences(first, second)}
    assert rows["closed rounds"] == ("12", "5", "-7")
    assert rows["energy"][1:] == ("–", "")
    accuracy = [run.metrics[-1][2] for run in (first, second)]
    assert float(rows["accuracy"][2]) == pytest.approx(accuracy[1] - accuracy[0], abs=1e-3)
    assert rows["rounds"] == ("12", "5", "")  # the setting
    monkeypatch.setattr(run_list, "MAX_POINTS", 5)
    thinned = read_series(root / "a-long")
    assert [row[0] for row in thinned.rounds] == [3, 6, 9, 12]


def test_settings_that_differ_are_listed() -> None:
    table = {"seed": 7, "selection": {"beta": 0.1}, "fleet": [{"n": 2}, {"n": 3}], "x": [1, 2]}
    assert flat(table) == {
        "seed": "7",
        "selection.beta": "0.1",
        "fleet[0].n": "2",
        "fleet[1].n": "3",
        "x": "[1, 2]",
    }


async def test_the_runs_look_as_they_should(root: Path, looks: Looks) -> None:
    await looks(root / "a-long", "runs", ("7", "space", "down", "space"), runs=root)


async def test_the_overlay_looks_as_it_should(root: Path, looks: Looks) -> None:
    await looks(root / "a-long", "overlay", ("7", "down", "space", "down", "o"), runs=root)


async def test_there_is_no_list_without_a_folder(root: Path) -> None:
    async with room(root / "a-long") as (app, pilot):
        await pilot.press("7")
        assert "7 Runs" not in await settled(app, pilot)
        assert isinstance(app.screen, Overview)


async def test_another_run_is_opened_in_place_and_left_again(root: Path) -> None:
    connected: list[str] = []

    async def send(_command: OperatorCommand) -> OperatorAnswer | None:
        return None

    def connect(folder: Path) -> SendCommand | None:
        connected.append(folder.name)
        return send if folder.name == "d-live" else None

    async with room(root / "a-long", runs=root, connect=connect) as (app, pilot):
        assert await shows(app, pilot, "12/12")
        await pilot.press("left_square_bracket", "3", "7")
        assert await opens(app, pilot, RunsScreen)
        assert await shows(app, pilot, "> a-long", "d-live")
        await pilot.press("enter")
        assert await opens(app, pilot, Overview)
        assert await shows(app, pilot, "● running", "3/30", "p Pause")
        assert "history" not in text_of(app)
        for key in ("3", "6"):
            await pilot.press(key)
            await settled(app, pilot)
        assert "round 12" not in text_of(app)
        await pilot.press("7")
        assert await shows(app, pilot, "> d-live", "b Former run")
        await pilot.press("b")
        assert await shows(app, pilot, "● done", "12/12")
        assert "Pause" not in await settled(app, pilot)
        assert connected == ["d-live"]


async def test_a_run_that_cannot_be_read_is_not_opened(root: Path) -> None:
    async with room(root / "a-long", runs=root) as (app, pilot):
        await pilot.press("7")
        assert await shows(app, pilot, "older format")
        await pilot.press("down", "down", "down", "enter")
        assert await shows(app, pilot, "an older Fairbed wrote it")
        assert isinstance(app.screen, RunsScreen)


@pytest.mark.full
async def test_an_own_live_run_is_not_forgotten_beside_another(root: Path) -> None:
    async with room(root / "d-live", runs=root, owns_run=True) as (app, pilot):
        await pilot.press("7")
        assert await shows(app, pilot, "b-short")
        await pilot.press("slash", *"b-short", "enter", "enter")
        assert await shows(app, pilot, "5/5")
        await pilot.press("q")
        assert await opens(app, pilot, ExitDialog)


@pytest.mark.full
async def test_few_runs_stay_open(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    names = [f"run-{i:02d}" for i in range(MAX_OPEN + 2)]
    for name in names:
        fake_run(root / name, rounds=1, devices=2)
    async with room(root / names[0], runs=root) as (app, pilot):
        for name in names[1:]:
            await app.on_runs_screen_opened(RunsScreen.Opened((root / name).resolve()))
            assert await comes(pilot, lambda name=name: app.sub_title == name)  # type: ignore[misc]
        assert len(app._readers) == MAX_OPEN
        assert app._home in app._readers


async def test_a_list_that_is_drawn_often_is_drawn_in_full(root: Path) -> None:
    """Marks and orders that follow each other at once do not cut the texts."""
    async with room(root / "a-long", runs=root) as (app, pilot):
        await pilot.press("7")
        assert await shows(app, pilot, "older format", "2026-01-02 10:00", "replay")
        await pilot.press("space", "down", "space", "r", "r", "s", "r")
        assert await shows(app, pilot, "older format", "2026-01-02 10:00", "replay")


async def test_the_overlay_needs_two_runs(root: Path) -> None:
    async with room(root / "a-long", runs=root) as (app, pilot):
        await pilot.press("7")
        assert await shows(app, pilot, "b-short")
        await pilot.press("o")
        assert await shows(app, pilot, "mark two runs with space first")
        await pilot.press("space", "down", "o")
        assert await opens(app, pilot, OverlayScreen)
        assert await shows(app, pilot, "A: d-live", "B: b-short")
        await pilot.press("escape")
        assert await opens(app, pilot, RunsScreen)
