"""What every screen looks like in each of its states: golden files, written by `just snap`.

With all colours at two sizes, one also on a large terminal; in the rest of the tests also without
colours, where characters must carry every meaning, and two with 16 colours.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from fairbed.coordinator.store.tables import AlertRow, EventRow
from fairbed.wire.messages import OperatorAnswer, OperatorCommand
from tests.coordinator.store.fake_run import FakeRun, fake_run
from tests.coordinator.tui.conftest import Colours, Looks
from tests.coordinator.tui.screen import SMALL, WIDE, WIDEST

pytestmark = pytest.mark.anyio


class State(NamedTuple):
    """A state of the control room."""

    name: str
    run: str
    """Folder of the run, one of those in `folder`."""
    keys: tuple[str, ...] = ()
    is_steered: bool = False
    """Keys for commands are offered."""
    is_dialog: bool = False
    """Covers a screen, which 16 colours cannot show dimmed behind it."""
    sizes: tuple[tuple[int, int], ...] = (SMALL, WIDE)


STATES = (
    State("overview", "finished"),
    State("live", "live", is_steered=True, sizes=(SMALL, WIDE, WIDEST)),
    State("waiting", "waiting"),
    State("alerts", "alerts"),
    State("interrupted", "interrupted"),
    State("card", "finished", ("i",), is_dialog=True),
    State("events", "finished", ("6",)),
    State("events-filtered", "finished", ("6", "slash", *"late", "enter")),
    State("command", "live", ("c", *"set"), is_steered=True, is_dialog=True),
    State("kick", "live", ("2", "k"), is_steered=True, is_dialog=True),
    State("jump", "finished", ("g",), is_dialog=True),
    State("help", "finished", ("question_mark",), is_dialog=True),
)

WITH_16_COLOURS = ("live", "card")
"""A screen and a dialog."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs in several states."""
    folder = tmp_path_factory.mktemp("looks")
    with ExitStack() as stack:
        fake_run(folder / "finished")
        live = FakeRun(folder / "live")
        live.play(12)
        for row in live.begin_round():
            live.now_s += 0.3
            live.telemetry(row, "uploading")
        waiting = FakeRun(folder / "waiting", devices=3)
        waiting.store.add(
            EventRow(
                at_s=2.0,
                wall="2026-01-01T00:00:00Z",
                level="info",
                kind="waiting",
                round=None,
                device=None,
                text="3 of 4 devices are ready for round 1, 17 s left",
            )
        )
        alerts = FakeRun(folder / "alerts")
        alerts.play(4)
        for kind, text in (
            ("disk low", "1.0 GB are free on the disk of the run, enough for 40 rounds"),
            ("broker lost", "the broker has not answered since round 4"),
        ):
            alerts.store.add(AlertRow(kind=kind, begin_s=10.0, text=text))
        interrupted = FakeRun(folder / "interrupted")
        interrupted.play(5)
        for run in (live, waiting, alerts, interrupted):
            run.store.flush()
            stack.callback(run.store.close)
        interrupted.store._lock.release()  # as after a kill
        yield folder


async def answer(command: OperatorCommand) -> OperatorAnswer | None:
    return OperatorAnswer(id=command.id, is_accepted=True, text="done")


@pytest.mark.parametrize(
    ("state", "colours"),
    [
        *(pytest.param(state, "all", id=state.name) for state in STATES),
        *(
            pytest.param(state, colours, id=f"{state.name}-{colours}", marks=pytest.mark.full)
            for state in STATES
            for colours in ("none", "16")
            if colours == "none" or state.name in WITH_16_COLOURS
        ),
    ],
)
async def test_a_state_looks_as_it_should(
    folder: Path,
    state: State,
    colours: Colours,
    looks: Looks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)  # the screens name the folder of the run
    await looks(
        Path(state.run),
        f"{state.name}-16" if state.is_dialog and colours == "16" else state.name,
        state.keys,
        sizes=state.sizes,
        colours=colours,
        send_command=answer if state.is_steered else None,
    )
