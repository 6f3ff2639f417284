"""Steering a run from the control room: keys, dialog, answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widgets import Input

from fairbed.coordinator.tui.app import ControlRoom
from fairbed.coordinator.tui.screens.command_dialog import CommandDialog, Names, completions
from fairbed.wire.messages import OperatorAnswer, OperatorCommand
from tests.coordinator.store.fake_run import FakeRun
from tests.coordinator.tui.screen import opens, room, settled, shows, text_of

NAMES: Names = {"link": ("own", "lte-urban", "lte-rural"), "fault": ("unplugged", "killed")}


class Coordinator:
    """Answers commands."""

    def __init__(self, answer: str | None = "as you wish", *, is_accepted: bool = True) -> None:
        self.lines: list[str] = []
        self._answer, self._is_accepted = answer, is_accepted

    async def __call__(self, command: OperatorCommand) -> OperatorAnswer | None:
        self.lines.append(command.line)
        if self._answer is None:
            return None
        return OperatorAnswer(id=command.id, is_accepted=self._is_accepted, text=self._answer)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    run = FakeRun(tmp_path / "live-run")
    run.play(3)
    run.store.flush()
    yield run
    run.store.close()


def texts(typed: str, selected: str | None = None) -> list[str]:
    return [x.text for x in completions(typed, ["pi-1", "pi-2", "jetson"], selected, NAMES)]


def test_actions_come_first() -> None:
    assert "set " in texts("")
    assert texts("st") == ["stop", "stop-after-round"]
    assert texts("throttle", "pi-2") == ["throttle pi-2 "]
    assert texts("kick", "pi-2") == ["kick pi-2"]
    assert texts("nonsense") == []


def test_devices_follow_the_one_under_the_cursor_first() -> None:
    assert texts("kick ", "pi-2") == ["kick pi-2", "kick pi-1", "kick jetson"]
    assert texts("throttle pi", "pi-2") == ["throttle pi-2 ", "throttle pi-1 "]


def test_names_belong_to_their_action() -> None:
    names = ("V", "beta", "per_round", "deadline_s", "min_devices")
    assert texts("set ") == [f"set {name} " for name in names]
    assert texts("set v") == ["set V "]
    assert texts("throttle pi-1 c") == ["throttle pi-1 cpu "]
    assert texts("link pi-1 lte") == ["link pi-1 lte-urban", "link pi-1 lte-rural"]
    assert texts("fault pi-1 u") == ["fault pi-1 unplugged "]
    assert texts("profile pi-1 ") == []


def test_numbers_and_text_are_not_completed() -> None:
    assert texts("set V ") == texts("note hello") == texts("pause ") == texts("kick pi-1 ") == []


@pytest.mark.anyio
async def test_a_typed_command_is_sent_and_its_answer_shown(run: FakeRun) -> None:
    coordinator = Coordinator("selection.beta is 0.1 from round 4 on, before 0.15")
    async with room(run.folder, send_command=coordinator, names=NAMES) as (app, pilot):
        await pilot.press("c")
        assert await opens(app, pilot, CommandDialog)
        assert await shows(app, pilot, "Command to the run", "set NAME NUMBER", "kick DEVICE")
        await pilot.press(*"set be", "tab", *"0.1")
        assert await shows(app, pilot, "set beta 0.1")
        await pilot.press("enter")
        assert await shows(app, pilot, "selection.beta is 0.1 from round 4")
    assert coordinator.lines == ["set beta 0.1"]


@pytest.mark.anyio
async def test_a_note_is_sent_without_the_quotes_around_it(run: FakeRun) -> None:
    coordinator = Coordinator()
    async with room(run.folder, send_command=coordinator) as (app, pilot):
        await pilot.press("c")
        assert await opens(app, pilot, CommandDialog)
        app.screen.query_one(Input).value = 'note "the fan is off"'
        await pilot.press("enter")
        assert await shows(app, pilot, "as you wish")
    assert coordinator.lines == ["note the fan is off"]


@pytest.mark.anyio
async def test_a_command_is_built_by_choosing(run: FakeRun) -> None:
    coordinator = Coordinator()
    async with room(run.folder, send_command=coordinator, names=NAMES) as (app, pilot):
        await pilot.press("down", "c")
        assert await opens(app, pilot, CommandDialog)
        await pilot.press(*"li", "down", "enter")
        assert await shows(app, pilot, f"link {run.names[1]} ", "lte-urban", "lte-rural")
        await pilot.press("down", "down", "down", "up", "enter")
        assert await shows(app, pilot, "as you wish")
    assert coordinator.lines == [f"link {run.names[1]} lte-urban"]


@pytest.mark.anyio
async def test_work_is_lost_after_a_question_only(run: FakeRun) -> None:
    coordinator = Coordinator()
    async with room(run.folder, send_command=coordinator) as (app, pilot):
        await pilot.press("k")
        assert await opens(app, pilot, CommandDialog)
        assert await shows(app, pilot, f"kick {run.names[0]}", "! the work of the device")
        await pilot.press("escape")
        await settled(app, pilot)
        assert coordinator.lines == []
        await pilot.press("c", *"stop", "enter")
        assert await shows(app, pilot, "! the open round is lost; Enter sends it")
        await pilot.press("-")  # another command than the one of the question
        assert "the open round is lost" not in await settled(app, pilot)
        await pilot.press("backspace", "enter")
        assert await shows(app, pilot, "! the open round is lost; Enter sends it")
        assert coordinator.lines == []
        await pilot.press("enter")
        assert await shows(app, pilot, "as you wish")
    assert coordinator.lines == ["stop"]


@pytest.mark.anyio
async def test_the_exclusion_of_a_working_device_is_asked_for(run: FakeRun) -> None:
    coordinator = Coordinator()
    (row, *_) = run.begin_round()
    run.store.flush()
    async with room(run.folder, send_command=coordinator) as (app, pilot):
        await pilot.press(*["down"] * row, "x")
        assert await shows(app, pilot, f"exclude {run.names[row]}", "! its open exchange is lost")
        assert coordinator.lines == []
        await pilot.press("enter")
        assert await shows(app, pilot, "as you wish")
    assert coordinator.lines == [f"exclude {run.names[row]}"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("frob", "! must be one of pause, resume"),
        ("set beta", "! must be 'set NAME NUMBER'"),
        ("set beta much", "! must have a number, got 'much'"),
    ],
)
@pytest.mark.full
async def test_what_is_no_command_is_not_sent(run: FakeRun, typed: str, problem: str) -> None:
    coordinator = Coordinator()
    async with room(run.folder, send_command=coordinator) as (app, pilot):
        await pilot.press("c", *(key if key != " " else "space" for key in typed), "enter")
        assert await shows(app, pilot, problem)
        await pilot.press("escape")
        await settled(app, pilot)
        assert not isinstance(app.screen, CommandDialog)
    assert coordinator.lines == []


@pytest.mark.anyio
async def test_a_refusal_is_shown_with_its_reason(run: FakeRun) -> None:
    coordinator = Coordinator("[selection].beta: 0.9 cannot be guaranteed", is_accepted=False)
    async with room(run.folder, send_command=coordinator) as (app, pilot):
        await pilot.press("p")
        assert await shows(app, pilot, "Refused", "[selection].beta: 0.9 cannot be guaranteed")


@pytest.mark.anyio
async def test_a_run_that_does_not_answer_is_named(run: FakeRun) -> None:
    async with room(run.folder, send_command=Coordinator(None)) as (app, pilot):
        await pilot.press("p")
        assert await shows(app, pilot, "No answer", "pause: the run has not answered")


@pytest.mark.anyio
async def test_a_reader_has_no_commands(run: FakeRun) -> None:
    async with room(run.folder) as (app, pilot):
        assert "Command" not in await settled(app, pilot)
        await pilot.press("c", "k", "x", "p")
        assert "Command to the run" not in await settled(app, pilot)
        assert not offered(app)
    async with room(run.folder, send_command=Coordinator()) as (app, pilot):
        assert await shows(app, pilot, "c Command")
        assert "Command: set NAME NUMBER" in offered(app)
        assert "Command to the run" not in text_of(app)


def offered(app: ControlRoom) -> list[str]:
    """Return the commands to the run in the palette."""
    titles = (command.title for command in app.get_system_commands(app.screen))
    return [title for title in titles if title.startswith("Command")]
