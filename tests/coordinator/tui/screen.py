"""The control room in a terminal that tests read: as plain lines, at any size."""

import html
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.tui.app import ControlRoom

SMALL, WIDE, WIDEST = (80, 24), (120, 40), (200, 60)
"""Sizes in columns and lines at which every screen must be good to read."""

CELL_WIDTH = 12.2
"""Width of a cell in the SVG that Textual exports, in its units."""

_TEXT = re.compile(
    r'<text [^>]*?x="(?P<x>[\d.]+)"[^>]*?clip-path="url\(#[\w-]+-line-(?P<line>\d+)\)"[^>]*>'
    r"(?P<text>.*?)</text>"
)


def lines_on(app: App[Any]) -> list[str]:
    """Return the lines of the screen, without trailing spaces."""
    svg = app.export_screenshot(simplify=True)
    lines = [""] * app.size.height
    for match in _TEXT.finditer(svg):
        number, column = int(match["line"]), round(float(match["x"]) / CELL_WIDTH)
        text = html.unescape(match["text"]).replace("\xa0", " ")
        lines[number] = lines[number].ljust(column) + text
    return [line.rstrip() for line in lines]


@asynccontextmanager
async def room(
    folder: Path, size: tuple[int, int] = WIDE, **options: Any
) -> AsyncIterator[tuple[ControlRoom, Pilot[Any]]]:
    """Open a run's control room."""
    with RunReader(folder) as reader:
        app = ControlRoom(reader, **options)
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            yield app, pilot


def text_of(app: ControlRoom) -> str:
    return "\n".join(lines_on(app))


TURNS = 50
"""Turns of the event loop in which a screen must show something, beside those of its workers."""


def is_busy(app: App[Any]) -> bool:
    """Return whether a worker still reads or sends something."""
    return any(worker.is_running for worker in app.workers)


async def settled(app: ControlRoom, pilot: Pilot[Any]) -> str:
    """Return the screen once no worker runs, and another turn of the loop does not change it."""
    before, turns = "", 0
    while turns < TURNS:
        await pilot.pause()
        turns += not is_busy(app)
        if (now := text_of(app)) == before and not is_busy(app):
            return now
        before = now
    raise AssertionError("the screen never stood still")


async def comes(pilot: Pilot[Any], is_so: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true within some turns of the event loop."""
    turns = 0
    while turns < TURNS:
        await pilot.pause()
        if is_so():
            return True
        turns += not is_busy(pilot.app)
    return False


async def shows(app: ControlRoom, pilot: Pilot[Any], *texts: str) -> bool:
    """Return whether texts appear on the screen together."""
    return await comes(pilot, lambda: all(text in text_of(app) for text in texts))


async def opens(app: ControlRoom, pilot: Pilot[Any], screen: type[Screen[Any]]) -> bool:
    """Return whether a screen opens."""
    return await comes(pilot, lambda: isinstance(app.screen, screen))
