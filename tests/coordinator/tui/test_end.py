"""The end of a run in the control room: a call to the person, and a card."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from fairbed.coordinator.tui.attention import BELL, LONGEST, attention
from fairbed.coordinator.tui.preferences import Preferences, save_preferences
from fairbed.coordinator.tui.screens.result_card import ResultCard
from tests.coordinator.store.fake_run import FakeRun, fake_run
from tests.coordinator.tui.screen import SMALL, comes, opens, room, settled, shows, text_of


@pytest.mark.parametrize(
    ("environ", "sequence"),
    [
        ({"TERM": "xterm-kitty"}, f"{BELL}\x1b]9;Fairbed: demo done\x1b\\"),
        ({"TERM": "xterm", "VTE_VERSION": "1"}, f"{BELL}\x1b]777;notify;Fairbed;demo done\x1b\\"),
        ({"TERM": "foot"}, f"{BELL}\x1b]777;notify;Fairbed;demo done\x1b\\"),
        ({"TERM": "linux"}, BELL),
        ({}, BELL),
    ],
)
def test_a_terminal_is_called_in_its_own_way(environ: Mapping[str, str], sequence: str) -> None:
    assert attention("Fairbed", "demo done", environ) == sequence


def test_a_text_cannot_end_the_sequence_or_begin_another() -> None:
    call = attention("a;b", "c\x07d\x1b]0;e\n" + 500 * "f", {"TERM": "foot"})
    assert call.startswith(f"{BELL}\x1b]777;notify;a b;c?d?]0 e fff")
    assert call.count("\x1b") == 2
    assert len(call) < LONGEST + 40


@pytest.mark.anyio
async def test_the_end_of_a_watched_run_is_a_card_and_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-kitty")
    run = FakeRun(tmp_path / "demo", rounds=4, devices=4)
    run.play(4)
    run.store.flush()
    written = list[str]()
    async with room(run.folder, SMALL) as (app, pilot):
        assert app._driver is not None
        monkeypatch.setattr(app._driver, "write", written.append)
        assert not isinstance(app.screen, ResultCard)
        run.finish()
        await app.refresh_view()
        assert await opens(app, pilot, ResultCard)
        assert await shows(app, pilot, "0.15 kept, lowest rate", "slowest", "fairbed show")
        assert [text for text in written if text.startswith(BELL)] == [
            f"{BELL}\x1b]9;Fairbed: demo: done after 4 rounds\x1b\\"
        ]
        await pilot.press("s")
        assert app.clipboard == f"fairbed show {run.folder}"
        await pilot.press("escape")
        assert await comes(pilot, lambda: not isinstance(app.screen, ResultCard))
        await app.refresh_view()
        assert "slowest" not in await settled(app, pilot), "it is shown once"
        await pilot.press("i")
        assert await opens(app, pilot, ResultCard)
        await pilot.press("q")
        assert await comes(pilot, lambda: app.return_value == "quit")


@pytest.mark.anyio
async def test_a_person_can_have_no_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = tmp_path / "choices.json"
    save_preferences(choices, Preferences(calls=False))
    run = FakeRun(tmp_path / "demo", rounds=1, devices=4)
    run.play(1)
    run.store.flush()
    written = list[str]()
    async with room(run.folder, SMALL, preferences=choices) as (app, pilot):
        assert app._driver is not None
        monkeypatch.setattr(app._driver, "write", written.append)
        run.finish("stopped")
        await app.refresh_view()
        assert await opens(app, pilot, ResultCard)
        assert not [text for text in written if text.startswith(BELL)]
        assert "result      stopped" in text_of(app)


@pytest.mark.anyio
async def test_a_run_that_has_ended_before_is_opened_without_a_card(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "demo", rounds=2)
    async with room(folder, SMALL) as (app, pilot):
        await settled(app, pilot)
        assert not isinstance(app.screen, ResultCard)
        await pilot.press("i")
        assert await opens(app, pilot, ResultCard)
