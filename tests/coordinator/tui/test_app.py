"""The control room in a terminal: its screens and keys."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import AlertRow, EventRow, ReleaseRow
from fairbed.coordinator.tui.app import TABS, ControlRoom
from fairbed.coordinator.tui.phase_spans import MISSED, PHASES
from fairbed.coordinator.tui.preferences import load_preferences, preferences_file
from fairbed.coordinator.tui.reading import ViewReader
from fairbed.coordinator.tui.screens.device import DeviceDetail
from fairbed.coordinator.tui.screens.exit_dialog import ExitDialog
from fairbed.coordinator.tui.screens.fleet import FleetScreen
from fairbed.coordinator.tui.screens.overview import Overview
from fairbed.coordinator.tui.screens.rounds import RoundsScreen
from fairbed.coordinator.tui.screens.run_screen import RunScreen
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.header import RunHeader
from fairbed.coordinator.tui.widgets.timeline import RoundTimeline
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import OperatorCommand
from tests.coordinator.store.fake_run import PER_ROUND, FakeRun, fake_run
from tests.coordinator.tui.screen import (
    SMALL,
    WIDE,
    comes,
    opens,
    room,
    settled,
    shows,
    text_of,
)
from tests.tiers import in_depth, some_in_fast

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "digits-run")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    run = FakeRun(tmp_path / "live-run")
    run.play(3)
    run.store.flush()
    yield run
    run.store.close()


class Coordinator:
    """Records commands."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, str | None]] = []

    async def __call__(self, command: OperatorCommand) -> None:
        self.commands.append((command.action, command.device))


@pytest.mark.parametrize("size", [WIDE, SMALL], ids=["120x40", "80x24"])
async def test_a_finished_run_looks_as_it_should(
    finished: Path, size: tuple[int, int], golden: Callable[[Path, bytes], None]
) -> None:
    async with room(finished, size) as (app, pilot):
        picture = await settled(app, pilot) + "\n"
    golden(GOLDEN / f"overview-{size[0]}x{size[1]}.txt", picture.encode())


@pytest.mark.full
async def test_a_mixed_fleet_shows_which_devices_are_physical_and_what_energy_each_took(
    tmp_path: Path, golden: Callable[[Path, bytes], None]
) -> None:
    run = FakeRun(tmp_path / "mixed", physical=frozenset({1, 4}), watts=2.5)
    run.play(6)
    async with room(run.finish()) as (app, pilot):
        picture = await settled(app, pilot) + "\n"
        golden(GOLDEN / "mixed-120x40.txt", picture.encode())
        await pilot.press("down", "enter")
        assert await opens(app, pilot, DeviceDetail)
        assert await shows(app, pilot, ", physical", "energy")


@pytest.mark.parametrize(
    "size", [pytest.param(WIDE, marks=pytest.mark.full), SMALL], ids=["120x40", "80x24"]
)
@pytest.mark.full
async def test_every_screen_is_opened_by_its_key_from_everywhere(
    finished: Path, size: tuple[int, int]
) -> None:
    async with room(finished, size, runs=finished.parent) as (app, pilot):
        for tab in (*TABS, *reversed(TABS)):
            await pilot.press(tab.key)
            assert await opens(app, pilot, tab.screen)
            assert await shows(app, pilot, f"[{tab.key} {tab.title}]", "30/30")
            assert len(app.screen_stack) == 2
        for tab in TABS:
            await pilot.press("2", "enter")
            assert await opens(app, pilot, DeviceDetail)
            await pilot.press(tab.key)
            assert await opens(app, pilot, tab.screen)
            assert len(app.screen_stack) == 2


async def test_a_click_on_a_tab_opens_its_screen(finished: Path) -> None:
    async with room(finished, SMALL) as (app, pilot):
        assert await shows(app, pilot, "[1 Overview]")
        line = next(y for y, text in enumerate(text_of(app).splitlines()) if "2 Fleet" in text)
        await pilot.click(offset=(text_of(app).splitlines()[line].index("Fleet"), line))
        assert await opens(app, pilot, FleetScreen)


