"""Columns of the fleet: their words, values and texts; which fit, and in which order. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fairbed.coordinator.report.quantities import (
    MISSING,
    bandwidth,
    energy,
    ratio,
    seconds,
)
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
    if beta is None or device.rate is None:
        return ""
    return "good" if device.rate >= beta - TOLERANCE else "warn"


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


def _temperature(device: DeviceView) -> str:
    found = device.temperature_celsius
    return MISSING if found is None else f"{found:.0f}"


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

COLUMNS: tuple[FleetColumn, ...] = (
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
    FleetColumn(
        "mu",
        "µ",
        "µ cores",
        "Cores that training can use: free cores times clock / nominal clock, as reported.",
        "m",
        6,
        4,
        lambda d: ratio(d.mu_cores, 2),
        lambda d: d.mu_cores,
    ),
    FleetColumn(
        "clock",
        "clock",
        "clock",
        "Clock of the processor under load / nominal clock; ! while it is throttled.",
        "c",
        12,
        5,
        lambda d: ratio(d.clock_ratio, 2),
        lambda d: d.clock_ratio,
        style=clock_style,
        is_known=lambda view: any(d.clock_ratio not in (None, 1.0) for d in view.devices),
    ),
    FleetColumn(
        "temp",
        "°C",
        "temp. °C",
        "Temperature of the processor, degrees Celsius.",
        "h",
        12,
        3,
        _temperature,
        lambda d: d.temperature_celsius,
        is_largest_first=True,
        is_known=lambda view: any(d.temperature_celsius is not None for d in view.devices),
    ),
    FleetColumn(
        "down",
        "B↓",
        "down bit/s",
        "Rate of the downlink, bit/s: estimated by the device from its transfers.",
        "d",
        7,
        4,
        lambda d: bandwidth(d.downlink_bps),
        lambda d: d.downlink_bps,
    ),
    FleetColumn(
        "up",
        "B↑",
        "up bit/s",
        "Rate of the uplink, bit/s: estimated by the device from its transfers.",
        "u",
        7,
        4,
        lambda d: bandwidth(d.uplink_bps),
        lambda d: d.uplink_bps,
    ),
    FleetColumn(
        "pred",
        "pred s",
        "predicted s",
        "Exchange time that was predicted at the last selection, seconds.",
        "e",
        2,
        6,
        lambda d: seconds(d.tau_hat_s),
        lambda d: d.tau_hat_s,
        is_largest_first=True,
        style=dim_style,
    ),
    FleetColumn(
        "tau",
        "τ s",
        "measured s",
        "Newest measured exchange time, seconds: download, training and upload, without the wait "
        "for an upload grant.",
        "t",
        1,
        5,
        lambda d: seconds(d.tau_s),
        lambda d: d.tau_s,
        is_largest_first=True,
    ),
    FleetColumn(
        "selected",
        "sel",
        "selected",
        "Rounds in which the device was selected.",
        "x",
        3,
        3,
        lambda d: str(d.selected),
        lambda d: d.selected,
    ),
    FleetColumn(
        "rate",
        "rate",
        "rate",
        "Selections / rounds since the device joined. ≥ in the heading is the guaranteed rate "
        "(beta); ! marks a rate below it.",
        "r",
        3,
        5,
        lambda d: ratio(d.rate, 2),
        lambda d: d.rate,
        style=rate_style,
    ),
    FleetColumn(
        "aggregated",
        "agg",
        "aggregated",
        "Aggregated updates / rounds since the device joined; lower than the selection rate if "
        "updates are late or fail. ! marks a rate below the guarantee.",
        "g",
        9,
        5,
        lambda d: ratio(d.aggregation_rate, 2),
        lambda d: d.aggregation_rate,
        style=aggregation_style,
    ),
    FleetColumn(
        "queue",
        "Z",
        "queue Z",
        "Virtual queue of RBCS-F: the deficit of selections. It grows by beta in each round and "
        "falls by 1 when the device is selected.",
        "z",
        4,
        4,
        lambda d: ratio(d.queue, 2),
        lambda d: d.queue,
        is_largest_first=True,
    ),
    FleetColumn(
        "loss",
        "loss",
        "loss",
        "Loss of the global model on the held-out examples of the device, nats.",
        "l",
        5,
        4,
        lambda d: ratio(d.loss, 2),
        lambda d: d.loss,
        is_largest_first=True,
    ),
    FleetColumn(
        "accuracy",
        "acc",
        "accuracy",
        "Accuracy of the global model on the held-out examples of the device.",
        "a",
        1,
        5,
        lambda d: ratio(d.accuracy),
        lambda d: d.accuracy,
        is_known=lambda view: view.task != "regression",
    ),
    FleetColumn(
        "auroc",
        "AUROC",
        "AUROC",
        "Area under the ROC curve of the global model on the held-out examples of the device.",
        "f",
        2,
        5,
        lambda d: ratio(d.auroc),
        lambda d: d.auroc,
        is_known=lambda view: any(d.auroc is not None for d in view.devices),
    ),
    FleetColumn(
        "rmse",
        "RMSE",
        "RMSE",
        "Root mean squared error of the global model on the held-out examples of the device.",
        "E",
        1,
        5,
        lambda d: ratio(d.rmse),
        lambda d: d.rmse,
        is_largest_first=True,
        is_known=lambda view: view.task == "regression",
    ),
    FleetColumn(
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
    ),
    FleetColumn(
        "energy",
        "energy",
        "energy",
        "Known energy of the exchanges of closed rounds, joules, idle power included.",
        "j",
        6,
        6,
        lambda d: energy(d.energy_j),
        lambda d: d.energy_j,
        is_largest_first=True,
        is_known=lambda view: view.energy_j is not None,
    ),
    FleetColumn(
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
    ),
)
"""All columns, in their order on the screen."""

BY_KEY: Mapping[str, FleetColumn] = {column.key: column for column in COLUMNS}

FIELDS: tuple[Field[DeviceView], ...] = tuple(
    Field(column.key, column.value, column.is_number, column.is_searched)
    for column in COLUMNS
    if column is not PHASE_BAR
)
"""What a filter can ask of a device."""


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
        return cls(key, text.startswith("-")) if key in ("", *BY_KEY) else cls()

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
        return Order(key, key in BY_KEY and BY_KEY[key].is_largest_first)


def arranged(devices: Sequence[DeviceView], keeps: Filter[DeviceView], order: Order) -> list[int]:
    """Return the positions of the devices that a filter keeps, in an order.

    Equal values keep the order in which the devices joined; unknown ones are last either way.
    """
    kept = [at for at, device in enumerate(devices) if keeps(device)]
    if not order.key:
        return kept[::-1] if order.is_largest_first else kept
    value = BY_KEY[order.key].value
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
        return tuple(c for c in COLUMNS if c.key == "name" or c.key in chosen)
    usual = (column for column in COLUMNS if has_bars or column is not PHASE_BAR)
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
