"""Table of the fleet, one line per device; columns that do not fit are left out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.message import Message
from textual.strip import Strip
from textual.widgets import DataTable

from fairbed.coordinator.report.quantities import MISSING, bandwidth, energy, ratio, seconds
from fairbed.coordinator.tui.filters import Field, Filter
from fairbed.coordinator.tui.phase_spans import PHASE_OF_STATE, PHASES
from fairbed.coordinator.tui.view import ABSENT, DeviceView, RunView

MAX_LINES = 2_000
"""Maximum number of devices listed."""
PADDING = 2
"""Padding of a cell, both sides together, columns."""
TOLERANCE = 1e-9
"""Rounding tolerance for a rate that equals beta."""

Line: TypeAlias = tuple[tuple[str, str], ...]
"""Padded cell texts, each with a component class without its prefix, or "" for no class."""


def no_style(_device: DeviceView, _beta: float | None) -> str:
    """Return the style of plain text."""
    return ""


@dataclass(frozen=True, slots=True)
class FleetColumn:
    """One column of the table."""

    key: str
    heading: str
    priority: int
    """0 is the most important."""
    min_width: int
    """Width of usual values, so that columns seldom move."""
    text: Callable[[DeviceView], str]
    justify: Literal["left", "right"] = "right"
    style: Callable[[DeviceView, float | None], str] = no_style
    """Component class without its prefix, for the device and beta."""

    def marked(self, device: DeviceView, beta: float | None) -> str:
        """Return the text, with a mark before a rate below the guarantee."""
        is_owed = self.key in RATES and self.style(device, beta) == "warn"
        return f"{'!' if is_owed else ''}{self.text(device)}"


RATES = frozenset({"rate", "aggregated"})
"""Columns with a rate that has a guarantee."""


def state_style(device: DeviceView, _beta: float | None = None) -> str:
    """Return the style of a device's state; a phase has the same colour as on the timeline."""
    if device.state in PHASE_OF_STATE:
        return PHASE_OF_STATE[device.state]
    if device.state in ABSENT:
        return "bad"
    if device.state == "answering":
        return "busy"
    return "warn" if device.state in ("excluded", "unwilling", "preparing") else "dim"


def rate_style(device: DeviceView, beta: float | None) -> str:
    """Return the style of the selection rate: good if at least beta, otherwise a warning."""
    if beta is None or device.rate is None:
        return ""
    return "good" if device.rate >= beta - TOLERANCE else "warn"


def aggregation_style(device: DeviceView, beta: float | None) -> str:
    """Return the style of the aggregation rate: good if at least beta, otherwise a warning."""
    if beta is None or device.aggregation_rate is None:
        return ""
    return "good" if device.aggregation_rate >= beta - TOLERANCE else "warn"


def busy_style(device: DeviceView, _beta: float | None) -> str:
    """Return the style of a name: emphasised while the device works on an exchange."""
    return "busy" if device.is_working else ""


def dim_style(_device: DeviceView, _beta: float | None) -> str:
    """Return the style of secondary text."""
    return "dim"


COLUMNS: tuple[FleetColumn, ...] = (
    FleetColumn("name", "device", 0, 6, lambda d: d.name, "left", busy_style),
    FleetColumn("profile", "profile", 8, 7, lambda d: d.profile or MISSING, "left", dim_style),
    FleetColumn("state", "state", 0, 11, lambda d: d.state, "left", state_style),
    FleetColumn("mu", "µ", 6, 4, lambda d: ratio(d.mu_cores, 2)),
    FleetColumn("down", "B↓", 7, 4, lambda d: bandwidth(d.downlink_bps)),
    FleetColumn("up", "B↑", 7, 4, lambda d: bandwidth(d.uplink_bps)),
    FleetColumn("hat", "pred s", 2, 6, lambda d: seconds(d.tau_hat_s), style=dim_style),
    FleetColumn("tau", "τ s", 1, 5, lambda d: seconds(d.tau_s)),
    FleetColumn("selected", "sel", 3, 3, lambda d: str(d.selected)),
    FleetColumn("rate", "rate", 3, 5, lambda d: ratio(d.rate, 2), style=rate_style),
    FleetColumn(
        "aggregated", "agg", 9, 5, lambda d: ratio(d.aggregation_rate, 2), style=aggregation_style
    ),
    FleetColumn("queue", "Z", 4, 4, lambda d: ratio(d.queue, 2)),
    FleetColumn("loss", "loss", 5, 4, lambda d: ratio(d.loss, 2)),
    FleetColumn("accuracy", "acc", 1, 5, lambda d: ratio(d.accuracy)),
)


