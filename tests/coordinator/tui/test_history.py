"""Moving in the past of a run: keys, playing, and what is offered there."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.tui.playback import SPEEDS, Playback, history_line
from fairbed.coordinator.tui.reading import ViewReader
from fairbed.coordinator.tui.screens.device import DeviceDetail
from fairbed.coordinator.tui.screens.jump_dialog import JumpDialog
from fairbed.coordinator.tui.screens.overview import Overview
from fairbed.coordinator.tui.view import RunView
from tests.coordinator.store.fake_run import FakeRun, fake_run
from tests.coordinator.tui.conftest import Looks
from tests.coordinator.tui.screen import SMALL, comes, opens, room, settled, shows, text_of

pytestmark = pytest.mark.anyio

GAP_S = 0.5
BACK, FORWARD = "left_square_bracket", "right_square_bracket"
TEN_BACK, TEN_FORWARD = "left_curly_bracket", "right_curly_bracket"


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "digits-run")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    run = FakeRun(tmp_path / "live-run")
    play(run, 3)
    yield run
    run.store.close()


def play(run: FakeRun, rounds: int) -> None:
    for _ in range(rounds):
        run.now_s += GAP_S
        run.play(1)
    run.now_s += GAP_S
    run.store.flush()


async def test_brackets_step_and_end_returns_to_now(finished: Path) -> None:
    async with room(finished) as (app, pilot):
        assert "history" not in await settled(app, pilot)
        await pilot.press(BACK)
        assert await shows(app, pilot, "history: round 30 of 30, ", "paused", "● running")
        await pilot.press(BACK)
        assert await shows(app, pilot, "history: round 29 of 30, ", "29/30", "end Back to now")
        await pilot.press(TEN_BACK, TEN_BACK, TEN_BACK)
        assert await shows(app, pilot, "history: round 1 of 30, ")
        await pilot.press(TEN_FORWARD, FORWARD)
        assert await shows(app, pilot, "history: round 12 of 30, ")
        await pilot.press("end")
        assert await shows(app, pilot, "● done", "30/30")
        assert "history" not in text_of(app)


async def test_after_the_newest_round_comes_now(finished: Path) -> None:
    async with room(finished) as (app, pilot):
        await pilot.press(BACK)
        assert await shows(app, pilot, "history: round 30 of 30")
        await pilot.press(FORWARD)
        assert await shows(app, pilot, "● done")
        assert "history" not in text_of(app)


async def test_a_past_round_looks_as_it_should(finished: Path, looks: Looks) -> None:
    await looks(finished, "history", ("g", "1", "2", "enter"))
    await looks(finished, "history", ("g", "1", "2", "enter"), sizes=(SMALL,), colours="none")


@pytest.mark.full
async def test_every_screen_shows_the_past_round(finished: Path) -> None:
    async with room(finished) as (app, pilot):
        await pilot.press("g", "5", "enter")
        for key in "1236":
            await pilot.press(key)
            assert await shows(app, pilot, "history: round 5 of 30"), key
        await pilot.press("3")
        assert await shows(app, pilot, "· round 5 ")
        assert "round 6" not in text_of(app)
        await pilot.press("1", "enter")
        assert await opens(app, pilot, DeviceDetail)
        assert await shows(app, pilot, "history: round 5 of 30", "of 5 rounds")
        await pilot.press(FORWARD)
        assert await shows(app, pilot, "history: round 6 of 30", "of 6 rounds")


async def test_screens_go_back_with_the_run(finished: Path) -> None:
    """A screen that has read later rows leaves them out in the past, and shows them again."""
    async with room(finished) as (app, pilot):
        for key, later in (("3", "round 30 "), ("6", "round 30:")):
            await pilot.press(key)
            assert await shows(app, pilot, later), key
            await pilot.press("g", "5", "enter")
            assert await shows(app, pilot, "history: round 5 of 30", later.replace("30", "5"))
            past = await settled(app, pilot)
            assert not any(f"round {number}" in past for number in range(6, 31)), past
            await pilot.press(FORWARD)
            assert await shows(app, pilot, "history: round 6 of 30", later.replace("30", "6"))
            await pilot.press("end")
            assert await shows(app, pilot, later), key


async def test_g_accepts_only_rounds_that_there_are(finished: Path) -> None:
    async with room(finished) as (app, pilot):
        await pilot.press("g")
        assert await opens(app, pilot, JumpDialog)
        await pilot.press("3", "1", "enter")
        assert await shows(app, pilot, "the round must be from 1 to 30, got 31")
        await pilot.press("backspace", "backspace", "enter")
        assert await shows(app, pilot, "the round must be from 1 to 30, got nothing")
        await pilot.press("end", "7", "enter")
        assert await shows(app, pilot, "history: round 7 of 30")
        await pilot.press("g", "escape")
        assert await opens(app, pilot, Overview)
        assert await shows(app, pilot, "history: round 7 of 30")


async def test_a_filter_takes_the_keys_of_history(finished: Path) -> None:
    async with room(finished) as (app, pilot):
        await pilot.press("2", "slash", "g", "space", BACK, "end")
        assert await settled(app, pilot)
        assert isinstance(app.view, RunView)
        assert app.view.until_round is None
        assert "/g [" in text_of(app)


async def test_playing_follows_the_clock(finished: Path) -> None:
    clock = Clock()
    async with room(finished, clock=clock) as (app, pilot):
        await pilot.press("space")
        assert await shows(app, pilot, "history: round 1 of 30, ", "playing at 1 round/s")
        await app.refresh_view()
        clock.now_s += 3.0
        await app.refresh_view()
        assert await shows(app, pilot, "history: round 4 of 30, ")
        await pilot.press("plus", "plus")
        await app.refresh_view()
        clock.now_s += 2.0
        await app.refresh_view()
        assert await shows(app, pilot, "history: round 14 of 30, ", "playing at 5 rounds/s")
        await pilot.press("space")
        clock.now_s += 2.0
        await app.refresh_view()
        assert await shows(app, pilot, "history: round 14 of 30, ", "paused")
        await pilot.press("space")
        await app.refresh_view()
        clock.now_s += 60.0
        await app.refresh_view()
        assert await shows(app, pilot, "● done")
        assert "history" not in text_of(app)


async def test_playing_at_the_speed_of_the_run(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    play(run, 6)
    clock = Clock()
    async with room(run.finish(), clock=clock) as (app, pilot):
        ends_s = [row.closed_at_s for row in app._view_reader.reader.rounds()]
        await pilot.press("g", "2", "enter", *["plus"] * len(SPEEDS), "space")
        assert await shows(app, pilot, "history: round 2 of 6", "playing at the speed of the run")
        await app.refresh_view()
        clock.now_s += ends_s[3] - ends_s[1] - 0.01
        await app.refresh_view()
        assert await shows(app, pilot, "history: round 3 of 6")
        clock.now_s += 0.02
        await app.refresh_view()
        assert await shows(app, pilot, "history: round 4 of 6")
        clock.now_s += 1e3
        await app.refresh_view()
        assert await shows(app, pilot, "● done")


async def test_a_live_run_goes_on_behind_its_past(run: FakeRun) -> None:
    """Commands are offered at now only: what is shown is not what they would act on."""

    async def send(_command: object) -> None:
        raise AssertionError("no command may be sent from the past")

    async with room(run.folder, send_command=send) as (app, pilot):
        assert await shows(app, pilot, "p Pause", "x Exclude")
        await pilot.press(BACK, BACK)
        assert await shows(app, pilot, "history: round 2 of 3")
        assert "p Pause" not in await settled(app, pilot)
        await pilot.press("p", "x")
        play(run, 2)
        await app.refresh_view()
        assert await shows(app, pilot, "history: round 2 of 5", "2/30")
        await pilot.press("end")
        assert await shows(app, pilot, "5/30", "p Pause")


async def test_there_is_no_past_before_the_first_round(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        await pilot.press(BACK, "space", "g")
        assert "history" not in await settled(app, pilot)
        assert isinstance(app.screen, Overview)
    run.store.close()


async def test_many_steps_are_read_as_the_last_one(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked = ViewReader.at, []

    def at(feed: ViewReader, round_id: int, now: RunView) -> RunView:
        asked.append(round_id)
        return read(feed, round_id, now)

    monkeypatch.setattr(ViewReader, "at", at)
    async with room(finished) as (app, pilot):
        for _ in range(8):
            await app.action_step(-1)
        assert await comes(pilot, lambda: app.view.until_round == 23)
    assert len(asked) <= 2


@given(
    speed=st.integers(-3, 9),
    start=st.integers(1, 500),
    run_s=st.floats(0.0, 1e5),
    waits_s=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=5),
)
def test_what_is_due_never_goes_back(
    speed: int, start: int, run_s: float, waits_s: list[float]
) -> None:
    playback = Playback(start).at_speed(speed).playing().begun(7.0, run_s)
    now_s, before = 7.0, playback.due(7.0)
    assert before == (run_s if playback.rounds_per_s is None else start)
    for wait_s in waits_s:
        now_s += wait_s
        due = playback.due(now_s)
        assert due >= before
        assert due == pytest.approx(before + wait_s * (playback.rounds_per_s or 1.0), abs=1e-6)
        before = due


def test_the_line_says_where_and_how() -> None:
    view, now = RunView(elapsed_s=41.0), RunView(elapsed_s=730.0)
    paused = Playback(12)
    assert history_line(paused, view, now) == "history: round 12 of 0, 0:41 of 12:10, paused"
    at_run_speed = paused.at_speed(len(SPEEDS)).playing()
    assert history_line(at_run_speed, view, now).endswith("playing at the speed of the run")