async def test_the_palette_offers_what_the_keys_do(run: FakeRun) -> None:
    coordinator = Coordinator()
    async with room(run.folder, send_command=coordinator, runs=run.folder.parent) as (app, pilot):
        await settled(app, pilot)
        offered = {c.title: c for c in app.get_system_commands(app.screen)}
        assert [c.title for c in app.get_system_commands(app.screen)].count("Quit") == 1
        assert {tab.title for tab in TABS} | {"Pause", "Exclude", "Device", "Quit"} <= set(offered)
        assert all(command.help for command in offered.values())
        await offered["Exclude"].callback()
        await offered["Rounds"].callback()
        assert await opens(app, pilot, RoundsScreen)
        assert "Exclude" not in {c.title for c in app.get_system_commands(app.screen)}
    assert coordinator.commands == [("exclude", run.names[0])]


async def test_a_live_run_is_followed(run: FakeRun) -> None:
    async with room(run.folder) as (app, pilot):
        assert await shows(app, pilot, "● running", "3/30")
        run.begin_round()
        run.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "round 4 open", "training")
        run.close_round()
        run.store.set_status("paused")
        run.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "● paused", "4/30")


@pytest.mark.full
async def test_the_header_shows_contention_and_dilation(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "slow", dilation=4.0)
    run.play(3)
    run.store.flush()
    with RunReader(run.folder) as reader:
        for row in reader.exchanges(0):
            run.store.add(replace(row, is_valid=False, is_contended=True))
    async with room(run.finish()) as (app, pilot):
        assert await shows(app, pilot, "ELAPSED ÷ 4", "UNTIMED", "12/12 (host busy)")
        head = text_of(app).splitlines()[:3]
        header = app.screen.query_one(RunHeader)
        alarm = header.get_component_rich_style("header--bad", partial=True)
        assert alarm not in [span.style for span in header.render().spans]
        await pilot.press("enter")
        assert await shows(app, pilot, "done, host busy")
    assert "ELAPSED ÷ 4" in head[1]
    assert "12/12 (host busy)" in head[2]


@pytest.mark.full
async def test_the_rounds_are_headed_by_the_steps_of_the_aggregation(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "steps", aggregation='rule = "m:Rule[0]"\nserver = "adam"\n')
    run.play(3)
    async with room(run.finish()) as (app, pilot):
        assert await shows(
            app, pilot, "Rounds by phase · m:Rule[0], adam", "device-seconds · round 3"
        )


async def test_the_energy_of_the_exchanges_is_shown_if_it_is_known(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "energy")
    run.play(3)
    run.store.add(replace(run.exchange(0), round=3, attempt=9, energy_j=1_840.0))
    async with room(run.finish()) as (app, pilot):
        assert await shows(app, pilot, "1.8 kJ · ", "device-seconds · round 3")


async def test_the_epsilon_of_local_noise_is_shown(tmp_path: Path) -> None:
    noise = "[privacy]\nclip = 0.5\nnoise_multiplier = 2.0\n"
    run = FakeRun(tmp_path / "epsilon", aggregation=f'rule = "fedavg"\n{noise}')
    run.play(3)
    for attempt in (0, 1):  # one of a round that never closed
        run.store.add(ReleaseRow(round=2, attempt=attempt, device="pi", is_released=True))
    async with room(run.finish()) as (app, pilot):
        assert await shows(app, pilot, "epsilon ≤ 6.57 · ", "device-seconds · round 3")


async def test_a_run_without_devices_can_be_watched(tmp_path: Path) -> None:
    empty = FakeRun(tmp_path / "empty", devices=0)
    empty.store.flush()
    async with room(empty.folder) as (app, pilot):
        assert await shows(app, pilot, "no devices", "no round yet")
        await pilot.press("enter", "x")
    empty.store.close()


async def test_the_wait_for_round_1_is_shown_in_place_of_the_rounds(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "waiting", devices=1)
    for left_s in (17, 7):
        row = EventRow(
            at_s=20.0 - left_s,
            wall="2026-01-01T00:00:00Z",
            level="info",
            kind="waiting",
            round=None,
            device=None,
            text=f"1 of 2 devices are ready for round 1, {left_s} s left",
        )
        run.store.add(row)
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        assert await shows(app, pilot, "1 of 2 devices are ready for round 1, 7 s left")
        assert "no round yet" not in text_of(app)
    run.store.close()


async def test_p_pauses_and_resumes(run: FakeRun) -> None:
    coordinator = Coordinator()
    async with room(run.folder, send_command=coordinator) as (app, pilot):
        await pilot.press("p")
        await app.workers.wait_for_complete()
        run.store.set_status("paused")
        run.store.flush()
        await app.refresh_view()
        await pilot.press("p")
        await app.workers.wait_for_complete()
    assert coordinator.commands == [("pause", None), ("resume", None)]


