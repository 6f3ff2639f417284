"""Log of the run's events, newest at the bottom; draws only the lines on the screen."""

from collections.abc import Sequence
from itertools import chain
from typing import ClassVar, TypeAlias

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual.events import Resize
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from fairbed.coordinator.report.quantities import clock
from fairbed.coordinator.store.tables import EventRow
from fairbed.coordinator.tui.event_pages import IN_ROUNDS, Entry
from fairbed.coordinator.tui.view import EVENTS_KEPT, RunView

TIME_WIDTH = 7
MARKS = {"warning": "! ", "error": "!! "}
"""Mark before an event of this level, beside its colour."""

Line: TypeAlias = tuple[tuple[str, str], ...]
"""Texts, each with a component class without its prefix, or "" for no class."""


class EventLogView(ScrollView, can_focus=True):
    """The run's events except those of single rounds; scrolls with new events at the end."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "log--time",
        "log--info",
        "log--warning",
        "log--error",
        "log--device",
    }

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "Events"
        self._view = RunView()
        self._lines: list[Line] = []
        self._last = 0
        self._width = 0

    def on_resize(self, _event: Resize) -> None:
        """Wrap all lines again and show the end; a hidden log is written when it is shown."""
        if self.scrollable_content_region.width != self._width:
            self._width = self.scrollable_content_region.width
            self._lines, self._last = [], 0
        self.show(self._view)
        self.scroll_end(animate=False)

    def show(self, view: RunView) -> None:
        """Write new events, or all events if rows became void."""
        self._view = view
        if view.cursor.event < self._last:
            self._lines, self._last = [], 0
        if self._width == 0 or not self.is_on_screen:
            return
        events = [
            event
            for number, event in view.events
            if number > self._last and event.kind not in IN_ROUNDS
        ]
        if not events and self._lines:
            return
        follows = self._last == 0 or self.is_vertical_scroll_end
        self._last = view.cursor.event
        new: list[list[Line]] = []
        n_new = 0
        for event in reversed(events):
            new.append(event_lines(event, self._width))
            n_new += len(new[-1])
            if n_new >= EVENTS_KEPT:
                break
        self._lines += chain.from_iterable(reversed(new))
        surplus = max(0, len(self._lines) - EVENTS_KEPT)
        del self._lines[:surplus]
        self.virtual_size = Size(self._width, len(self._lines))
        if follows:
            self.scroll_end(animate=False)
        elif surplus:
            self.scroll_to(y=self.scroll_offset.y - surplus, animate=False)
        self.refresh()

    def restyle(self) -> None:
        """Draw all lines again, in the colours of the theme."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return one line of the scrolled log."""
        number, base = y + self.scroll_offset.y, self.rich_style
        if number >= len(self._lines):
            return Strip.blank(self.size.width, base)
        segments = [Segment(text, base + self._style(name)) for text, name in self._lines[number]]
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"log--{name}", partial=True) if name else Style.null()


def event_lines(event: EventRow | Entry, width: int) -> list[Line]:
    """Return the time of an event, and beside it what happened, wrapped to `width` columns."""
    level = event.level if event.level in MARKS else "info"
    parts = [(f"{MARKS.get(level, '')}{event.kind} ", level)]
    if event.device:
        parts.append((f"{event.device} ", "device"))
    parts.append((event.text, ""))
    time = clock(event.at_s).rjust(TIME_WIDTH)
    lines = wrapped(parts, max(2, width - TIME_WIDTH - 1))  # a wide character has two columns
    return [
        (((" " * TIME_WIDTH if number else time), "time"), (" ", ""), *line)
        for number, line in enumerate(lines)
    ]


def wrapped(parts: Sequence[tuple[str, str]], width: int) -> list[Line]:
    """Return texts in lines of at most `width` columns, broken between words where possible.

    Spaces at a break are left out.
    """
    lines: list[list[tuple[str, str]]] = [[]]
    used = 0
    for text, name in parts:
        for number, word in enumerate(text.split(" ")):
            space = " " if number else ""
            if used + len(space) + cell_len(word) > width:
                lines += [[]] if used > 0 else []
                used, space = 0, ""
            *full, rest = chop_cells(word, width) or [""]
            for piece in full:
                lines[-1].append((space + piece, name))
                lines.append([])
                used, space = 0, ""
            lines[-1].append((space + rest, name))
            used += len(space) + cell_len(rest)
    return [tuple(line) for line in lines]