MALICIOUS = FleetColumn(
    "malicious",
    "malicious",
    1,
    9,
    lambda d: d.malicious or "",
    "left",
    lambda _device, _beta: "bad",
)
"""Shown beside `COLUMNS` if a device is known to be malicious."""

KIND = FleetColumn("kind", "kind", 5, 8, lambda d: d.kind, "left", dim_style)
"""Shown in a fleet of several kinds."""

ENERGY = FleetColumn("energy", "energy", 6, 6, lambda d: energy(d.energy_j))
"""Shown if the energy of an exchange is known."""


def columns_of(view: RunView) -> tuple[FleetColumn, ...]:
    """Return the columns for the devices of a run."""
    name, *others = COLUMNS
    return (
        name,
        *((KIND,) if view.is_mixed else ()),
        *others,
        *((ENERGY,) if view.energy_j is not None else ()),
        *((MALICIOUS,) if view.reveals else ()),
    )


def widths_of(
    columns: Sequence[FleetColumn], devices: Sequence[DeviceView]
) -> dict[FleetColumn, int]:
    """Return the width that each column needs for all values of these devices."""
    return {
        c: max([c.min_width, len(c.heading), *(len(c.text(d)) for d in devices)]) for c in columns
    }


def fitting(
    widths: Mapping[FleetColumn, int], width: int, padding: int = PADDING
) -> list[FleetColumn]:
    """Return the columns that fit into `width`, in order, without the least important ones."""
    kept = list(widths)
    while len(kept) > 1 and sum(widths[c] + padding for c in kept) > width:
        kept.remove(max(kept, key=lambda c: c.priority))
    return kept


FIELDS: tuple[Field[DeviceView], ...] = (
    Field("name", lambda d: d.name, is_searched=True),
    Field("profile", lambda d: d.profile, is_searched=True),
    Field("state", lambda d: d.state, is_searched=True),
    Field("kind", lambda d: d.kind),
    Field("tau", lambda d: d.tau_s, is_number=True),
    Field("rate", lambda d: d.rate, is_number=True),
)
"""What a filter can ask of a device."""


def fleet_title(shown: int, total: int, expression: str) -> str:
    """Return the title of the table: how many devices it shows of how many, and why."""
    if not total:
        return "Fleet · no devices"
    if not expression:
        return f"Fleet · {total} devices"
    return f"Fleet · {shown} of {total} devices · filter /{expression}"


