"""Screen of the log of one device: lines of its agent, and events of the run about it."""

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import ClassVar, NamedTuple

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Resize
from textual.widgets import RichLog

from fairbed.coordinator.report.quantities import instant
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.tui.filters import Field, Filter
from fairbed.coordinator.tui.screens.run_screen import Read, RunScreen
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.filter_bar import FilterBar
from fairbed.coordinator.tui.widgets.log import MARKS, TIME_WIDTH

AGENT, RUN = "agent", "run"
"""Where a line comes from."""

LINES_KEPT = 1_000
"""Newest lines that are kept of each source."""

PROBLEMS = "level:warning,error"
"""Filter of lines that may need a person."""


class LogLine(NamedTuple):
    """One line, of the agent or of the run."""

    at_s: float
    """Run clock."""
    source: str
    level: str
    text: str


FIELDS: tuple[Field[LogLine], ...] = (
    Field("text", lambda line: line.text, is_searched=True),
    Field("level", lambda line: line.level),
    Field("from", lambda line: line.source),
)


class NewLines(NamedTuple):
    """Lines that were read, and the ids after which the next read begins."""

    lines: Sequence[LogLine]
    line_id: int
    event_id: int


def read_lines(device: str, line_id: int, event_id: int, reader: RunReader) -> NewLines:
    """Read the lines of a device after two ids: of the agent's lines, and of events."""
    of_agent = reader.device_log(device, line_id)
    of_run = reader.events_of(device, event_id)
    lines = [LogLine(row.at_s, AGENT, row.level, row.text) for _, row in of_agent]
    lines += [LogLine(row.at_s, RUN, row.level, f"{row.kind}: {row.text}") for _, row in of_run]
    last = max((number for number, _ in of_agent), default=line_id)
    return NewLines(lines, last, max((number for number, _ in of_run), default=event_id))


class DeviceLogView(RichLog):
    """The lines."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"log--time", "log--info", "log--warning", "log--error"}

    def write_line(self, line: LogLine, *, follows: bool) -> None:
        """Write one line at the end; `follows` scrolls to it."""
        dim = self.get_component_rich_style("log--time", partial=True)
        is_problem = line.level in ("warning", "error")
        style = self.get_component_rich_style(f"log--{line.level}", partial=True)
        row = Table.grid(padding=(0, 1))
        row.add_column(width=TIME_WIDTH, justify="right", style=dim)
        row.add_column(width=len(AGENT), style=dim)
        row.add_column(ratio=1)
        text = Text(f"{MARKS.get(line.level, '')}{line.text}", style if is_problem else "")
        row.add_row(instant(line.at_s), line.source, text)
        self.write(row, scroll_end=follows)


class DeviceLogScreen(RunScreen):
    """The log of one device, newest at the bottom; it follows new lines while it is at the end."""

    PURPOSE = "What the agent of a device logged, and what happened to it in the run."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "problems", "Problems", id="problems", tooltip="Warnings and errors, or all"),
        Binding("f", "follow", "Follow", id="follow", tooltip="To the newest line, and stay there"),
        Binding("escape,backspace", "app.back", "Back", id="back", tooltip="To the last screen"),
    ]

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self._ids = (0, 0)
        self._lines: list[LogLine] = []
        """All lines, oldest first."""
        self._written: list[LogLine] = []
        self._filter: Filter[LogLine] = Filter()
        self._until_s = inf
        self._width = 0

    @property
    def selected_device(self) -> str:
        """Name of the device."""
        return self._device

    def compose_parts(self) -> ComposeResult:
        """Build the log."""
        yield DeviceLogView(id="log", max_lines=2 * LINES_KEPT, min_width=1, classes="panel")
        yield FilterBar(FIELDS, example="lost from:agent level:warning,error")

    def on_mount(self) -> None:
        """Set the title, and give the keys to the log."""
        super().on_mount()
        self.query_one(DeviceLogView).focus()

    def on_resize(self, _event: Resize) -> None:
        """Wrap all lines again."""
        self.call_after_refresh(self._rewrap)

    def _rewrap(self) -> None:
        width = self.query_one(DeviceLogView).content_size.width
        if width != self._width:
            self._width = width
            self.redraw()

    def show(self, view: RunView) -> None:
        """Show the lines until the end of a view."""
        super().show(view)
        self._until_s = inf if view.until_round is None else view.elapsed_s
        if view.info is not None:
            command = f"fairbed logs {self._device} {view.info.run_id}"
            log = self.query_one(DeviceLogView)
            log.border_subtitle = Content(f"what the agent logged: {command}")
        self._write()

    def lacks(self, view: RunView) -> Read | None:
        """Return the read of new lines."""
        return partial(read_lines, self._device, *self._ids)

    def receive(self, rows: NewLines) -> None:
        """Show new lines."""
        self._ids = (rows.line_id, rows.event_id)
        if rows.lines:
            self._lines = sorted([*self._lines, *rows.lines], key=lambda line: line.at_s)
            del self._lines[: -2 * LINES_KEPT]
        self._write()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Show only the lines that the filter accepts."""
        self._filter = message.filter
        self._write()

    def action_problems(self) -> None:
        """Show warnings and errors alone, or all lines again."""
        bar = self.query_one(FilterBar)
        bar.set_text("" if bar.filter.text == PROBLEMS else PROBLEMS)

    def action_follow(self) -> None:
        """Go to the newest line."""
        self.query_one(DeviceLogView).scroll_end(animate=False)

    def redraw(self) -> None:
        """Write all lines again, in the colours of the theme."""
        self._written = []
        self.query_one(DeviceLogView).clear()
        self._write()

    def _write(self) -> None:
        """Write the lines that are new, or all if others were taken away or came between."""
        log = self.query_one(DeviceLogView)
        if not self._width:
            return
        wanted = [x for x in self._lines if x.at_s <= self._until_s and self._filter(x)]
        count = len(self._written)
        follows = not count or log.is_vertical_scroll_end
        if wanted[:count] != self._written:
            log.clear()
            count = 0
        for line in wanted[count:]:
            log.write_line(line, follows=follows)
        self._written = wanted
        log.border_title = f"Log of {self._device} ({self._counted(len(wanted))})"

    def _counted(self, shown: int) -> str:
        """Return in words how many lines are shown."""
        if not self._lines:
            return "no line yet"
        every = len(self._lines)
        return f"{shown} of {every} lines" if shown < every else f"{every} lines"

    def explanations(self) -> Sequence[tuple[str, str]]:
        """Return the columns."""
        return (
            ("time", "On the clock of the run; `before` is before the run."),
            (AGENT, "A line of the device's agent, sent between exchanges: some seconds late."),
            (RUN, "An event of the run about this device."),
            ("! and !!", "A warning, and an error."),
        )