async def test_the_footer_names_what_a_key_would_do_now(run: FakeRun) -> None:
    async with room(run.folder, send_command=Coordinator()) as (app, pilot):
        assert await shows(app, pilot, "p Pause  x Exclude")
        run.telemetry(1, "excluded")
        run.store.set_status("paused")
        run.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "p Resume  x Exclude")
        await pilot.press("down")
        assert await shows(app, pilot, "p Resume  x Include")


async def test_x_excludes_the_device_under_the_cursor_and_takes_it_back(run: FakeRun) -> None:
    coordinator = Coordinator()
    async with room(run.folder, send_command=coordinator) as (app, pilot):
        await pilot.press("down", "down", "x")
        await app.workers.wait_for_complete()
        run.telemetry(2, "excluded")
        run.store.flush()
        await app.refresh_view()
        await pilot.press("enter")
        assert await opens(app, pilot, DeviceDetail)
        await pilot.press("x")
        await app.workers.wait_for_complete()
    assert coordinator.commands == [("exclude", run.names[2]), ("include", run.names[2])]


async def test_the_cursor_stays_on_its_device_when_others_change(run: FakeRun) -> None:
    async with room(run.folder) as (app, pilot):
        await pilot.press("down", "down", "down")
        run.play(2)
        run.store.flush()
        await app.refresh_view()
        await pilot.resize_terminal(*SMALL)
        await settled(app, pilot)
        assert isinstance(app.screen, Overview)
        assert app.screen.selected_device == run.names[3]


async def test_commands_are_not_offered_for_a_finished_run(finished: Path) -> None:
    coordinator = Coordinator()
    async with room(finished, send_command=coordinator) as (app, pilot):
        await pilot.press("p", "x")
        assert "Pause" not in await settled(app, pilot)
    assert coordinator.commands == []


async def test_a_command_that_is_not_delivered_is_reported(run: FakeRun) -> None:
    async def fail(_command: OperatorCommand) -> None:
        raise Disconnected("the broker is gone")

    async with room(run.folder, send_command=fail) as (app, pilot):
        await pilot.press("p")
        await app.workers.wait_for_complete()
        assert await shows(app, pilot, "the broker is gone")


@pytest.mark.parametrize("key", some_in_fast(["q", "ctrl+c", "ctrl+q"], "q"))
async def test_closing_never_stops_a_run_of_another_process(run: FakeRun, key: str) -> None:
    coordinator = Coordinator()
    async with room(run.folder, send_command=coordinator) as (app, pilot):
        await pilot.press(key)
    assert app.return_value == "quit"
    assert coordinator.commands == []


@pytest.mark.parametrize(
    ("keys", "choice"),
    [
        (["s"], "stop"),
        in_depth(["l"], "detach"),
        in_depth(["ctrl+c"], "stop"),
        in_depth(["enter"], "stop"),
        in_depth(["right", "enter"], "detach"),
        (["right", "right", "left", "enter"], "detach"),
    ],
)
async def test_leaving_an_own_run_opens_a_dialog(
    run: FakeRun, keys: list[str], choice: str
) -> None:
    async with room(run.folder, owns_run=True) as (app, pilot):
        await pilot.press("q")
        assert await opens(app, pilot, ExitDialog)
        assert await shows(app, pilot, "Stop it?")
        await pilot.press(*keys)
    assert app.return_value == choice


async def test_the_overview_leaves_out_the_events_of_single_rounds(run: FakeRun) -> None:
    run.event("dispatched", "pi-01")
    run.event("left", "the broker lost it")
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        assert await shows(app, pilot, "the broker lost it")
        assert "dispatched" not in text_of(app)


@pytest.mark.parametrize("key", ["escape", "c", "q"])
@pytest.mark.full
async def test_leaving_can_be_cancelled(run: FakeRun, key: str) -> None:
    async with room(run.folder, owns_run=True) as (app, pilot):
        await pilot.press("q")
        assert await opens(app, pilot, ExitDialog)
        await pilot.press(key)
        assert await opens(app, pilot, Overview)
        assert app.is_running


async def test_a_finished_own_run_is_left_without_a_dialog(finished: Path) -> None:
    async with room(finished, owns_run=True) as (app, pilot):
        await pilot.press("q")
    assert app.return_value == "quit"