class FleetTable(DataTable[str]):
    """Table of devices in the order in which they joined.

    Textual's `DataTable` provides cursor, keys and scrolling, but redraws every line when one cell
    changes. This class therefore draws the lines itself, and only those whose text changed.
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
    ]

    class Opened(Message):
        """The screen of a device was requested."""

        def __init__(self, device: str) -> None:
            self.device = device
            super().__init__()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=True)
        self._view = RunView()
        self._keeps: Filter[DeviceView] = Filter()
        self._beta: float | None = None
        self._columns: tuple[FleetColumn, ...] = ()
        """Columns to choose from when the lines were built."""
        self._shown: dict[FleetColumn, int] = {}
        """Columns shown and their widths; empty before the lines are built."""
        self._drawn: list[DeviceView] = []
        """Devices as last drawn, in the order of the lines."""
        self._lines: list[Line] = []
        """The heading, then one line per device."""

    @property
    def selected_device(self) -> str | None:
        """Name of the device under the cursor; None in an empty fleet."""
        row = self.cursor_row
        return self._drawn[row].name if 0 <= row < len(self._drawn) else None

    def action_open_device(self) -> None:
        """Open the device under the cursor."""
        if self.selected_device is not None:
            self.post_message(self.Opened(self.selected_device))

    def on_data_table_row_selected(self) -> None:
        """Open the device when its line is clicked."""
        self.action_open_device()

    def on_resize(self, _event: Resize) -> None:
        """Choose the columns again; a hidden table is drawn when it is shown."""
        self._shown = {}
        self.show(self._view)

    def filter(self, keeps: Filter[DeviceView]) -> None:
        """Show only the devices that a filter accepts."""
        self._keeps = keeps
        self.show(self._view)

    def show(self, view: RunView) -> None:
        """Draw the lines that changed."""
        self._view = view
        devices = [device for device in view.devices[:MAX_LINES] if self._keeps(device)]
        title = fleet_title(len(devices), len(view.devices), self._keeps.text)
        if title != self.border_title:
            self.border_title = title
        if [device.name for device in devices] != [device.name for device in self._drawn]:
            self._list(devices)
        if self.is_on_screen and not self._update(devices):
            self._rebuild(devices)

    def render_line(self, y: int) -> Strip:
        """Return one line of the scrolled table; line 0 is the heading."""
        number = y + self.scroll_offset.y if y > 0 else 0
        if number >= len(self._lines):
            return Strip.blank(self.size.width, self.rich_style)
        row = number - 1
        base, highlight = self._base_style(row), self._highlight(row)
        foreground = Style.from_color(highlight.color)
        segments = [
            Segment(text, base + highlight + self._style(name) + foreground)
            for text, name in self._lines[number]
        ]
        strip = Strip(segments).adjust_cell_length(self.size.width, base + highlight)
        return strip.simplify().apply_meta({"row": row, "column": 0})

    def _list(self, devices: Sequence[DeviceView]) -> None:
        """Give the cursor a row for each device; `_rebuild` builds the lines."""
        row = self.cursor_row
        self.clear()
        if not self.columns:
            self.add_column("", width=1)
        for device in devices:
            self.add_row("", key=device.name)
        self._drawn, self._shown = list(devices), {}
        self.call_after_refresh(self.move_cursor, row=row)

    def _update(self, devices: Sequence[DeviceView]) -> bool:
        """Draw the devices that changed; return False if the lines must be rebuilt."""
        is_same = self._beta == self._view.beta and self._columns == columns_of(self._view)
        if not self._shown or not is_same:
            return False
        for row, device in enumerate(devices):
            if device is self._drawn[row] or device == self._drawn[row]:
                continue
            line = self._line(device)
            if sum(len(text) for text, _ in line) > sum(len(text) for text, _ in self._lines[0]):
                return False
            self._drawn[row] = device
            if line != self._lines[row + 1]:
                self._lines[row + 1] = line
                if 0 <= row - self.scroll_offset.y < self.size.height:
                    self.refresh_line(row + 1)
        return True

    def _rebuild(self, devices: Sequence[DeviceView]) -> None:
        """Choose the columns that fit, and build all lines."""
        self._columns = columns_of(self._view)
        widths = widths_of(self._columns, devices)
        available = self.scrollable_content_region.width
        self._shown = {column: widths[column] for column in fitting(widths, available)}
        self._beta = self._view.beta
        self._drawn = list(devices)
        self._lines = [self._heading(), *(self._line(device) for device in devices)]
        self.refresh()

    def _heading(self) -> Line:
        beta = self._view.beta
        guarantee = {} if beta is None else {"rate": f"≥{beta:g}"}
        return tuple(
            (self._padded(column, guarantee.get(column.key, column.heading)), "")
            for column in self._shown
        )

    def _line(self, device: DeviceView) -> Line:
        beta = self._view.beta
        return tuple(
            (self._padded(column, column.marked(device, beta)), column.style(device, beta))
            for column in self._shown
        )

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

    def _style(self, name: str) -> Style:
        if not name:
            return Style.null()
        return self.get_component_rich_style(f"fleet--{name}", partial=True)
