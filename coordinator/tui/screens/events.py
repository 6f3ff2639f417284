"""Screen of the events of a run, one line for each round; a filter finds the others."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from textual.app import ComposeResult
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message

from fairbed.coordinator.tui.event_pages import FIELDS, Entry, EventWindow, Page, Position
from fairbed.coordinator.tui.filters import Filter
from fairbed.coordinator.tui.screens.run_screen import Read, RunScreen
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.filter_bar import FilterBar
from fairbed.coordinator.tui.widgets.log import EventLogView, Line, event_lines

NOTHING: Line = (("no event passes the filter", "time"),)


class EventPages(EventLogView):
    """All events and rounds; those far from the lines on the screen stay in the store."""

    class Reached(Message):
        """An end of what was read is on the screen."""

    def __init__(self) -> None:
        super().__init__(id="events")
        self._window = EventWindow()
        self._blocks: list[list[Line]] = []
        """Lines of each entry in memory."""
        self._last_position = Position()

    def show(self, view: RunView) -> None:
        """Note where the list ends."""
        self._last_position = Position(view.cursor.event, view.cursor.round)

    def filter(self, filter_: Filter[Entry]) -> None:
        """List only the entries that a filter accepts."""
        if filter_.text != self._window.filter.text:
            self._window.reset(filter_)
            self.post_message(self.Reached())

    def lacks(self) -> Read | None:
        """Return the read of the page that is needed next; None if all are there."""
        return self._window.lacks(
            self._last_position,
            is_top=self.scroll_offset.y <= 0,
            is_bottom=self._is_at_end,
        )

    def add(self, page: Page) -> None:
        """Add a page that was read; what was on the screen stays where it was."""
        follows, y = self._is_at_end, self.scroll_offset.y
        if self._window.is_empty:
            self._blocks, follows = [], True
        count, lost = self._window.add(page)
        if count > 0:
            fresh = self._wrapped(self._window.entries[:count])
            self._blocks = (fresh + self._blocks)[: len(self._window.entries)]
            y += sum(map(len, fresh))
        else:
            self._blocks += self._wrapped(self._window.entries[len(self._window.entries) + count :])
            y -= sum(map(len, self._blocks[:lost]))
            del self._blocks[:lost]
        self._arrange()
        if follows and count <= 0:
            self.scroll_end(animate=False)
        else:
            self.scroll_to(y=max(y, 0), animate=False)

    def on_resize(self, _event: Resize) -> None:
        """Wrap all lines again."""
        follows = self._is_at_end
        if self.scrollable_content_region.width != self._width:
            self._width = self.scrollable_content_region.width
            self._blocks = self._wrapped(self._window.entries)
            self._arrange()
        if follows:
            self.scroll_end(animate=False)
        self.post_message(self.Reached())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Ask for more at an end."""
        super().watch_scroll_y(old_value, new_value)
        if self.scroll_offset.y <= 0 or self._is_at_end:
            self.post_message(self.Reached())

    @property
    def _is_at_end(self) -> bool:
        return self.is_vertical_scroll_end

    def _wrapped(self, entries: Sequence[Entry]) -> list[list[Line]]:
        return [event_lines(entry, self._width) for entry in entries] if self._width else []

    def _arrange(self) -> None:
        self._lines = list(chain.from_iterable(self._blocks)) or [NOTHING]
        self.virtual_size = Size(self._width, len(self._lines))
        self.refresh()


class EventsScreen(RunScreen):
    """The events in full size."""

    TAB = "events"
    PURPOSE = "What happened, and when."
    HAS_PHASES = False

    def compose_parts(self) -> ComposeResult:
        """Build the list."""
        yield EventPages()
        yield FilterBar(FIELDS, example="level:warning,error device:pi-3 round>100")

    def show(self, view: RunView) -> None:
        """Show the events of a view."""
        super().show(view)
        self.query_one(EventPages).show(view)

    def lacks(self, view: RunView) -> Read | None:
        """Return the read of the next page."""
        return self.query_one(EventPages).lacks()

    def receive(self, rows: Any) -> None:
        """Show a page, and ask for the next one if there is room."""
        pages = self.query_one(EventPages)
        pages.add(rows)
        pages.call_after_refresh(pages.post_message, EventPages.Reached())

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """List only the events that the filter accepts."""
        self.query_one(EventPages).filter(message.filter)

    def on_event_pages_reached(self) -> None:
        """Read the next page, if there is one."""
        if self.query_one(EventPages).lacks() is not None:
            self.post_message(self.Lacking())

    def redraw(self) -> None:
        """Draw all lines again."""
        self.query_one(EventPages).restyle()

    def explanations(self) -> Sequence[tuple[str, str]]:
        """Return what the marks and lines mean."""
        return (
            ("! and !!", "a warning and an error"),
            (
                "round 12: 4 of 4 aggregated, 0.94 s",
                "a closed round: updates that entered the model, of the selected devices, and its "
                "duration",
            ),
            (
                "dispatched, replacement",
                "which devices were selected: hidden, as the line of the round counts them; "
                "/ kind:dispatched shows them",
            ),
            ("/", "filters by level, kind, device, text and round, as in level:warning round>100"),
        )
