"""Keys that the user chose: read, checked, used, and printed to be edited."""

import re
from pathlib import Path

import msgspec
import pytest

from fairbed.coordinator.tui.app import ControlRoom
from fairbed.coordinator.tui.keys import (
    KeysError,
    key_actions,
    keys_file,
    keys_page,
    keys_toml,
    read_keys,
    shown,
)
from fairbed.coordinator.tui.preferences import Preferences, save_preferences
from fairbed.coordinator.tui.screens.fleet import FleetScreen
from fairbed.coordinator.tui.screens.help import HelpScreen
from fairbed.coordinator.tui.screens.rounds import RoundsScreen
from fairbed.coordinator.tui.screens.runs import RunsScreen
from tests.coordinator.store.fake_run import fake_run
from tests.coordinator.tui.screen import WIDEST, opens, room, settled, shows

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "digits-run", rounds=3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "control-room.toml"


def test_the_file_is_in_the_folder_of_the_users_settings(tmp_path: Path) -> None:
    at = keys_file({"XDG_CONFIG_HOME": str(tmp_path)})
    assert at == tmp_path / "fairbed/control-room.toml"
    assert keys_file({}) == Path.home() / ".config/fairbed/control-room.toml"


def test_without_a_file_all_keys_are_the_usual_ones(file: Path) -> None:
    assert read_keys(file) == {}


def test_the_printed_file_changes_nothing(file: Path) -> None:
    file.write_text(keys_toml())
    keys = read_keys(file)
    assert {name: tuple(text.split(",")) for name, text in keys.items()} == {
        action.id: action.keys for action in key_actions()
    }
    assert {"pause", "fleet", "filter", "sort", "help", "quit"} <= keys.keys()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[keys]\npauze = 'z'", "keys.pauze: no key has this name; fairbed watch --keys prints"),
        ("[keys]\npause = 'q'", "keys.pause: q is also the key of quit; give one of them another"),
        ("[keys]\nsort = 'r'", "keys.sort: r is also the key of reverse; give one of them"),
        ("[keys]\npause = 'hyperdrive'", "keys.pause: must be characters or names such as f5"),
        ("[keys]\npause = ''", "keys.pause: must be characters or names such as f5"),
        ("[keys]\npause = 7", "must have a table [keys] with lines such as pause = "),
        ("[kees]", "must have a table [keys] with lines such as pause = "),
        ("[keys", "not valid TOML: Expected ']' at the end of a table declaration"),
    ],
)
def test_a_bad_file_has_one_line_that_says_where_and_why(
    file: Path, text: str, problem: str
) -> None:
    file.write_text(text)
    with pytest.raises(KeysError, match=f"^{re.escape(f'{file}: {problem}')}") as error:
        read_keys(file)
    assert "\n" not in str(error.value)


def test_an_unreadable_file_is_named(file: Path) -> None:
    file.write_bytes(b"\xff")
    with pytest.raises(KeysError, match="must be UTF-8 text, got byte 0xff"):
        read_keys(file)


def test_two_actions_can_exchange_their_keys(file: Path) -> None:
    file.write_text("[keys]\npause = 'x'\nexclude = 'p, f5, ctrl+e'\n")
    assert read_keys(file) == {"pause": "x", "exclude": "p,f5,ctrl+e"}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("question_mark", "?"),
        ("left_square_bracket", "["),
        ("slash", "/"),
        ("space", "space"),
        ("escape", "escape"),
        ("ctrl+p", "ctrl+p"),
        ("C", "C"),
    ],
)
def test_a_key_is_shown_as_a_person_writes_it(key: str, text: str) -> None:
    assert shown(key) == text


@pytest.fixture
def chosen(file: Path) -> Path:
    file.write_text("[keys]\nfleet = 'F'\nhelp = 'h'\nsort = 'ctrl+s'\n")
    return file


@pytest.fixture
def bad(file: Path) -> Path:
    file.write_text("[keys]\nhelp = 'h'\npauze = 'z'\n")
    return file


async def test_chosen_keys_work_and_are_in_footer_and_help(finished: Path, chosen: Path) -> None:
    async with room(finished, WIDEST, keys=chosen) as (app, pilot):
        assert await shows(app, pilot, "h Help", "^s Sort")
        await pilot.press("3")
        assert await opens(app, pilot, RoundsScreen)
        await pilot.press("2")
        await settled(app, pilot)
        assert isinstance(app.screen, RoundsScreen)
        await pilot.press("F")
        assert await opens(app, pilot, FleetScreen)
        await pilot.press("h")
        assert await opens(app, pilot, HelpScreen)
        await pilot.press("end")
        assert await shows(app, pilot, "^s ", "Sort: Choose the column to sort by")


async def test_a_bad_file_is_reported_and_the_usual_keys_work(finished: Path, bad: Path) -> None:
    async with room(finished, keys=bad) as (app, pilot):
        assert await shows(app, pilot, "Your keys are not used")
        (notice,) = app._notifications  # on the screen a long path wraps the line
        assert f"{bad}: keys.pauze: no key has this" in notice.message
        assert await shows(app, pilot, "? Help")
        await pilot.press("question_mark")
        assert await opens(app, pilot, HelpScreen)


def test_the_reference_names_every_key_once() -> None:
    page = keys_page("")
    assert all(page.count(f"| `{action.id}` |") == 1 for action in key_actions())
    assert msgspec.toml.decode(keys_toml())["keys"]["help"] == "?"
    assert ControlRoom.__name__ not in page


async def test_the_next_start_shows_the_last_screen(finished: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    async with room(finished, preferences=memory, runs=finished.parent) as (app, pilot):
        await pilot.press("3")
        assert await opens(app, pilot, RoundsScreen)
        await pilot.press("7")
        assert await opens(app, pilot, RunsScreen)
    async with room(finished, preferences=memory) as (app, pilot):
        assert await opens(app, pilot, RoundsScreen)
    for name in ("no-such-screen", "runs"):
        save_preferences(memory, Preferences(screen=name))
        async with room(finished, preferences=memory) as (app, pilot):
            assert await shows(app, pilot, "[1 Overview]")
