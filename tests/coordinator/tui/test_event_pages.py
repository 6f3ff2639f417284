"""The list of events: pages of it, and the screen."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.tui import event_pages
from fairbed.coordinator.tui.event_pages import (
    FIELDS,
    IN_ROUNDS,
    Entry,
    EventWindow,
    Position,
    newer,
    older,
)
from fairbed.coordinator.tui.filters import Filter, parse_filter
from fairbed.coordinator.tui.screens.events import EventPages, EventsScreen
from fairbed.coordinator.tui.screens.overview import Overview
from tests.coordinator.store.fake_run import LATE_ROUND, VOID_ROUND, FakeRun
from tests.coordinator.tui.screen import SMALL, WIDE, comes, room, settled, shows, text_of

ALL: Filter[Entry] = Filter()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeRun]:
    """A live run of 60 rounds."""
    run = FakeRun(tmp_path_factory.mktemp("runs") / "demo", devices=6, rounds=100)
    for number in range(60):
        run.play(1)
        for count in range(number % 4):
            run.event("clamped", f"note {number}.{count}", device=run.names[count])
    run.store.flush()
    yield run
    run.store.close()


@pytest.fixture
def reader(run: FakeRun) -> Iterator[RunReader]:
    with RunReader(run.folder) as reader:
        yield reader


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page, a query and a window be small."""
    monkeypatch.setattr(event_pages, "PAGE", 7)
    monkeypatch.setattr(event_pages, "CHUNK", 5)
    monkeypatch.setattr(EventWindow, "MOST", 28)


def end_of(reader: RunReader) -> Position:
    return Position(reader.events()[-1][0], reader.newest_round())


def listed(reader: RunReader) -> list[tuple[float, str]]:
    """Return what the whole list must have."""
    events = [(row.at_s, row.text) for _, row in reader.events() if row.kind not in IN_ROUNDS]
    rounds = [
        (row.closed_at_s, f"{row.round}: {row.aggregated} of {row.selected} aggregated")
        for row in reader.rounds()
        if row.status != "void"
    ]
    return sorted(events + rounds)


def shown(entries: list[Entry]) -> list[tuple[float, str]]:
    """Return the same of entries."""
    return sorted(
        (entry.at_s, entry.text.split(", ")[0] if entry.kind == "round" else entry.text)
        for entry in entries
        if "void" not in entry.text
    )


def all_older(reader: RunReader, filter_: Filter[Entry] = ALL) -> list[Entry]:
    """Page from the end to the begin."""
    entries, end = list[Entry](), end_of(reader)
    while True:
        page = older(reader, end, filter_)
        assert page.end == end
        entries = [*page.entries, *entries]
        end = page.start
        if page.is_first:
            return entries


def test_pages_backwards_have_every_event_and_round_once_and_in_order(reader: RunReader) -> None:
    entries = all_older(reader)
    assert shown(entries) == listed(reader)
    assert [entry.at_s for entry in entries] == sorted(entry.at_s for entry in entries)


def test_pages_forwards_are_the_same_from_any_entry(reader: RunReader) -> None:
    entries, last = all_older(reader), end_of(reader)
    for begin in (0, 3, 40, len(entries) - 1):
        found, start = entries[: begin + 1], entries[begin].position
        while start != last:
            page = newer(reader, start, last, ALL)
            found, start = [*found, *page.entries], page.end
        assert found == entries


def test_a_filter_reaches_everything_of_its_kind(reader: RunReader) -> None:
    wanted = parse_filter("level:warning", FIELDS)
    found = all_older(reader, wanted)
    late = [row for _, row in reader.events() if row.level == "warning"]
    assert len(found) == len(late) + 1, "and the void round"
    assert {entry.round for entry in found} == {VOID_ROUND, LATE_ROUND}
    assert len(all_older(reader, parse_filter("round>58", FIELDS))) == 2 + 2 + 3
    assert len(all_older(reader, parse_filter("kind:dispatched", FIELDS))) == 60


def test_a_page_ends_after_enough_rows_even_if_none_is_accepted(
    reader: RunReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_pages, "SCANNED", 10)
    page = older(reader, end_of(reader), parse_filter("no-such-text", FIELDS))
    assert page.entries == []
    assert not page.is_first
    last = end_of(reader)
    assert page.start.event + page.start.round == last.event + last.round - 10


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_a_window_is_a_part_of_the_list_and_small_whatever_is_scrolled(
    reader: RunReader, steps: list[tuple[bool, bool]]
) -> None:
    entries, window, last = all_older(reader), EventWindow(), end_of(reader)
    for is_top, is_bottom in steps:
        read = window.lacks(last, is_top=is_top, is_bottom=is_bottom)
        if read is not None:
            window.add(read(reader))
        if window.entries:
            begin = entries.index(window.entries[0])
            assert window.entries == entries[begin : begin + len(window.entries)]
            assert len(window.entries) <= EventWindow.MOST
    while (read := window.lacks(last, is_top=True, is_bottom=False)) is not None:
        window.add(read(reader))
    assert window.entries[0] == entries[0]
    while (read := window.lacks(last, is_top=False, is_bottom=True)) is not None:
        window.add(read(reader))
    assert window.entries[-1] == entries[-1]