@pytest.mark.full
async def test_the_application_may_close_while_it_reads(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, is_reading = ViewReader.refresh, threading.Event()
    rooms: list[ControlRoom] = []

    def read_until_closed(feed: ViewReader, view: RunView) -> RunView | None:
        is_reading.set()
        until = time.monotonic() + 10.0
        while rooms and rooms[0].screen_stack and time.monotonic() < until:
            time.sleep(0.001)
        return read(feed, view)

    monkeypatch.setattr(ViewReader, "refresh", read_until_closed)
    async with room(run.folder) as (app, pilot):  # raises the error of its last read
        is_reading.clear()
        rooms.append(app)
        run.play(1)
        run.store.flush()
        with anyio.fail_after(60.0):
            while not is_reading.is_set():
                await pilot.pause(0.02)
    assert not app.screen_stack


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 10, 30])
@pytest.mark.full
async def test_the_application_may_close_while_a_screen_opens(run: FakeRun, turns: int) -> None:
    with RunReader(run.folder) as reader:
        app = ControlRoom(reader)

        async def leave() -> None:
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            app.leave()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)
            with anyio.fail_after(10.0):
                await app.run_async(headless=True, size=WIDE)
    assert app._exception is None


async def test_a_store_error_is_reported_once_and_the_view_stays(run: FakeRun) -> None:
    async with room(run.folder) as (app, pilot):
        app._view_reader.reader._connection.close()
        for _ in range(3):
            await app.refresh_view()
        assert await shows(app, pilot, "Cannot read the run", "3/30")
        assert len(app._notifications) == 1


async def test_the_palette_asks_before_it_stops_an_own_run(run: FakeRun) -> None:
    async with room(run.folder, owns_run=True) as (app, pilot):
        await app.run_action("quit")
        assert await opens(app, pilot, ExitDialog)
    assert app.return_value is None


