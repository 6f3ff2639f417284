"""Screen of one device: its facts, its state and its exchanges."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable, Static

from fairbed.coordinator.report.quantities import (
    MISSING,
    bandwidth,
    clock,
    energy,
    percent,
    ratio,
    seconds,
    size,
)
from fairbed.coordinator.store.tables import DeviceRow, ExchangeRow
from fairbed.coordinator.tui.phase_spans import PHASES
from fairbed.coordinator.tui.screens.run_screen import TALL, Read, RunScreen
from fairbed.coordinator.tui.view import ABSENT, DeviceView, RunView, known_prediction
from fairbed.coordinator.tui.widgets.plot import Curve, CurvePlot

ABSENCES = {
    "unwilling": "its owner or its schedule does not allow training",
    "silent": "outage or frozen process",
    "gone": "disconnected",
    "ended": "the run is over",
}
"""Reason why a device in this state is not selected."""

SHORT = {"download": "down", "upload": "up", "evaluate": "eval", "personal": "own"}
"""Short headings of phases with wide names."""


def _phase(column: str, row: ExchangeRow) -> str:
    return seconds(getattr(row, column))


Column = tuple[str, Callable[[ExchangeRow], str]]
COLUMNS: tuple[Column, ...] = (
    ("round", lambda x: str(x.round)),
    ("outcome", lambda x: _outcome(x)),
    ("pred.", lambda x: seconds(known_prediction(x.tau_hat_s))),
    ("τ", lambda x: seconds(x.tau_s)),
    *((SHORT.get(phase, phase), partial(_phase, f"{phase}_s")) for phase in PHASES),
    ("rest", lambda x: percent(x.unaccounted_s / x.tau_s if x.unaccounted_s and x.tau_s else None)),
    ("loss", lambda x: ratio(x.loss_train if x.loss_before is None else x.loss_before)),
    ("weight/n", lambda x: _weight(x)),
    ("reason", lambda x: x.reason),
)


def _outcome(row: ExchangeRow) -> str:
    if row.is_valid or row.outcome != "done":
        return row.outcome
    return "done, host busy" if row.is_contended else "done, untimed"


def _weight(row: ExchangeRow) -> str:
    """Return the weight in the merge and the share of examples there, percent."""
    if row.weight_share is None or row.n_share is None:
        return MISSING
    return f"{100 * row.weight_share:.0f}/{100 * row.n_share:.0f} %"


class DeviceDetail(RunScreen):
    """Details of one device; the application's keys for a device act on it."""

    PURPOSE = "What one device is, does and did."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.back", "Back", id="back", tooltip="To the last screen"),
    ]

    def __init__(self, device: DeviceRow) -> None:
        super().__init__()
        self._device = device
        self._listed: Sequence[ExchangeRow] = ()
        self._facts: tuple[object, ...] = ()
        self._over: tuple[object, ...] = ()
        """Resumes, newest round and outcome in the view when exchanges were last read."""

    @property
    def selected_device(self) -> str:
        """Name of the device."""
        return self._device.name

    def compose_parts(self) -> ComposeResult:
        """Build the parts."""
        with Horizontal(id="device"):
            yield Static(id="facts")
            yield CurvePlot("Exchange time, s", id="tau")
        yield DataTable[Text](id="exchanges", cursor_type="row", zebra_stripes=True)

    def on_mount(self) -> None:
        """Set the titles and the columns."""
        super().on_mount()
        self.query_one("#facts").border_title = self._device.name
        table = self.query_one(DataTable)
        table.border_title = "Exchanges, newest first"
        for heading, _ in COLUMNS:
            table.add_column(Text(heading, justify="right"))
        table.focus()

    def show(self, view: RunView) -> None:
        """Show the device's facts in a view of the run."""
        super().show(view)
        device = view.device(self._device.name)
        if device is not None:
            facts = device_facts(self._device, device, view.elapsed_s)
            columns = 1 if self.app.size.height >= TALL else 2  # to leave lines for exchanges
            if (facts, columns) != self._facts:
                self._facts = (facts, columns)
                self.query_one("#facts", Static).update(side_by_side(facts, columns))

    def lacks(self, view: RunView) -> Read | None:
        """Return the read of the device's exchanges if there may be more than are shown."""
        over = (view.cursor.resumes, view.cursor.round, outcome_now(view, self._device.name))
        if over == self._over:
            return None
        self._over = over
        return lambda reader: reader.exchanges_of(self._device.name, until_round=view.until_round)

    def receive(self, rows: Sequence[ExchangeRow]) -> None:
        """Show the device's exchanges, given oldest first."""
        if list(rows) == list(self._listed):
            return
        self._listed = rows
        table = self.query_one(DataTable)
        table.clear()
        for row in reversed(rows):
            table.add_row(*(Text(text(row), justify="right") for _, text in COLUMNS))
        self.query_one("#tau", CurvePlot).curves = (
            Curve(
                "predicted", "low", curve((x.round, known_prediction(x.tau_hat_s)) for x in rows)
            ),
            Curve("measured", "main", curve((x.round, x.tau_s) for x in rows)),
        )

    def redraw(self) -> None:
        """Draw the plot again, in another theme or with other glyphs."""
        self.query_one(CurvePlot).redraw()


