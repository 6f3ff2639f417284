"""Screen of the estimator: predicted against measured exchange times."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.table import Table
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.events import Resize
from textual.widgets import Static

from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.coordinator.report.predictions import (
    RECENT_ROUNDS,
    DeviceError,
    PartOfResidual,
    PredictionErrors,
    drift,
    errors_by_device,
    errors_by_round,
    errors_of,
    parts_of_residual,
    read_predictions,
)
from fairbed.coordinator.report.quantities import (
    LEAST,
    MISSING,
    SampleCount,
    cell,
    percent,
    seconds,
)
from fairbed.coordinator.report.text_table import GAP, TextColumn, fitting
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.tui.screens.run_screen import WIDE, Read, RunScreen
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.fleet import FleetTable
from fairbed.coordinator.tui.widgets.line_table import DeviceLines, Heading
from fairbed.coordinator.tui.widgets.plot import Curve, CurvePlot

WORST_DEVICES = 100
"""Devices listed, those with the largest errors."""

SCATTERED = 500
"""Newest exchanges that are drawn as points."""


def _cell(value: float | None, sample: SampleCount) -> str:
    return cell(percent(value), value, sample)


COLUMNS: tuple[tuple[TextColumn[DeviceError], str], ...] = (
    (
        TextColumn("device", lambda x: x.device, "<"),
        "Devices, those with the largest errors first.",
    ),
    (
        TextColumn("count", lambda x: str(x.errors.sample)),
        "Exchanges that count, of all: predicted, and valid for the estimator. Fewer than "
        f"{LEAST}, or than half of all, have no error.",
    ),
    (
        TextColumn("error", lambda x: _cell(x.errors.median_ape, x.errors.sample)),
        "Median of |predicted - measured| / measured.",
    ),
    (
        TextColumn("bias", lambda x: percent(x.errors.bias, is_signed=True), priority=1),
        "Mean of (predicted - measured) / measured; + means that predictions are too long.",
    ),
    (
        TextColumn("width", lambda x: _cell(x.errors.width, x.errors.bounded), priority=5),
        "Width of the 80 % interval / prediction, median of the exchanges with an interval.",
    ),
    (
        TextColumn("pred. s", lambda x: seconds(x.tau_hat_s), priority=4),
        "Prediction of the newest exchange, seconds.",
    ),
    (
        TextColumn("τ s", lambda x: seconds(x.tau_s), priority=3),
        "Measured time of the newest exchange, seconds.",
    ),
)
"""Columns of the table of devices, and what they mean."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What the screen shows of the exchanges up to a round."""

    every: PredictionErrors
    recent: PredictionErrors
    before: PredictionErrors
    by_round: Sequence[tuple[int, float, float]]
    parts: Sequence[PartOfResidual]
    devices: Sequence[DeviceError]
    points: tuple[tuple[float, float], ...]
    """Measured and predicted times of the newest exchanges, seconds."""


def read_accuracy(until_round: int, reader: RunReader) -> Accuracy:
    """Read the exchanges up to a round, and return their errors."""
    found = read_predictions(reader, until_round)
    recent, before = drift(found)
    newest = zip(found.tau_s[-SCATTERED:], found.tau_hat_s[-SCATTERED:], strict=True)
    return Accuracy(
        every=errors_of(found),
        recent=recent,
        before=before,
        by_round=errors_by_round(found),
        parts=parts_of_residual(found),
        devices=errors_by_device(found)[:WORST_DEVICES],
        points=tuple((float(tau_s), float(tau_hat_s)) for tau_s, tau_hat_s in newest),
    )