async def test_the_palette_saves_a_picture_in_the_current_folder(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home-without-downloads"))
    async with room(finished) as (app, pilot):
        (save,) = [c for c in app.get_system_commands(app.screen) if c.title == "Screenshot"]
        save.callback()
        with anyio.fail_after(10.0):
            while not any(name.endswith(".svg") for name in os.listdir(tmp_path)):
                await pilot.pause(0.02)


@pytest.mark.parametrize("key", ["3", "6"])
@pytest.mark.full
async def test_keys_for_a_device_do_nothing_where_no_device_is_shown(
    run: FakeRun, key: str
) -> None:
    coordinator = Coordinator()
    async with room(run.folder, send_command=coordinator) as (app, pilot):
        assert await shows(app, pilot, "x Exclude", "Device")
        await pilot.press(key)
        assert await comes(pilot, lambda: "x Exclude" not in text_of(app))
        assert "⏎ Device" not in text_of(app)
        await pilot.press("x", "enter")
        await settled(app, pilot)
        assert isinstance(app.screen, RunScreen)
        assert app.screen.TAB in ("rounds", "events")
        await pilot.press("1")
        assert await shows(app, pilot, "x Exclude", "Device")
    assert coordinator.commands == []


@pytest.mark.full
async def test_keys_for_a_device_do_nothing_beside_a_maximised_widget(run: FakeRun) -> None:
    coordinator = Coordinator()
    async with room(run.folder, send_command=coordinator) as (app, pilot):
        app.screen.maximize(app.screen.query_one("#events"))
        await settled(app, pilot)
        await pilot.press("x")
        await settled(app, pilot)
    assert coordinator.commands == []


async def test_the_rounds_can_be_scrolled(finished: Path) -> None:
    async with room(finished, SMALL) as (app, pilot):
        await pilot.press("3")
        assert await shows(app, pilot, "round 30 ", "round 28 ")
        assert "round 18 " not in text_of(app)
        await pilot.press("pagedown", "pagedown", "pagedown")
        assert await shows(app, pilot, "round 18 ", "■ download")
        assert "round 30 4.51 s" not in text_of(app)
        await pilot.press("end")
        assert await shows(app, pilot, "round 1 ", "round 2 ")
        await pilot.press("home")
        assert await shows(app, pilot, "round 30 ")


async def test_a_new_round_does_not_move_the_scrolled_rounds(run: FakeRun) -> None:
    run.play(12)
    run.store.flush()
    async with room(run.folder, SMALL) as (app, pilot):
        await pilot.press("3")
        assert await shows(app, pilot, "round 15 ")
        await pilot.press("pagedown", "pagedown")
        before = await settled(app, pilot)
        run.play(2)
        run.store.flush()
        await app.refresh_view()
        after = await settled(app, pilot)
    assert timeline_of(after) == timeline_of(before)


@pytest.mark.full
async def test_a_new_round_does_not_end_a_scroll_half_way(run: FakeRun) -> None:
    run.play(12)
    run.store.flush()
    async with room(run.folder, SMALL) as (app, pilot):
        await pilot.press("3")
        await settled(app, pilot)
        run.play(1)
        run.store.flush()
        timeline = app.screen.query_one(RoundTimeline)
        page = timeline.scrollable_content_region.height
        timeline.scroll_page_down()
        await pilot.pause()
        await app.refresh_view()
        await settled(app, pilot)
        assert timeline.scroll_offset.y in (page, page + 1 + PER_ROUND)


def timeline_of(picture: str) -> list[str]:
    """Return the lines of the timeline without its scroll bar."""
    return [line[2:74] for line in picture.splitlines()[3:-2]]


@pytest.mark.parametrize("size", [(80, 14), in_depth((80, 20)), in_depth((120, 16))])
async def test_a_short_terminal_shows_the_newest_round(
    finished: Path, size: tuple[int, int]
) -> None:
    async with room(finished, size) as (app, pilot):
        picture = await settled(app, pilot)
    assert "no round yet" not in picture


async def test_the_header_keeps_devices_and_debt_when_devices_die(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "dying")
    run.play(9)
    for name in run.names[:3]:
        run.event("left", "the device disconnected", device=name)
    run.store.flush()
    with RunReader(run.folder) as reader:
        for row in reader.rounds():
            run.store.add(replace(row, aggregated_late=1, dropped_late=2, cancelled=3))
        for exchange in reader.exchanges(0):
            run.store.add(replace(exchange, is_valid=False, is_contended=True))
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        assert await shows(app, pilot, "QUEUES", "DEVICES", "9/12", "ELAPSED"), text_of(app)
    async with room(run.folder, SMALL) as (app, pilot):
        assert await shows(app, pilot, "DEVICES", "9/12")
    run.store.close()


async def test_an_interrupted_run_says_how_to_go_on(run: FakeRun) -> None:
    async with room(run.folder, SMALL) as (app, pilot):
        assert "continue with" not in await settled(app, pilot)
        run.store._lock.release()  # as after a kill
        await app.refresh_view()
        assert await shows(app, pilot, "result      interrupted", "n  continue")
        await pilot.press("escape")
        assert await shows(app, pilot, "interrupted: its process ended", "fairbed")
        await pilot.press("enter")
        assert await shows(app, pilot, "interrupted: its process ended", "fairbed")


async def test_alerts_stay_on_every_screen_until_they_are_over(run: FakeRun) -> None:
    alert = AlertRow(kind="disk low", begin_s=1.0, text="1.0 GB are free on the disk of the run")
    async with room(run.folder, SMALL, runs=run.folder.parent) as (app, pilot):
        assert "! disk low" not in await settled(app, pilot)
        run.store.add(alert)
        run.store.flush()
        await app.refresh_view()
        for tab in TABS:
            await pilot.press(tab.key)
            assert await shows(app, pilot, "! disk low: 1.0 GB are free"), tab.name
        for kind in ("host busy", "infeasible"):
            run.store.add(replace(alert, kind=kind, text=60 * "long "))
        run.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "! infeasible: long", "! host busy: long", "…")
        for kind in ("disk low", "host busy", "infeasible"):
            run.store.add(replace(alert, kind=kind, end_s=2.0))
        run.store.flush()
        await app.refresh_view()
        assert "! disk low" not in await settled(app, pilot)


async def test_a_live_run_shows_the_time_that_is_left(run: FakeRun) -> None:
    run.play(6)
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        assert await shows(app, pilot, "LEFT", "≈ 0:"), text_of(app)
        run.finish()
        await app.refresh_view()
        assert "LEFT" not in await settled(app, pilot)


