"""Table of the fleet, one line per device; columns that do not fit are left out."""

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import ClassVar, NamedTuple, TypeAlias

from rich.markup import escape
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.message import Message
from textual.strip import Strip
from textual.timer import Timer
from textual.widgets import DataTable

from fairbed.coordinator.tui.bars import bar
from fairbed.coordinator.tui.filters import Filter
from fairbed.coordinator.tui.fleet_columns import (
    ARROWS,
    PHASE_BAR,
    FleetColumn,
    Order,
    all_columns,
    arranged,
    by_key,
    columns_of,
    fitting,
    widths_of,
)
from fairbed.coordinator.tui.phase_spans import LETTERS, PHASES, Span
from fairbed.coordinator.tui.screens.fleet_dialogs import ColumnsDialog, OfferedColumn, SortDialog
from fairbed.coordinator.tui.view import DeviceView, RunView
from fairbed.coordinator.tui.widgets.plot import LETTERED

MAX_LINES = 2_000
"""Maximum number of devices listed."""
SPELLED_OUT = 160
"""Screen width from which headings are spelled out, columns."""
ARRANGE_S = 1.0
"""Lines change places at most this often, so that they can be read."""


class Part(NamedTuple):
    """Characters of one style."""

    text: str
    style: str | None = ""
    """Component class without its prefix; "" for that of the line, None for its background."""
    background: str | None = None
    """Component class of the background colour; None for that of the line."""


Line: TypeAlias = tuple[Part, ...]
"""The padded cells of a line."""


class Drawn(NamedTuple):
    """A line as last drawn, and what it was made of."""

    device: DeviceView
    spans: tuple[Span, ...]
    line: Line


def fleet_title(shown: int, total: int, expression: str) -> str:
    """Return the title of the table: how many devices it shows of how many, and why."""
    if not total:
        return "Fleet · no devices"
    if not expression:
        return f"Fleet · {total} devices"
    return f"Fleet · {shown} of {total} devices · filter /{escape(expression)}"


def bar_scale_s(view: RunView) -> float:
    """Return the time that the bars of the open round are wide, seconds.

    It is the duration of the newest closed round, doubled until the open round fits, so that bars
    seldom change their scale.
    """
    closed = [x.duration_s for x in view.rounds if x.status == "done" and x.duration_s > 0.0]
    scale_s = closed[-1] if closed else 1.0
    open_s = 0.0 if view.open_since_s is None else view.elapsed_s - view.open_since_s
    while scale_s < open_s:
        scale_s *= 2.0
    return scale_s


