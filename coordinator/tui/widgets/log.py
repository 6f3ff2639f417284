"""Log of the run's events, newest at the bottom."""

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.events import Resize
from textual.widgets import RichLog

from fairbed.coordinator.report.quantities import clock
from fairbed.coordinator.store.tables import EventRow
from fairbed.coordinator.tui.view import EVENTS_KEPT, RunView

TIME_WIDTH = 7
MARKS = {"warning": "! ", "error": "!! "}
"""Mark before an event of this level, beside its colour."""


class EventLogView(RichLog):
    """The run's events; scrolls with new events while it is at the end."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "log--time",
        "log--info",
        "log--warning",
        "log--error",
        "log--device",
    }

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(max_lines=EVENTS_KEPT, min_width=1, id=id)
        self.border_title = "Events"
        self._view = RunView()
        self._last = 0
        self._width = 0

    def on_resize(self, _event: Resize) -> None:
        """Wrap all lines again and show the end; a hidden log is written when it is shown."""
        if self.content_size.width != self._width:
            self._width = self.content_size.width
            self.restyle()
        else:
            self.show(self._view)
        self.scroll_end(animate=False)

    def show(self, view: RunView) -> None:
        """Write new events, or all events if rows became void."""
        self._view = view
        if view.cursor.event < self._last:
            self.restyle()
        if self._width == 0 or not self.is_on_screen:
            return
        follows = self._last == 0 or self.is_vertical_scroll_end
        for number, event in view.events:
            if number > self._last:
                self.write(self._line(event), scroll_end=follows)
                self._last = number

    def restyle(self) -> None:
        """Write all events again, in the colours of the theme."""
        self.clear()
        self._last = 0
        self.show(self._view)

    def _line(self, event: EventRow) -> Table:
        kind = event.level if event.level in ("warning", "error") else "info"
        time = self.get_component_rich_style("log--time", partial=True)
        device = self.get_component_rich_style("log--device", partial=True)
        what = Text.assemble(
            (
                f"{MARKS.get(kind, '')}{event.kind} ",
                self.get_component_rich_style(f"log--{kind}", partial=True),
            ),
            (f"{event.device} " if event.device else "", device),
            event.text,
        )
        line = Table.grid(padding=(0, 1))
        line.add_column(width=TIME_WIDTH, justify="right", style=time)
        line.add_column(ratio=1)
        line.add_row(clock(event.at_s), what)
        return line
