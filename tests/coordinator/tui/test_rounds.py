"""The screen of all rounds, of which only those on the screen are read."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.tui.app import ControlRoom
from fairbed.coordinator.tui.screens.round import RoundScreen
from fairbed.coordinator.tui.screens.rounds import RoundsScreen
from fairbed.coordinator.tui.widgets.round_list import (
    NO_HEIGHTS,
    RoundList,
    line_of,
    read_window,
    rounds_on,
)
from tests.coordinator.store.fake_run import LATE_ROUND, VOID_ROUND, FakeRun, fake_run
from tests.coordinator.tui.conftest import Looks
from tests.coordinator.tui.screen import SMALL, comes, opens, room, settled, shows, text_of

pytestmark = pytest.mark.anyio

ROUNDS = 45
"""More than twice as many as the view keeps at a time."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with four exchanges in each round but one."""
    return fake_run(tmp_path_factory.mktemp("runs") / "demo-1", rounds=ROUNDS)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[FakeRun]:
    run = FakeRun(tmp_path / "live-run", rounds=60)
    run.play(30)
    run.store.flush()
    yield run
    run.store.close()


def list_of(app: ControlRoom) -> RoundList:
    return app.screen.query_one(RoundList)


@given(
    heights=st.lists(st.integers(1, 6), max_size=12),
    first=st.integers(-3, 80),
    lines=st.integers(1, 20),
)
def test_rounds_on_some_lines_are_found_as_if_every_line_were_looked_at(
    heights: list[int], first: int, lines: int
) -> None:
    column: Ints = np.array(heights, dtype=np.int64)
    by_line = [t for t in range(len(heights), 0, -1) for _ in range(heights[t - 1])]
    oldest, newest = rounds_on(column, first, lines)
    if not heights:
        assert (oldest, newest) == (1, 0)
        return
    start = min(max(first, 0), len(by_line) - 1)
    seen = by_line[start : max(first + lines, start + 1)]
    assert (oldest, newest) == (min(seen), max(seen))
    for round_id in range(1, len(heights) + 1):
        assert line_of(column, round_id) == by_line.index(round_id)


def test_only_the_rounds_around_some_lines_are_read(folder: Path) -> None:
    with RunReader(folder) as reader:
        window = read_window(reader, NO_HEIGHTS, ROUNDS, 50, 30)
        assert len(window.heights) == ROUNDS
        assert window.heights[VOID_ROUND - 1] == 1
        assert set(window.heights.tolist()) == {1, 5}
        assert [x.round for x in window.rounds] == list(range(30, 36))
        later = read_window(reader, window.heights[:40], ROUNDS, 0, 5)
        assert later.heights.tolist() == window.heights.tolist()
        assert [x.round for x in later.rounds] == [ROUNDS]


@pytest.mark.full
async def test_every_past_round_is_shown_and_few_are_kept(folder: Path) -> None:
    async with room(folder, SMALL) as (app, pilot):
        await pilot.press("3")
        assert await shows(app, pilot, f"▸ round {ROUNDS} ")
        seen = set[int]()
        for _ in range(30):
            seen |= {t for t in range(1, ROUNDS + 1) if f" round {t} " in text_of(app)}
            await pilot.press("pagedown")
            rounds = list_of(app)
            assert await comes(pilot, lambda: list_of(app).wanted() is None)
            assert len(rounds._read) <= 3 * 24
            if rounds.selected_round == 1:
                break
        seen |= {t for t in range(1, ROUNDS + 1) if f" round {t} " in await settled(app, pilot)}
        assert seen == set(range(1, ROUNDS + 1))
        assert "…" not in text_of(app)
        assert await shows(app, pilot, "▸ round 1 ", "4 of 4 aggregated")
        await pilot.press("home")
        assert await shows(app, pilot, f"▸ round {ROUNDS} ")


async def test_exchange_times_keep_their_last_digit_beside_the_scrollbar(folder: Path) -> None:
    async with room(folder) as (app, pilot):
        await pilot.press("3")
        assert await shows(app, pilot, f"▸ round {ROUNDS} ")
        lines = (await settled(app, pilot)).splitlines()
        bars = [line for line in lines if line.startswith("│ ") and "█" in line]
        assert len(bars) > 10
        assert all(re.search(r" \d\.\d\d[ ▁▂▃▄▅▆▇█]+│$", line) for line in bars), bars


async def test_enter_opens_the_round_under_the_cursor(folder: Path) -> None:
    async with room(folder) as (app, pilot):
        await pilot.press("3")
        assert await shows(app, pilot, f"▸ round {ROUNDS} ")
        await pilot.press("down", "down", "enter")
        assert await opens(app, pilot, RoundScreen)
        assert await shows(app, pilot, f"Round {ROUNDS - 2} ", "selected:")
        await pilot.press("escape")
        assert await opens(app, pilot, RoundsScreen)
        assert await shows(app, pilot, f"▸ round {ROUNDS - 2} ")
        await pilot.press("up", "up", "up")
        assert await shows(app, pilot, f"▸ round {ROUNDS} ")


async def test_void_and_late_rounds_have_their_result(folder: Path) -> None:
    async with room(folder) as (app, pilot):
        await pilot.press("3", "end")
        assert await shows(app, pilot, "▸ round 1 ")
        for round_id, text in ((VOID_ROUND, "void, no device"), (LATE_ROUND, "3 of 4 aggregated")):
            while (at := list_of(app).selected_round) != round_id:
                assert at is not None
                await pilot.press("up" if at < round_id else "down")
            assert await shows(app, pilot, f"▸ round {round_id} ")
            (line,) = [x for x in text_of(app).splitlines() if f"▸ round {round_id} " in x]
            assert text in line


async def test_the_cursor_follows_the_newest_round_until_it_is_moved(live: FakeRun) -> None:
    async with room(live.folder) as (app, pilot):
        await pilot.press("3")
        assert await shows(app, pilot, "▸ round 30 ")
        live.begin_round()
        live.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "▸ round 31 open for")
        live.close_round()
        live.play(1)
        live.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "▸ round 32 ")
        await pilot.press("down")
        live.play(1)
        live.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "▸ round 31 ", "  round 33 ")


async def test_rounds_far_from_the_newest_do_not_move_when_one_closes(live: FakeRun) -> None:
    async with room(live.folder, SMALL) as (app, pilot):
        await pilot.press("3", "end")
        assert await shows(app, pilot, "▸ round 1 ", "round 3 ")
        before = await settled(app, pilot)
        live.play(3)
        live.store.flush()
        await app.refresh_view()
        after = await settled(app, pilot)
    marks = [line[:60] for line in before.splitlines() if "round " in line and "aggregated" in line]
    assert marks
    assert marks == [line[:60] for line in after.splitlines() if "aggregated" in line]


async def test_a_run_without_rounds_has_no_cursor(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        await pilot.press("3", "down", "enter", "end", "pagedown")
        assert await shows(app, pilot, "no round yet")
        assert isinstance(app.screen, RoundsScreen)
        assert list_of(app).selected_round is None
    run.store.close()


async def test_the_rounds_look_as_they_should(folder: Path, looks: Looks) -> None:
    await looks(folder, "rounds", ["3", "down"])


async def test_the_rounds_without_colours(folder: Path, looks: Looks) -> None:
    for colours in ("16", "none"):
        await looks(folder, "rounds", ["3", "down"], sizes=[SMALL], colours=colours)