def test_a_list_that_ends_earlier_begins_anew(reader: RunReader) -> None:
    """As when a past round is shown."""
    window, last = EventWindow(), end_of(reader)
    read = window.lacks(last, is_top=False, is_bottom=True)
    assert read is not None
    window.add(read(reader))
    past = Position(last.event // 2, last.round // 2)
    read = window.lacks(past, is_top=False, is_bottom=True)
    assert read is not None
    window.add(read(reader))
    assert window.entries[-1].position == past


@pytest.mark.full
@pytest.mark.anyio
async def test_the_screen_has_one_line_a_round_and_no_dispatches(run: FakeRun) -> None:
    async with room(run.folder, WIDE) as (app, pilot):
        await pilot.press("6")
        assert await shows(app, pilot, "round 60: 4 of 4 aggregated, ", "clamped")
        assert "dispatched" not in text_of(app)


@pytest.mark.full
@pytest.mark.anyio
async def test_the_screen_reaches_the_first_event_and_the_last_one_again(run: FakeRun) -> None:
    async with room(run.folder, SMALL) as (app, pilot):
        await pilot.press("6")
        assert await shows(app, pilot, "round 60: 4 of 4 aggregated")
        pages = app.screen.query_one(EventPages)
        for _ in range(40):
            await pilot.press("home")
            await settled(app, pilot)
            if "joined" in text_of(app) and pages.scroll_offset.y == 0 and pages.lacks() is None:
                break
        assert await shows(app, pilot, "0:00 joined")
        for _ in range(60):
            await pilot.press("end")
            await settled(app, pilot)
            if pages.lacks() is None:
                break
        assert await shows(app, pilot, "round 60: 4 of 4 aggregated")


@pytest.mark.anyio
async def test_a_screen_is_drawn_only_between_its_first_widget_and_its_last(run: FakeRun) -> None:
    """New rows may arrive while a screen opens, and their reads may end after it has closed."""
    async with room(run.folder, WIDE) as (app, pilot):
        screen = EventsScreen()
        opened = app.push_screen(screen)
        await app.on_run_screen_lacking()
        assert not screen.query(EventPages)
        await opened

        read = threading.Event()
        screen.lacks = lambda view: lambda reader: read.wait(10)  # type: ignore[method-assign]
        received: list[object] = []
        screen.receive = received.append  # type: ignore[assignment, method-assign]
        shown = asyncio.create_task(app.on_run_screen_lacking())
        await pilot.pause()
        await app.pop_screen()
        read.set()
        await shown
        assert not received


@pytest.mark.anyio
async def test_no_command_for_a_device_is_offered_before_or_after_its_screen_has_widgets(
    run: FakeRun,
) -> None:
    """A tick may come while a screen opens, and while the control room closes."""
    async with room(run.folder, WIDE) as (app, pilot):
        assert app.check_action("why", ())
        opened = app.push_screen(Overview())
        assert not app.check_action("why", ())
        await opened
        await app.on_run_screen_lacking()
        assert await comes(pilot, lambda: bool(app.check_action("why", ())))
        await app.screen.remove()
        assert not app.check_action("why", ())


@pytest.mark.anyio
async def test_a_filter_is_typed_after_a_slash_and_the_list_follows_new_events(
    tmp_path: Path,
) -> None:
    run = FakeRun(tmp_path / "run", devices=6)
    run.play(12)
    run.store.flush()
    async with room(run.folder, WIDE) as (app, pilot):
        await pilot.press("6", "slash", *"level:warning", "enter")
        assert await shows(app, pilot, "! round 6: void, no device", "no upload within 60 s")
        assert isinstance(app.screen, EventsScreen)
        assert "joined" not in text_of(app)
        run.event("disk low", "1 GB is free", level="warning")
        run.play(1)
        run.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "! disk low 1 GB is free")
        await pilot.press("escape")
        assert await shows(app, pilot, "round 13: 4 of 4 aggregated")
        await pilot.press("slash", *"no-such-word", "enter")
        assert await comes(pilot, lambda: "no event passes the filter" in text_of(app))
    run.store.close()
