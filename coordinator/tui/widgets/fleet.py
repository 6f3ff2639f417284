"""The fleet, one device a line; columns that do not fit are left out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.message import Message
from textual.widgets import DataTable

from coordinator.quantities import MISSING, bandwidth, ratio, seconds
from coordinator.tui.spans import PHASE_OF_STATE, PHASES
from coordinator.tui.view import AWAY, DeviceView, RunView

MAX_LINES = 2_000
"""Devices that are listed; a larger fleet is replayed, not watched device by device."""
PADDING = 2
"""Of a cell, both sides together."""
TOLERANCE = 1e-9
"""For a rate that equals beta."""


def no_style(_device: DeviceView, _beta: float | None) -> str:
    """Return the style of plain text."""
    return ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    key: str
    heading: str
    priority: int
    """0 is the most important."""
    min_width: int
    """Of what it usually holds, so that the table does not jump."""
    text: Callable[[DeviceView], str]
    justify: Literal["left", "right"] = "right"
    style: Callable[[DeviceView, float | None], str] = no_style
    """Component class without its prefix, for the device and beta."""


def state_style(device: DeviceView, _beta: float | None = None) -> str:
    """Return the colour of what a device does; the same as its phase has on the timeline."""
    if device.state in PHASE_OF_STATE:
        return PHASE_OF_STATE[device.state]
    if device.state in AWAY:
        return "bad"
    if device.state == "answering":
        return "busy"
    return "warn" if device.state in ("excluded", "unwilling", "preparing") else "dim"


def rate_style(device: DeviceView, beta: float | None) -> str:
    """Return good for a rate that keeps the promise; a debt is a warning, not yet a breach."""
    if beta is None or device.rate is None:
        return ""
    return "good" if device.rate >= beta - TOLERANCE else "warn"


def merged_style(device: DeviceView, beta: float | None) -> str:
    """Return the same for the rate that enters the model."""
    if beta is None or device.merged_rate is None:
        return ""
    return "good" if device.merged_rate >= beta - TOLERANCE else "warn"


def busy_style(device: DeviceView, _beta: float | None) -> str:
    """Return emphasis for a device at work."""
    return "busy" if device.is_working else ""


def dim_style(_device: DeviceView, _beta: float | None) -> str:
    """Return the style of what matters less."""
    return "dim"


COLUMNS: tuple[Column, ...] = (
    Column("name", "device", 0, 6, lambda d: d.name, "left", busy_style),
    Column("profile", "profile", 8, 7, lambda d: d.profile or MISSING, "left", dim_style),
    Column("state", "state", 0, 11, lambda d: d.state, "left", state_style),
    Column("mu", "µ", 6, 4, lambda d: ratio(d.mu_cores, 2)),
    Column("down", "B↓", 7, 4, lambda d: bandwidth(d.downlink_bps)),
    Column("up", "B↑", 7, 4, lambda d: bandwidth(d.uplink_bps)),
    Column("hat", "pred s", 2, 6, lambda d: seconds(d.tau_hat_s), style=dim_style),
    Column("tau", "τ s", 1, 5, lambda d: seconds(d.tau_s)),
    Column("selected", "sel", 3, 3, lambda d: str(d.selected)),
    Column("rate", "rate", 3, 5, lambda d: ratio(d.rate, 2), style=rate_style),
    Column("merged", "merged", 9, 6, lambda d: ratio(d.merged_rate, 2), style=merged_style),
    Column("queue", "Z", 4, 4, lambda d: ratio(d.queue, 2)),
    Column("loss", "loss", 5, 4, lambda d: ratio(d.loss, 2)),
    Column("accuracy", "acc", 1, 5, lambda d: ratio(d.accuracy)),
)


def widths_of(columns: Sequence[Column], devices: Sequence[DeviceView]) -> dict[Column, int]:
    """Return the width that each column needs to show these devices whole."""
    return {
        c: max([c.min_width, len(c.heading), *(len(c.text(d)) for d in devices)]) for c in columns
    }


def fitting(widths: Mapping[Column, int], width: int, padding: int = PADDING) -> list[Column]:
    """Return the columns that fit into `width`, in order, dropping the least important."""
    kept = list(widths)
    while len(kept) > 1 and sum(widths[c] + padding for c in kept) > width:
        kept.remove(max(kept, key=lambda c: c.priority))
    return kept


class FleetTable(DataTable[Text]):
    """Devices in the order in which they joined."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"fleet--{name}" for name in ("busy", "dim", "good", "warn", "bad")),
        *(f"fleet--{phase}" for phase in PHASES),
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open_device", "Device"),
    ]

    class Opened(Message):
        """A person wants to see more of a device."""

        def __init__(self, device: str) -> None:
            self.device = device
            super().__init__()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=True)
        self._view = RunView()
        self._shown: dict[Column, int] = {}
        self._lines: dict[str, DeviceView] = {}

    @property
    def selected_device(self) -> str | None:
        """Name of the device under the cursor; None in an empty fleet."""
        names = list(self._lines)
        return names[self.cursor_row] if 0 <= self.cursor_row < len(names) else None

    def action_open_device(self) -> None:
        """Say which device a person wants to see."""
        if self.selected_device is not None:
            self.post_message(self.Opened(self.selected_device))

    def on_data_table_row_selected(self) -> None:
        """A click on the line under the cursor opens it, too."""
        self.action_open_device()

    def on_resize(self, _event: Resize) -> None:
        """Choose the columns anew."""
        self.restyle()

    def restyle(self) -> None:
        """Draw every line anew, in the colours of the theme."""
        self._shown = {}
        self.show(self._view)

    def show(self, view: RunView) -> None:
        """Draw what changed."""
        devices = view.devices[:MAX_LINES]
        names = [device.name for device in devices]
        is_other = view.beta != self._view.beta or names != list(self._lines)
        self._view = view
        if is_other or not self._update(devices):
            self._rebuild(devices)
        count = len(view.devices)
        self.border_title = f"Fleet · {count} devices" if count else "Fleet · nobody has joined"

    def _update(self, devices: Sequence[DeviceView]) -> bool:
        """Draw devices that changed; tell whether everything fits its column."""
        if not self._shown:
            return False
        for device in devices:
            if device == self._lines[device.name]:
                continue
            cells = [self._cell(device, column) for column in self._shown]
            if any(
                cell.cell_len > self._shown[c] for cell, c in zip(cells, self._shown, strict=True)
            ):
                return False
            for column, cell in zip(self._shown, cells, strict=True):
                self.update_cell(device.name, column.key, cell)
            self._lines[device.name] = device
        return True

    def _rebuild(self, devices: Sequence[DeviceView]) -> None:
        row, widths = self.cursor_row, widths_of(COLUMNS, devices)
        room = self.scrollable_content_region.width
        self.clear(columns=True)
        self._shown = {column: widths[column] for column in fitting(widths, room)}
        for column, width in self._shown.items():
            heading = column.heading
            if column.key == "rate" and self._view.beta is not None:
                heading = f"≥{self._view.beta:g}"
            self.add_column(Text(heading, justify=column.justify), width=width, key=column.key)
        for device in devices:
            cells = (self._cell(device, column) for column in self._shown)
            self.add_row(*cells, key=device.name)
        self._lines = {device.name: device for device in devices}
        self.call_after_refresh(self.move_cursor, row=row)

    def _cell(self, device: DeviceView, column: Column) -> Text:
        name = column.style(device, self._view.beta)
        style = self.get_component_rich_style(f"fleet--{name}", partial=True) if name else ""
        return Text(column.text(device), style, justify=column.justify)