@pytest.mark.full
async def test_the_theme_is_remembered(finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "state/fairbed/control-room.json"
    async with room(finished, preferences=file) as (app, pilot):
        await settled(app, pilot)
        assert app.theme == "tokyo-night"
        assert load_preferences(file).theme is None  # a default is not a choice
        app.theme = "nord"
        assert await comes(pilot, lambda: load_preferences(file).theme == "nord")
    async with room(finished, preferences=file) as (app, pilot):
        assert app.theme == "nord"
        app.theme = "tokyo-night"
        assert await comes(pilot, lambda: load_preferences(file).theme == "tokyo-night")


@pytest.mark.parametrize("text", ["{", '{"theme": "no-such-theme"}', '{"theme": 7}', None])
@pytest.mark.full
async def test_a_damaged_memory_is_no_error(
    finished: Path, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "control-room.json"
    if text is None:
        file.mkdir()
    else:
        file.write_text(text)
    async with room(finished, preferences=file) as (app, pilot):
        assert app.theme == "tokyo-night"
        app.theme = "nord"
        await settled(app, pilot)


def test_the_memory_is_in_the_state_folder_of_the_user(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert preferences_file(environ) == tmp_path / "fairbed/control-room.json"
    assert preferences_file({}) == Path.home() / ".local/state/fairbed/control-room.json"


@pytest.mark.full
async def test_letters_take_the_place_of_colours_on_request(finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "control-room.json"
    async with room(finished, SMALL, preferences=file) as (app, pilot):
        assert "d download" not in await settled(app, pilot)
        (command,) = [c for c in app.get_system_commands(app.screen) if "letters" in c.title]
        command.callback()
        assert await shows(app, pilot, "d download c decode l load")
    async with room(finished, WIDE, preferences=file) as (app, pilot):
        assert await shows(app, pilot, "d down c dec", "b best 10 %")
        assert any(c.title == "Phases as blocks" for c in app.get_system_commands(app.screen))


async def test_without_colours_every_meaning_has_a_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, bytes], None]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    run = FakeRun(tmp_path / "digits-run")
    run.play(8)
    run.event("late", "an update was late", device=run.names[1], level="warning")
    run.event("failed", "the model is not finite", level="error")
    async with room(run.finish()) as (app, pilot):
        assert await shows(app, pilot, "! late", "!! failed")
        picture = await settled(app, pilot) + "\n"
        golden(GOLDEN / "no-color-120x40.txt", picture.encode())
        colours = re.findall(r"#[0-9a-f]{6}", app.export_screenshot().split("<g ", 1)[0])
    grey = [c for c in colours if c[1:3] == c[3:5] == c[5:7]]
    assert len(grey) > len(colours) / 2  # Textual's own chrome of the picture has colours


async def test_sixteen_colours_are_those_of_the_terminal(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ControlRoom, "lacks_colours", True)
    async with room(finished) as (app, pilot):
        assert await shows(app, pilot, "d down c dec", "b best 10 %")
        assert app.theme == "ansi-dark"
        timeline = app.screen.query_one(RoundTimeline)
        numbers = [
            timeline.get_component_rich_style(f"timeline--{phase}", partial=True).color
            for phase in (*PHASES, MISSED)
        ]
        assert len({colour.number for colour in numbers if colour}) == len(PHASES) + 1


@pytest.mark.full
async def test_the_colours_follow_the_theme(finished: Path) -> None:
    async with room(finished) as (app, pilot):
        before = app.export_screenshot()
        app.theme = "textual-light"
        assert await comes(pilot, lambda: app.export_screenshot() != before)


@pytest.mark.full
async def test_each_phase_has_a_colour_of_its_own_in_every_theme(finished: Path) -> None:
    async with room(finished) as (app, pilot):
        timeline = app.screen.query_one(RoundTimeline)
        for theme in app.available_themes:
            app.theme = theme
            await pilot.pause()
            colours = {
                timeline.get_component_rich_style(f"timeline--{phase}", partial=True).color
                for phase in (*PHASES, MISSED)
            }
            assert len(colours) == len(PHASES) + 1, theme


async def test_a_thousand_devices_can_be_watched(tmp_path: Path) -> None:
    large = FakeRun(tmp_path / "large", devices=1_000)
    large.play(2)
    large.store.flush()
    async with room(large.folder) as (app, pilot):
        assert await shows(app, pilot, "Fleet · 1000 devices")
        large.play(1)
        large.store.flush()
        with anyio.fail_after(30.0):
            await app.refresh_view()
        assert await shows(app, pilot, "3/30")
    large.store.close()


@pytest.mark.full
async def test_a_revealed_device_has_a_column_and_a_fact(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "live-run", malicious={0: "free-rider"})
    run.play(3)
    run.store.flush()
    try:
        async with room(run.folder) as (app, pilot):
            assert "malicious" not in await settled(app, pilot)
        async with room(run.folder, reveals=True) as (app, pilot):
            assert await shows(app, pilot, "malicious", "free-rider")
            await pilot.press("enter")
            assert await opens(app, pilot, DeviceDetail)
            assert await shows(app, pilot, "malicious", "free-rider")
    finally:
        run.store.close()
