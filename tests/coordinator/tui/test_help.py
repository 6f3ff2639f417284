"""Help: every label and key of every screen has an explanation."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import ModalScreen
from textual.widgets import DataTable

from fairbed.coordinator.tui.app import TABS, ControlRoom
from fairbed.coordinator.tui.phase_spans import LETTERS, WORDS
from fairbed.coordinator.tui.screens.help import HelpScreen
from fairbed.coordinator.tui.screens.run_screen import RunScreen
from fairbed.coordinator.tui.widgets.fleet import FleetTable
from fairbed.coordinator.tui.widgets.header import RunHeader, explanations
from fairbed.wire.messages import OperatorCommand
from tests.coordinator.store.fake_run import FakeRun, fake_run
from tests.coordinator.tui.conftest import Looks
from tests.coordinator.tui.screen import SMALL, WIDE, WIDEST, opens, room, settled, shows, text_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "digits-run", rounds=12)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    run = FakeRun(tmp_path / "live-run")
    run.play(3)
    run.store.flush()
    yield run.folder
    run.store.close()


def headings(app: ControlRoom) -> set[str]:
    """Return the headings of all tables on the screen."""
    found = set()
    for table in app.screen.query(DataTable):
        if isinstance(table, FleetTable):
            found |= set(table._titles)
        else:
            found |= {column.label.plain.strip("↓↑▾▴ ") for column in table.ordered_columns}
    return found


@pytest.mark.parametrize(
    "size", [SMALL, pytest.param(WIDEST, marks=pytest.mark.full)], ids=["80x24", "200x60"]
)
async def test_every_heading_of_every_screen_is_explained(
    finished: Path, size: tuple[int, int]
) -> None:
    async with room(finished, size, runs=finished.parent) as (app, pilot):
        for keys in (*([tab.key] for tab in TABS), ["2", "enter"]):
            await pilot.press(*keys)
            await settled(app, pilot)
            assert isinstance(app.screen, RunScreen)
            assert app.screen.PURPOSE
            labels = {label for label, _ in app.screen.explanations()}
            labels |= WORDS.keys() if app.screen.HAS_PHASES else set()
            assert headings(app) - labels == set(), keys
            assert all(words for _, words in app.screen.explanations())


async def test_every_tile_of_the_header_and_every_phase_is_explained(live: Path) -> None:
    async with room(live, WIDEST) as (app, _):
        tiles = app.screen.query_one(RunHeader)._tiles(app.view)
    assert "LEFT" in {tile.label for tile in tiles}
    assert {re.sub(" [÷×].*", "", tile.label) for tile in tiles} <= {x for x, _ in explanations()}
    assert WORDS.keys() == LETTERS.keys()


def our_bindings() -> Iterator[tuple[str, Binding]]:
    """Yield the bindings that classes of the control room declare; dialogs explain theirs."""
    classes = list(DOMNode.__subclasses__())
    for kind in classes:
        classes += kind.__subclasses__()
        if kind.__module__.startswith("fairbed.") and not issubclass(kind, ModalScreen):
            for binding in Binding.make_bindings(kind.__dict__.get("BINDINGS", [])):
                yield kind.__name__, binding


def test_every_key_has_a_name_to_rebind_it_and_an_explanation() -> None:
    found = list(our_bindings())
    assert {"ControlRoom", "FleetTable", "FilterBar", "RunScreen"} <= {name for name, _ in found}
    assert not [(name, x.key) for name, x in found if not (x.id and x.tooltip and x.description)]


async def test_the_help_of_the_fleet_looks_as_it_should(finished: Path, looks: Looks) -> None:
    await looks(finished, "help-fleet", ["2", "question_mark"], sizes=[SMALL, WIDE])


async def test_a_small_screen_names_the_most_useful_keys(live: Path) -> None:
    async def send(_command: OperatorCommand) -> None:
        pass

    async with room(live, SMALL, send_command=send) as (app, pilot):
        await pilot.press("2")
        assert await shows(app, pilot, "/ Filter", "p Pause", "x Exclude", "? Help", "q Quit")
        await pilot.resize_terminal(*WIDE)
        assert await shows(app, pilot, "/ Filter  p Pause")


async def test_help_scrolls_and_closes_by_key(finished: Path) -> None:
    async with room(finished, SMALL) as (app, pilot):
        assert await shows(app, pilot, "? Help")
        await pilot.press("2", "question_mark")
        assert await opens(app, pilot, HelpScreen)
        assert await shows(app, pilot, "Help · Fleet", "Name of the device")
        await pilot.press("end")
        assert await shows(app, pilot, "Sum of the virtual queues")
        await pilot.press("escape")
        assert await shows(app, pilot, "[2 Fleet]", "Fleet · 12 devices")
        await pilot.press("slash", "question_mark")
        assert await shows(app, pilot, "0 of 12 devices · filter /?")
        assert "Help ·" not in text_of(app)
