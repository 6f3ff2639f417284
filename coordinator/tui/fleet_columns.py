"""Columns of the fleet: their words, values and texts; which fit, and in which order. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from fairbed.coordinator.report.measures import device_measures
from fairbed.coordinator.report.measures.entry import DeviceMeasure
from fairbed.coordinator.report.quantities import MISSING
from fairbed.coordinator.tui.filters import Field, Filter
from fairbed.coordinator.tui.phase_spans import PHASE_OF_STATE
from fairbed.coordinator.tui.view import ABSENT, DeviceView, RunView

PADDING = 2
"""Padding of a cell, both sides together, columns."""
TOLERANCE = 1e-9
"""Rounding tolerance for a rate that equals beta."""
MAX_BAR = 32
"""Width of the bars of phases where there is room, columns."""
ARROWS = {False: "↑", True: "↓"}
"""Mark of the sorted column: smallest or largest first."""

Value = str | float | None
Style = Callable[[DeviceView, float | None], str]
"""Component class without its prefix, or "", for a device and beta."""


def no_style(_device: DeviceView, _beta: float | None) -> str:
    """Return the style of plain text."""
    return ""


def dim_style(_device: DeviceView, _beta: float | None) -> str:
    """Return the style of secondary text."""
    return "dim"


def bad_style(_device: DeviceView, _beta: float | None) -> str:
    """Return the style of an alarm."""
    return "bad"


def busy_style(device: DeviceView, _beta: float | None) -> str:
    """Return the style of a name: emphasised while the device works on an exchange."""
    return "busy" if device.is_working else ""


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
    if beta is None or device.selection_rate is None:
        return ""
    return "good" if device.selection_rate >= beta - TOLERANCE else "warn"


def aggregation_style(device: DeviceView, beta: float | None) -> str:
    """Return the style of the aggregation rate: good if at least beta, otherwise a warning."""
    if beta is None or device.aggregation_rate is None:
        return ""
    return "good" if device.aggregation_rate >= beta - TOLERANCE else "warn"


def clock_style(device: DeviceView, _beta: float | None) -> str:
    """Return the style of the clock: a warning while the processor is throttled."""
    return "warn" if device.throttled else ""


@dataclass(frozen=True, slots=True)
class FleetColumn:
    """One column of the table, and what sorts and filters may ask of it."""

    key: str
    """Name in filters and in the file of preferences."""
    heading: str
    wide_heading: str
    """Heading on wide screens."""
    help: str
    """Explanation, one or two sentences."""
    letter: str
    """Key in the list of columns to sort by."""
    priority: int
    """0 is the most important: columns that do not fit are left out from the last one on."""
    min_width: int
    """Width of usual values, so that columns seldom move."""
    text: Callable[[DeviceView], str]
    value: Callable[[DeviceView], Value]
    """Text or number to sort and filter by; None if it is unknown."""
    is_number: bool = True
    is_largest_first: bool = False
    """What deserves attention first is large: a time, a queue, a temperature."""
    is_searched: bool = False
    """A filter without a name looks here."""
    style: Style = no_style
    is_known: Callable[[RunView], bool] = lambda _view: True
    """Whether the column is shown unless the user chose columns."""

    @property
    def justify(self) -> Literal["left", "right"]:
        """Side of the text in its cell."""
        return "right" if self.is_number and self is not PHASE_BAR else "left"

    def marked(self, device: DeviceView, beta: float | None) -> str:
        """Return the text, with a mark before a value that deserves a warning."""
        is_marked = self.key in MARKED and self.style(device, beta) == "warn"
        return f"{'!' if is_marked else ''}{self.text(device)}"

    def titled(self, beta: float | None, *, is_wide: bool) -> str:
        """Return the heading; that of the selection rate is its guarantee, if there is one."""
        if self.key == "rate" and beta is not None:
            return f"rate ≥{beta:.3g}" if is_wide else f"≥{beta:.3g}"
        return self.wide_heading if is_wide else self.heading


MARKED = frozenset({"rate", "aggregated", "clock"})
"""Columns with a mark beside the colour of a warning."""


def _valid(device: DeviceView) -> str:
    done, invalid = device.quality.done, device.quality.invalid
    return f"{done - invalid}/{done}" if done else MISSING


def _valid_share(device: DeviceView) -> float | None:
    done, invalid = device.quality.done, device.quality.invalid
    return (done - invalid) / done if done else None


PHASE_BAR = FleetColumn(
    "phases",
    "phases",
    "phases",
    "Phases of the exchange in the open round, by colour or letter, on one scale for all devices.",
    "w",
    2,
    10,
    lambda _device: "",
    lambda device: PHASE_OF_STATE.get(device.state),
    is_number=False,
)

STYLES: Mapping[str, Style] = {
    "clock": clock_style,
    "pred": dim_style,
    "rate": rate_style,
    "aggregated": aggregation_style,
}
"""Of columns of measures, by key; others are plain text."""

KNOWN: Mapping[str, Callable[[RunView], bool]] = {
    "clock": lambda view: any(d.clock_ratio not in (None, 1.0) for d in view.devices),
    "temp": lambda view: any(d.temperature_celsius is not None for d in view.devices),
    "accuracy": lambda view: view.task != "regression",
    "auroc": lambda view: any(d.auroc is not None for d in view.devices),
    "rmse": lambda view: view.task == "regression",
    "energy": lambda view: view.energy_j is not None,
}
"""Whether a column of a measure is shown unless the user chose columns; others always are."""

LETTERS = "0123456789"
"""Keys of columns of measures that name none."""


@cache
def column_of(measure: DeviceMeasure, letter: str) -> FleetColumn:
    """Return the column of a measure; `letter` is for one that names none."""
    place = measure.room
    assert place is not None
    form = place.format or measure.format
    return FleetColumn(
        place.key,
        place.heading,
        place.wide_heading,
        f"{measure.meaning}{place.more}.",
        place.letter or letter,
        place.priority,
        place.min_width,
        lambda device: form.text(measure.value(device)),
        measure.value,
        is_largest_first=place.is_largest_first,
        style=STYLES.get(place.key, no_style),
        is_known=KNOWN.get(place.key, lambda _view: True),
    )


NAMES: tuple[FleetColumn, ...] = (
    FleetColumn(
        "name",
        "device",
        "device",
        "Name of the device; bold while it works on an exchange.",
        "n",
        0,
        6,
        lambda d: d.name,
        lambda d: d.name,
        is_number=False,
        is_searched=True,
        style=busy_style,
    ),
    FleetColumn(
        "kind",
        "kind",
        "kind",
        "physical: joined by itself; emulated: the real agent, limited to a profile; replayed.",
        "k",
        5,
        8,
        lambda d: d.kind,
        lambda d: d.kind,
        is_number=False,
        style=dim_style,
        is_known=lambda view: view.is_mixed,
    ),
    FleetColumn(
        "profile",
        "profile",
        "profile",
        "Profile that an emulated device has, or the board that a physical one reports.",
        "p",
        8,
        7,
        lambda d: d.profile or MISSING,
        lambda d: d.profile or None,
        is_number=False,
        is_searched=True,
        style=dim_style,
    ),
    FleetColumn(
        "state",
        "state",
        "state",
        "Phase of its exchange, idle, or why it is not selected: excluded by a command, unwilling "
        "(its owner or schedule), silent (no context for 3 s), gone (disconnected).",
        "s",
        0,
        11,
        lambda d: d.state,
        lambda d: d.state,
        is_number=False,
        is_searched=True,
        style=state_style,
    ),
    PHASE_BAR,
)
"""What a device is and does."""

VALID = FleetColumn(
    "valid",
    "valid",
    "valid",
    "Exchanges with a reliable time / done exchanges. The estimator learns from valid ones "
    "only; the updates of all count.",
    "v",
    10,
    5,
    _valid,
    _valid_share,
)

MALICIOUS = FleetColumn(
    "malicious",
    "malicious",
    "malicious",
    "How the device attacks the training on purpose.",
    "b",
    1,
    9,
    lambda d: d.malicious or "",
    lambda d: d.malicious,
    is_number=False,
    style=bad_style,
    is_known=lambda view: view.reveals,
)


def all_columns() -> tuple[FleetColumn, ...]:
    """Return all columns, in their order on the screen: those of measures are of the catalogue."""
    shown = [measure for measure in device_measures() if measure.room is not None]
    letters = iter(LETTERS)
    columns = list(NAMES)
    for measure in shown:
        has_letter = measure.room is not None and measure.room.letter
        column = column_of(measure, "" if has_letter else next(letters, ""))
        columns += [VALID, column] if column.key == "energy" else [column]
    return (*columns, MALICIOUS)


def by_key() -> Mapping[str, FleetColumn]:
    """Return all columns by their keys."""
    return {column.key: column for column in all_columns()}


def fields() -> tuple[Field[DeviceView], ...]:
    """Return what a filter can ask of a device."""
    return tuple(
        Field(column.key, column.value, column.is_number, column.is_searched)
        for column in all_columns()
        if column is not PHASE_BAR
    )


@dataclass(frozen=True, slots=True)
class Order:
    """Order of the lines."""

    key: str = ""
    """Key of a column; empty for the order in which the devices joined."""
    is_largest_first: bool = False

    @classmethod
    def read(cls, text: str) -> "Order":
        """Return the order of a text such as `tau` or, for the largest first, `-tau`."""
        key = text.removeprefix("-")
        return cls(key, text.startswith("-")) if key in ("", *by_key()) else cls()

    def __str__(self) -> str:
        """Return the text that `read` reads."""
        return f"{'-' if self.is_largest_first else ''}{self.key}"

    @property
    def reversed(self) -> "Order":
        """The opposite order."""
        return Order(self.key, not self.is_largest_first)

    def by(self, key: str) -> "Order":
        """Return the order by a column, what deserves attention first; of the same one reversed."""
        if key == self.key:
            return self.reversed
        column = by_key().get(key)
        return Order(key, column is not None and column.is_largest_first)


def arranged(devices: Sequence[DeviceView], keeps: Filter[DeviceView], order: Order) -> list[int]:
    """Return the positions of the devices that a filter keeps, in an order.

    Equal values keep the order in which the devices joined; unknown ones are last either way.
    """
    kept = [at for at, device in enumerate(devices) if keeps(device)]
    if not order.key:
        return kept[::-1] if order.is_largest_first else kept
    value = by_key()[order.key].value
    values = {at: value(devices[at]) for at in kept}
    known = [at for at in kept if values[at] is not None]
    known.sort(key=lambda at: _sortable(values[at]), reverse=order.is_largest_first)
    return known + [at for at in kept if values[at] is None]


_DIGITS = re.compile(r"(\d+)")


def _sortable(value: Value) -> tuple[tuple[int, str], ...] | float:
    """Return a sort key; texts are compared by their parts, numbers in them as numbers."""
    if not isinstance(value, str):
        return value or 0.0
    parts = _DIGITS.split(value.lower())
    return tuple((int(part), "") if i % 2 else (-1, part) for i, part in enumerate(parts))


def columns_of(
    view: RunView, chosen: Sequence[str] | None = None, *, has_bars: bool = True
) -> tuple[FleetColumn, ...]:
    """Return the columns for the devices of a run: the chosen ones and the name, or the usual."""
    if chosen is not None:
        return tuple(c for c in all_columns() if c.key == "name" or c.key in chosen)
    usual = (column for column in all_columns() if has_bars or column is not PHASE_BAR)
    return tuple(column for column in usual if column.is_known(view))


def widths_of(
    columns: Sequence[FleetColumn], headings: Sequence[str], devices: Sequence[DeviceView]
) -> dict[FleetColumn, int]:
    """Return the width that each column needs for its heading and all values of these devices."""
    return {
        c: max([c.min_width, len(heading), *(len(c.text(d)) + (c.key in MARKED) for d in devices)])
        for c, heading in zip(columns, headings, strict=True)
    }


def fitting(
    widths: Mapping[FleetColumn, int],
    width: int,
    padding: int = PADDING,
    always: str = "",
) -> dict[FleetColumn, int]:
    """Return the columns that fit into `width` and their widths, in order.

    The least important ones are left out; what is left over widens the bars of phases.

    Args:
        widths: Width of each column.
        width: Width of all columns with their padding.
        padding: Padding of a column.
        always: Key of a column that is left out last, before the name.
    """
    ranks = {"name": -2, always: -1}
    kept = dict(widths)
    while len(kept) > 1 and sum(kept.values()) + padding * len(kept) > width:
        del kept[max(kept, key=lambda column: ranks.get(column.key, column.priority))]
    if PHASE_BAR in kept:
        spare = width - sum(kept.values()) - padding * len(kept)
        kept[PHASE_BAR] += max(min(spare, MAX_BAR - kept[PHASE_BAR]), 0)
    return kept