class EstimatorScreen(RunScreen):
    """Errors of the predictions: in all, over rounds, by phase and by device."""

    TAB = "estimator"
    PURPOSE = "How well exchange times are predicted, and which phase or device is not."

    def __init__(self) -> None:
        super().__init__()
        self._read_at: tuple[int, int] | None = None
        """Resumes and newest round when the exchanges were last read."""
        self._estimator = ""
        self._shown: Accuracy | None = None
        self._devices_width = 0
        """Width for which the columns of the devices were chosen."""

    def compose_parts(self) -> ComposeResult:
        """Build the parts."""
        yield Static(id="errors", classes="panel")
        with Horizontal(id="plots"):
            yield CurvePlot(
                "Predicted over measured, s", id="scatter", limit=SCATTERED, is_over_rounds=False
            )
            yield CurvePlot("Error, %", id="drift")
        with Horizontal(id="tables"):
            yield Static(id="parts", classes="panel")
            yield DeviceLines(id="devices")

    def on_mount(self) -> None:
        """Set titles and columns."""
        super().on_mount()
        self.query_one("#errors").border_title = "Estimator"
        self.query_one("#parts").border_title = "Spread of the residuals by phase"
        table = self.query_one(DeviceLines)
        table.border_title = "Devices, largest errors first"
        table.focus()

    @property
    def selected_device(self) -> str | None:
        """Name of the device under the cursor."""
        if self._shown is None or not self._shown.devices:
            return None
        row = self.query_one(DeviceLines).cursor_row
        return self._shown.devices[row].device if row < len(self._shown.devices) else None

    def show(self, view: RunView) -> None:
        """Show the name of the estimator; `receive` shows the rest."""
        super().show(view)
        named = view.info.plan.selection.estimator if view.info else None
        self._estimator = named or SelectionConfig().estimator

    def lacks(self, view: RunView) -> Read | None:
        """Return the read of the exchanges once a round has closed."""
        now = (view.cursor.resumes, view.cursor.round)
        if now == self._read_at:
            return None
        self._read_at = now
        return partial(read_accuracy, view.cursor.round)

    def receive(self, rows: Accuracy) -> None:
        """Show the errors."""
        self._shown = rows
        self.query_one("#errors", Static).update(facts_text(self._estimator, rows))
        self._fill_tables(rows)
        longest = max((max(point) for point in rows.points), default=0.0)
        self.query_one("#scatter", CurvePlot).curves = (
            Curve("equal", "high", ((0.0, 0.0), (longest, longest))),
            Curve("exchanges", "main", rows.points, is_joined=False),
        )
        self.query_one("#drift", CurvePlot).curves = (
            Curve("bias", "low", tuple((x, 100.0 * bias) for x, _, bias in rows.by_round)),
            Curve("median", "main", tuple((x, 100.0 * ape) for x, ape, _ in rows.by_round)),
        )

    def on_data_table_row_selected(self) -> None:
        """Open the device under the cursor."""
        if (name := self.selected_device) is not None:
            self.post_message(FleetTable.Opened(name))

    def on_resize(self, _event: Resize) -> None:
        """Choose the columns again."""
        if self._shown is not None:
            self._fill_tables(self._shown)

    def _fill_tables(self, found: Accuracy) -> None:
        """Show phases and devices."""
        is_narrow = self.app.size.width < WIDE
        self.query_one("#parts", Static).update(parts_table(found.parts, is_narrow=is_narrow))
        self._fill_devices(found.devices)
        self.call_after_refresh(self._fit_devices)  # the phases may leave another width now

    def _fit_devices(self) -> None:
        """Choose the columns again if the table of devices has another width."""
        if not self.has_parts or self._shown is None:
            return
        if self._devices_width != self.query_one(DeviceLines).scrollable_content_region.width:
            self._fill_devices(self._shown.devices)

    def _fill_devices(self, devices: Sequence[DeviceError]) -> None:
        """Show the devices, in the columns that fit."""
        table = self.query_one(DeviceLines)
        self._devices_width = table.scrollable_content_region.width
        columns = fitting([column for column, _ in COLUMNS], devices, self._devices_width - GAP)
        table.fill(
            [Heading(column.heading, is_left=column.align == "<") for column in columns],
            [[column.text(device) for column in columns] for device in devices],
        )

    def redraw(self) -> None:
        """Draw the plots again, in another theme or with other glyphs."""
        for plot in self.query(CurvePlot):
            plot.redraw()

    def explanations(self) -> Sequence[tuple[str, str]]:
        """Return the columns and the parts of a residual."""
        return (
            *((column.heading, meaning) for column, meaning in COLUMNS),
            (
                "80 % interval",
                "A range around each prediction, from the errors of earlier ones, that about 80 % "
                "of measured times are within.",
            ),
            ("equal", "The line on which predicted and measured times are equal."),
            ("spread", "Standard deviation of a phase around the mean of its device."),
            (
                "share",
                "Part of the spread of the residuals that comes from this phase; all add up to "
                "100 %. A negative part makes others smaller.",
            ),
            ("rest", "Time in no phase: mostly control messages in transit."),
            ("prediction", "Changes of the prediction itself, between rounds."),
        )


def facts_text(name: str, found: Accuracy) -> str:
    """Return the errors in words, on two lines."""
    every = found.every
    if not every.sample.n:
        return f"{name}: no prediction yet that can be compared with a measured time"
    if every.width is not None:
        inside = f"{percent(every.width)} wide, {percent(every.coverage)} within"
        interval = f", 80 % interval {inside} ({every.bounded})"
    else:
        interval = f", no 80 % interval ({every.bounded}, {every.bounded.why_none})"
    return (
        f"{name}, {every.sample} exchanges: {_errors(every)}{interval}\n"
        f"newest {RECENT_ROUNDS} rounds, {found.recent.sample}: {_errors(found.recent)}; "
        f"{RECENT_ROUNDS} before, {found.before.sample}: {_errors(found.before)}"
    )


def _errors(found: PredictionErrors) -> str:
    if found.median_ape is None:
        return f"no error ({found.sample.why_none})"
    return f"median error {percent(found.median_ape)}, bias {percent(found.bias, is_signed=True)}"


def parts_table(parts: Sequence[PartOfResidual], *, is_narrow: bool = False) -> Table:
    """Return the parts of the residuals, largest share first; narrow ones without seconds."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    headings = ("share",) if is_narrow else ("mean s", "spread s", "share")
    for _ in headings:
        table.add_column(justify="right", no_wrap=True)
    table.add_row("phase", *headings, style="bold")
    for part in parts:
        share = MISSING if part.share is None else percent(part.share)
        times = () if is_narrow else (seconds(part.mean_s), seconds(part.spread_s))
        table.add_row(part.name, *times, share)
    return table