class FleetTable(DataTable[Text]):
    """Table of devices: filtered, in any order, with the columns that fit or were chosen.

    Textual's `DataTable` provides cursor, keys and scrolling, but redraws every line when one cell
    changes. This class therefore draws the lines itself: only those on the screen, and of these
    only the ones whose text changed. Lines change places at most once in `ARRANGE_S`; the cursor
    stays on its device.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"fleet--{name}" for name in ("busy", "dim", "good", "warn", "bad")),
        *(f"fleet--{phase}" for phase in PHASES),
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter",
            "open_device",
            "Device",
            id="device",
            tooltip="Open the device under the cursor",
        ),
        Binding("s", "sort", "Sort", id="sort", tooltip="Choose the column to sort by"),
        Binding(
            "r",
            "reverse",
            "Reverse",
            id="reverse",
            show=False,
            tooltip="Sort in the opposite direction",
        ),
        Binding(
            "C",
            "choose_columns",
            "Columns",
            id="columns",
            show=False,
            tooltip="Choose the columns of the table",
        ),
    ]

    class Opened(Message):
        """The screen of a device was requested."""

        def __init__(self, device: str) -> None:
            self.device = device
            super().__init__()

    class Arranged(Message):
        """The user chose an order or columns."""

        def __init__(self, order: Order, columns: tuple[str, ...] | None) -> None:
            self.order, self.columns = order, columns
            super().__init__()

    def __init__(
        self,
        *,
        id: str | None = None,
        has_bars: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the table.

        Args:
            id: Identifier of the widget.
            has_bars: Show phases as bars unless the user chose columns.
            clock: Seconds; limits how often lines change places.
        """
        super().__init__(id=id, cursor_type="row", zebra_stripes=True)
        self._has_bars, self._clock = has_bars, clock
        self._view = RunView()
        self._keeps: Filter[DeviceView] = Filter()
        self._by = Order()
        self._chosen: tuple[str, ...] | None = None
        """Keys of the columns that the user chose; None for the usual ones."""
        self._positions: list[int] = []
        """Position of the device of each line in the view."""
        self._arranged_for: tuple[object, ...] | None = None
        """Run, filter, order and columns of the arrangement; None before the first one."""
        self._arranged_s = 0.0
        self._timer: Timer | None = None
        """Runs while an arrangement is due."""
        self._columns: tuple[FleetColumn, ...] = ()
        """Columns to choose from."""
        self._titles: list[str] = []
        """Their headings."""
        self._shown: dict[FleetColumn, int] = {}
        """Columns shown and their widths; empty until they are chosen."""
        self._scale_s = 0.0
        """Width of the bars, seconds."""
        self._drawn: dict[int, Drawn] = {}
        """Lines on the screen, by row."""

    @property
    def selected_device(self) -> str | None:
        """Name of the device under the cursor; None if no line is shown."""
        row = self.cursor_row
        if not 0 <= row < len(self._positions):
            return None
        at = self._positions[row]
        return self._view.devices[at].name if at < len(self._view.devices) else None

    def action_open_device(self) -> None:
        """Open the device under the cursor."""
        if self.selected_device is not None:
            self.post_message(self.Opened(self.selected_device))

    def on_data_table_row_selected(self) -> None:
        """Open the device when its line is clicked."""
        self.action_open_device()

    def action_sort(self) -> None:
        """Let the user choose the column to sort by."""
        self.app.push_screen(SortDialog(self._columns, self._by), self._sort_by)

    def action_reverse(self) -> None:
        """Sort in the opposite direction."""
        self._sort_by(self._by.key)

    def _sort_by(self, key: str | None) -> None:
        if key is not None:
            self.set_order(self._by.by(key), self._chosen)
            self.move_cursor(row=0)
            self.post_message(self.Arranged(self._by, self._chosen))

    def action_choose_columns(self) -> None:
        """Let the user choose the columns."""
        shown = [column.key for column in self._columns]
        every = (column for column in all_columns() if column.key != "name")
        offered = [OfferedColumn(column.key, column.wide_heading, column.help) for column in every]
        self.app.push_screen(ColumnsDialog(offered, shown), self._choose)

    def _choose(self, answer: tuple[tuple[str, ...] | None] | None) -> None:
        if answer is not None:
            self.set_order(self._by, answer[0])
            self.post_message(self.Arranged(self._by, self._chosen))

    def explanations(self) -> list[tuple[str, str]]:
        """Return the headings of the columns and their explanations."""
        return [
            (column.titled(self._view.beta, is_wide=self._is_wide), column.help)
            for column in self._columns
        ]

    def set_order(self, by: Order, columns: Sequence[str] | None) -> None:
        """Sort the lines, and show these columns; None for the usual ones."""
        self._by, self._chosen = by, None if columns is None else tuple(columns)
        self.show(self._view)

    def filter(self, keeps: Filter[DeviceView]) -> None:
        """Show only the devices that a filter accepts."""
        self._keeps = keeps
        self.show(self._view)

    def on_resize(self, _event: Resize) -> None:
        """Choose the columns again; a hidden table is drawn when it is shown."""
        self._shown = {}
        self.show(self._view)

    def redraw(self) -> None:
        """Draw all lines again, in another theme or with other glyphs."""
        self._drawn.clear()
        self.refresh()

    def show(self, view: RunView) -> None:
        """Draw the lines that changed."""
        self._view = view
        run = (view.info.run_id, view.info.row.resumes) if view.info else None
        shown = (run, len(view.devices), self._keeps.text, self._by, self._chosen)
        left_s = self._arranged_s + ARRANGE_S - self._clock()
        if shown != self._arranged_for or left_s <= 0.0:
            self._arranged_for = shown
            self._arrange()
        elif self._timer is None and (self._by.key or self._keeps.text):
            self._timer = self.set_timer(left_s, self._arrange_late)
        if self.is_on_screen:
            self._draw()

    def render_line(self, y: int) -> Strip:
        """Return one line of the scrolled table; line 0 is the heading."""
        row = y + self.scroll_offset.y - 1 if y > 0 else -1
        if not self._shown or row >= len(self._positions):
            return Strip.blank(self.size.width, self.rich_style)
        base = self._base_style(row) + (highlight := self._highlight(row))
        foreground = Style.from_color(highlight.color)
        line = self._heading() if row < 0 else self._drawn_at(row).line
        segments = [Segment(part.text, self._style(part, base) + foreground) for part in line]
        strip = Strip(segments).adjust_cell_length(self.size.width, base)
        return strip.simplify().apply_meta({"row": row, "column": 0})

    def _arrange_late(self) -> None:
        self._timer = None
        self._arrange()
        if self.is_on_screen:
            self._draw()

    def _arrange(self) -> None:
        """Filter and sort the devices; the cursor stays on its device or, without it, its line."""
        devices = self._view.devices
        name, row = self.selected_device, self.cursor_row
        positions = arranged(devices, self._keeps, self._by)[:MAX_LINES]
        self._arranged_s = self._clock()
        if positions != self._positions:
            self._positions = positions
            rows = {devices[at].name: i for i, at in enumerate(positions)}
            if len(positions) != self.row_count:
                self._count_rows(len(positions))
            self.move_cursor(row=rows.get(name or "", min(row, max(len(positions) - 1, 0))))
        title = fleet_title(len(positions), len(devices), self._keeps.text)
        if title != self.border_title:
            self.border_title = title
        self._columns = columns_of(self._view, self._chosen, has_bars=self._has_bars)
        titles = [self._titled(column) for column in self._columns]
        if titles != self._titles:
            self._titles, self._shown = titles, {}

    def _count_rows(self, count: int) -> None:
        """Give cursor and scroll bar as many rows as there are lines."""
        if count < self.row_count:
            self.clear()
        if not self.columns:
            self.add_column("", width=1)
        empty = Text()  # Textual would parse a string as markup, for each row
        for _ in range(count - self.row_count):
            self.add_row(empty)

    def _draw(self) -> None:
        """Draw the lines on the screen that changed, all if columns have other widths."""
        if not self._shown:
            self._choose_widths()
        scale_s = bar_scale_s(self._view) if PHASE_BAR in self._shown else 0.0
        if scale_s != self._scale_s:
            self._scale_s = scale_s
            self._drawn.clear()
            self.refresh()
        first = self.scroll_offset.y
        rows = range(first, min(first + self.size.height - 1, len(self._positions)))
        for row in [row for row in self._drawn if row not in rows]:
            del self._drawn[row]
        width = sum(self._shown.values()) + 2 * len(self._shown)
        for row in rows:
            before = self._drawn.get(row)
            line = self._drawn_at(row).line
            if sum(len(part.text) for part in line) > width:
                self._choose_widths()
                return
            if before is None or line != before.line:
                self.refresh_line(row + 1)

    def _drawn_at(self, row: int) -> Drawn:
        """Return a line, made anew if its device changed."""
        device = self._view.devices[self._positions[row]]
        spans = self._view.open_spans.get(device.name, ()) if self._scale_s else ()
        drawn = self._drawn.get(row)
        if drawn is None or (drawn.device, drawn.spans) != (device, spans):
            drawn = self._drawn[row] = Drawn(device, spans, self._line(device))
        return drawn

    def _choose_widths(self) -> None:
        """Choose the columns that fit, and draw all lines."""
        devices = [self._view.devices[at] for at in self._positions]
        widths = widths_of(self._columns, self._titles, devices)
        available = self.scrollable_content_region.width
        self._shown = fitting(widths, available, always=self._by.key)
        self._scale_s = bar_scale_s(self._view) if PHASE_BAR in self._shown else 0.0
        left_out = len(widths) - len(self._shown) if self._chosen is not None else 0
        by = by_key().get(self._by.key)
        notes = (
            f"by {by.wide_heading} {ARROWS[self._by.is_largest_first]}" if by else "",
            f"{left_out} chosen columns do not fit" if left_out else "",
        )
        self.border_subtitle = " · ".join(note for note in notes if note)
        self.redraw()

    @property
    def _is_wide(self) -> bool:
        return self.app.size.width >= SPELLED_OUT

    def _titled(self, column: FleetColumn) -> str:
        """Return the heading of a column, with an arrow if the lines are sorted by it."""
        title = column.titled(self._view.beta, is_wide=self._is_wide)
        is_sorted = column.key == self._by.key
        return f"{title}{ARROWS[self._by.is_largest_first]}" if is_sorted else title

    def _heading(self) -> Line:
        return tuple(Part(self._padded(column, self._titled(column))) for column in self._shown)

    def _line(self, device: DeviceView) -> Line:
        beta = self._view.guaranteed(device)
        parts: list[Part] = []
        for column in self._shown:
            if column is PHASE_BAR:
                parts += self._bar(device)
            else:
                text = self._padded(column, column.marked(device, beta))
                parts.append(Part(text, column.style(device, beta)))
        return tuple(parts)

    def _bar(self, device: DeviceView) -> list[Part]:
        """Return the phases of a device in the open round as a padded cell."""
        width = self._shown[PHASE_BAR]
        spans = self._view.open_spans.get(device.name, ())
        if not spans:
            return [Part(" " * (width + 2))]
        letters = LETTERS if self.app.has_class(LETTERED) else None
        cells = bar(spans, self._scale_s, width, letters)
        same = groupby(cells, key=lambda cell: (cell.foreground, cell.background))
        parts = [Part("".join(cell.glyph for cell in group), *style) for style, group in same]
        return [Part(" "), *parts, Part(" ")]

    def _padded(self, column: FleetColumn, text: str) -> str:
        """Return a text padded to the width of its column; a longer text stays whole."""
        width = self._shown[column]
        return f" {text.ljust(width) if column.justify == 'left' else text.rjust(width)} "

    def _base_style(self, row: int) -> Style:
        kind = "header" if row < 0 else "odd-row" if row % 2 else "even-row"
        return self.get_component_rich_style(f"datatable--{kind}")

    def _highlight(self, row: int) -> Style:
        """Return the style that the mouse and the cursor add to a line."""
        highlight = Style.null()
        if row >= 0 and row == self.hover_row and self._show_hover_cursor:
            highlight += self.get_component_rich_style("datatable--hover")
        if row >= 0 and row == self.cursor_row and self.show_cursor:
            highlight += self.get_component_rich_style("datatable--cursor")
        return highlight

    def _style(self, part: Part, base: Style) -> Style:
        """Return the style of a part on that of its line."""
        style = base
        if part.style:
            style += self._component(part.style)
        if part.background:
            style += Style(bgcolor=self._component(part.background).color)
        return style + Style(color=base.bgcolor) if part.style is None else style

    def _component(self, name: str) -> Style:
        return self.get_component_rich_style(f"fleet--{name}", partial=True)