def outcome_now(view: RunView, device: str) -> str:
    """Return the outcome of a device's exchange in the newest round; empty while it is open."""
    exchanges = view.rounds[-1].exchanges if view.rounds else ()
    return next((x.outcome for x in exchanges if x.device == device), "")


def curve(points: Iterable[tuple[int, float | None]]) -> tuple[tuple[float, float], ...]:
    """Return the points with a known value."""
    return tuple((float(x), y) for x, y in points if y is not None)


def side_by_side(facts: Sequence[tuple[str, str]], columns: int) -> Table:
    """Return labels and values in columns, filled downwards first; long values are wrapped."""
    table = Table.grid(padding=(0, 2), expand=True)
    for _ in range(columns):
        table.add_column(style="dim", no_wrap=True)
        table.add_column(ratio=1)
    lines = -(-len(facts) // columns)
    for line in range(lines):
        table.add_row(*(cell for fact in facts[line::lines] for cell in fact))
    return table


def state_text(device: DeviceView, elapsed_s: float) -> str:
    """Return the state of a device; for an absent one also the reason and the last context.

    An outage of an emulated device looks like any other: only its reports are known here.
    """
    meaning = ABSENCES.get(device.state)
    if meaning is None:
        return device.state
    if device.state not in ABSENT or device.last_context_s is None:
        return f"{device.state}: {meaning}"
    age = clock(max(0.0, elapsed_s - device.last_context_s))
    return f"{device.state}: {meaning}; last context {age} ago"


def _personal(device: DeviceView) -> str:
    """Return the accuracy of the personal model, if there is one."""
    found = device.personal_accuracy
    return "" if found is None else f", personal model {ratio(found)}"


def device_facts(row: DeviceRow, device: DeviceView, elapsed_s: float) -> list[tuple[str, str]]:
    """Return labels and values of a device at a time of the run clock."""
    try:
        capabilities = dict(json.loads(row.capabilities))
    except ValueError:
        capabilities = {}
    machine = ", ".join(
        str(capabilities[key]) for key in ("model", "machine", "engine") if capabilities.get(key)
    )
    source = "its own" if row.has_own_data else "a shard"
    temperature = device.temperature_celsius
    return [
        ("profile", f"{device.profile or MISSING}{', physical' * (device.kind == 'physical')}"),
        ("machine", machine or MISSING),
        ("cores", str(capabilities.get("cores", MISSING))),
        ("data", f"{row.n_k} examples, {source}"),
        ("state", state_text(device, elapsed_s)),
        ("µ", f"{ratio(device.mu_cores, 2)} cores"),
        (
            "links",
            f"{bandwidth(device.downlink_bps)} down, {bandwidth(device.uplink_bps)} up, bit/s",
        ),
        ("memory", size(device.rss_bytes)),
        ("temperature", MISSING if temperature is None else f"{temperature:.0f} °C"),
        (
            "selected",
            f"{device.selected} of {device.rounds} rounds, {device.aggregated} aggregated",
        ),
        ("queue Z", ratio(device.queue, 2)),
        (
            "accuracy",
            f"{ratio(device.accuracy)}, loss {ratio(device.loss)}{_personal(device)}",
        ),
        *([] if device.energy_j is None else [("energy", energy(device.energy_j))]),
        *([("malicious", device.malicious)] if device.malicious else []),
    ]
