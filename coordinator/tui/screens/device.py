"""Screen of one device: its facts, a curve over rounds, and its exchanges."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from math import inf
from operator import attrgetter
from typing import ClassVar, NamedTuple

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Resize
from textual.widgets import Static

from fairbed.coordinator.report.device_history import (
    RECENT,
    DeviceHistory,
    phase_seconds,
    phases_by_duration,
    read_history,
    slowest_phase,
)
from fairbed.coordinator.report.quality import spread_of
from fairbed.coordinator.report.quantities import (
    MISSING,
    SampleCount,
    bandwidth,
    clock,
    energy,
    instant,
    percent,
    ratio,
    seconds,
    size,
    text_in,
)
from fairbed.coordinator.report.tables import ColumnMeaning
from fairbed.coordinator.report.tables import columns_of as lines_of
from fairbed.coordinator.store.reader import ContextMeans
from fairbed.coordinator.store.schema import unit_of
from fairbed.coordinator.store.tables import DeviceRow, ExchangeRow, MetricRow, TruthRow
from fairbed.coordinator.tui.filters import Field, Filter
from fairbed.coordinator.tui.phase_spans import PHASES, WORDS
from fairbed.coordinator.tui.preferences import ScreenChoices
from fairbed.coordinator.tui.screens.device_log import DeviceLogScreen
from fairbed.coordinator.tui.screens.fleet_dialogs import ColumnsDialog, OfferedColumn
from fairbed.coordinator.tui.screens.run_screen import TALL, WIDE, WIDEST, Read, RunScreen
from fairbed.coordinator.tui.view import ABSENT, DeviceView, RunView, known_prediction
from fairbed.coordinator.tui.widgets.filter_bar import FilterBar
from fairbed.coordinator.tui.widgets.line_table import Heading, LineTable
from fairbed.coordinator.tui.widgets.plot import Curve, CurvePlot

ABSENCES = {
    "unwilling": "its owner or its schedule does not allow training",
    "silent": "outage or frozen process",
    "gone": "disconnected",
    "revoked": "the broker refuses its identity; it has left the fleet",
    "ended": "the run is over",
}
"""Reason why a device in this state is not selected."""

SHORT = {"download": "down", "upload": "up", "evaluate": "eval", "personal": "own"}
"""Short headings of phases with wide names."""

LONG = {"pred.": "predicted", **{short: phase for phase, short in SHORT.items()}}
"""Long form of the short headings."""

PROBLEM_LENGTH = 64
"""Characters of the newest problem among the facts; the log has the whole text."""

METRICS_SHOWN = 6
"""Metrics of a client among the facts; each has a curve."""

LEAST_S = 0.0005
"""Shorter phases are shown as 0.000."""

CURVES_OF_PHASES = 3
"""Phases in one plot, which has as many colours."""


def _phase(phase: str, row: ExchangeRow) -> str:
    return seconds(phase_seconds(row, phase))


def _further(name: str, row: ExchangeRow) -> str:
    return text_in(unit_of(name), getattr(row, name))


def columns_of(
    rows: Sequence[ExchangeRow], *, is_widest: bool = False, further: Sequence[str] = ()
) -> list[tuple[str, Callable[[ExchangeRow], str]]]:
    """Return heading and text of each column, without those of phases that take no time.

    Args:
        rows: The exchanges.
        is_widest: Spell the headings out.
        further: Names of further columns of the store.
    """
    short = {} if is_widest else SHORT
    phases = [x for x in PHASES if any((phase_seconds(row, x) or 0.0) >= LEAST_S for row in rows)]
    return [
        ("round", lambda x: str(x.round)),
        ("outcome", outcome_text),
        ("predicted" if is_widest else "pred.", lambda x: seconds(known_prediction(x.tau_hat_s))),
        ("τ", lambda x: seconds(x.tau_s)),
        *((short.get(phase, phase), partial(_phase, phase)) for phase in phases),
        ("rest", _rest),
        ("loss", lambda x: ratio(_loss(x))),
        ("weight/n", _weight),
        *((name, partial(_further, name)) for name in further),
        ("reason", lambda x: x.reason),
    ]


def _rest(row: ExchangeRow) -> str:
    """Return the share of the exchange time in no phase."""
    return percent(row.unaccounted_s / row.tau_s if row.unaccounted_s and row.tau_s else None)


def outcome_text(row: ExchangeRow) -> str:
    """Return the outcome of an exchange, with why its time is not valid."""
    if row.is_valid or row.outcome != "done":
        return row.outcome
    return "done, host busy" if row.is_contended else "done, untimed"


def _loss(row: ExchangeRow) -> float | None:
    return row.loss_train if row.loss_before is None else row.loss_before


def _weight(row: ExchangeRow) -> str:
    """Return the weight in the merge and the share of examples there, percent."""
    if row.weight_share is None or row.n_share is None:
        return MISSING
    return f"{100 * row.weight_share:.0f}/{100 * row.n_share:.0f} %"


FIELDS: tuple[Field[ExchangeRow], ...] = (
    Field("outcome", outcome_text, is_searched=True),
    Field("reason", lambda x: x.reason, is_searched=True),
    Field("round", lambda x: x.round, is_number=True),
    Field("tau", lambda x: x.tau_s, is_number=True),
    Field("pred", lambda x: known_prediction(x.tau_hat_s), is_number=True),
    *(Field(phase, partial(phase_seconds, phase=phase), is_number=True) for phase in PHASES),
    Field("loss", _loss, is_number=True),
)
"""What a filter can ask of an exchange, beside its further columns."""

_SHOWN = {"round", "attempt", "device", "outcome", "reason", "tau_s", "tau_hat_s"}


@cache
def further_columns() -> tuple[ColumnMeaning, ...]:
    """Return the columns of the store that the user may add; a new one is among them by itself."""
    shown = {*_SHOWN, *(f"{phase}_s" for phase in PHASES)}
    return tuple(line for line in lines_of(ExchangeRow) if line.column not in shown)


def fields_of_exchanges() -> tuple[Field[ExchangeRow], ...]:
    """Return what a filter can ask of an exchange."""
    return (
        *FIELDS,
        *(
            Field(line.column, attrgetter(line.column), is_number=line.type in ("int", "float"))
            for line in further_columns()
            if line.type != "bool"
        ),
    )


class Series(NamedTuple):
    """One plot of the device: its title with the unit, and its curves."""

    title: str
    curves: tuple[Curve, ...]
    has_zero: bool = True


FACTS = (
    (
        "slowest phase",
        "The phase that takes most of an exchange: medians of those that are timed, n of the "
        f"newest {RECENT}.",
    ),
    ("state", "What the device does, by its last report, or why it takes no part."),
    ("profile", "The emulated profile, or the board of a physical device."),
    ("machine", "Board, processor architecture, training engine and cores."),
    ("µ", "Free cores x clock / nominal clock: what a training step can use."),
    ("links", "Rates as the device measured them, of those that its profile states."),
    ("memory", "Resident memory of the agent, of that of the device."),
    ("temperature", "Of the processor; clock under load / nominal clock; causes of throttling."),
    ("selected", "Rounds in which it was selected, and in which its update was merged."),
    ("queue Z", "Virtual queue: the deficit of selections below the guaranteed rate."),
    ("accuracy", "Of the global model on its examples, in the newest evaluation, and the loss."),
    ("metrics", "What its client measured last, by its own names, and metrics by name."),
    ("data", "Training examples, its own or a shard of the run's data set."),
    ("problems", "Warnings and errors of the run about this device; its log has them all."),
    ("energy", "Of all its exchanges: power x duration of the phases."),
    ("malicious", "Kind of the attack that the experiment gave it."),
)
"""The facts and what they mean."""

COLUMN_WORDS = {
    "round": "Number of the round.",
    "outcome": "How the exchange ended.",
    "predicted": "Predicted exchange time, seconds.",
    "τ": "Measured exchange time, seconds, without the wait for an upload grant.",
    **{phase: f"{WORDS[phase]} Seconds." for phase in PHASES},
    "rest": "Share of τ in no phase: mostly control messages in transit.",
    "loss": "Training loss, before the round if it was asked for, or of the last epoch.",
    "weight/n": "Weight in the merge / share of the examples, or positions, of merged devices.",
    "reason": "Why it is not done, or its time is not valid.",
}
"""What the columns mean, by their long headings."""


class DeviceDetail(RunScreen):
    """Details of one device; the application's keys for a device act on it."""

    PURPOSE = "What one device is, does and did, and which phase makes it slow."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log", "Log", id="device_log", tooltip="Lines of its agent, and its events"),
        Binding("s", "series(1)", "Next curve", id="series", tooltip="Another curve over rounds"),
        Binding("S", "series(-1)", "Last curve", id="series_back", show=False, tooltip="Back"),
        Binding(
            "C",
            "choose_columns",
            "Columns",
            id="columns",
            show=False,
            tooltip="Choose the columns of the table",
        ),
        Binding("escape,backspace", "app.back", "Back", id="back", tooltip="To the last screen"),
    ]

    def __init__(self, device: DeviceRow) -> None:
        super().__init__()
        self._device = device
        self._further: tuple[str, ...] = ()
        """Further columns that the user chose."""
        self._history: DeviceHistory | None = None
        self._view = RunView()
        self._facts: tuple[list[tuple[str, str]], int] = ([], 0)
        self._listed: tuple[list[str], list[ExchangeRow]] = ([], [])
        """Headings, and exchanges in the table, oldest first."""
        self._filter: Filter[ExchangeRow] = Filter()
        self._series = 0
        """Which of the curves is shown; any whole number."""
        self._over: tuple[object, ...] = ()
        """What the history was last read for."""

    @property
    def selected_device(self) -> str:
        """Name of the device."""
        return self._device.name

    @property
    def memory(self) -> str:
        """Choices hold for all devices."""
        return "device"

    def recall(self, choices: ScreenChoices) -> None:
        """Take over the further columns that the user once chose."""
        super().recall(choices)
        known = [line.column for line in further_columns()]
        self._further = tuple(name for name in choices.columns or () if name in known)
        self._fill_table()

    def action_choose_columns(self) -> None:
        """Let the user choose further columns."""
        offered = [
            OfferedColumn(line.column, line.column, line.meaning) for line in further_columns()
        ]
        self.app.push_screen(ColumnsDialog(offered, self._further), self._take_columns)

    def _take_columns(self, answer: tuple[tuple[str, ...] | None] | None) -> None:
        if answer is not None:
            self._further = answer[0] or ()
            self.choose(columns=answer[0])
            self._fill_table()

    def compose_parts(self) -> ComposeResult:
        """Build the parts."""
        with Horizontal(id="device"):
            yield Static(id="facts")
            yield CurvePlot("", id="series")
        yield LineTable(id="exchanges")
        yield FilterBar(fields_of_exchanges(), example="done tau>3 train>2")

    def on_mount(self) -> None:
        """Set the titles and the columns."""
        super().on_mount()
        self.query_one("#facts").border_title = self._device.name
        self.query_one(LineTable).focus()

    def on_resize(self, _event: Resize) -> None:
        """Give facts, curves and columns the room that there is."""
        self._fill_table()
        self._plot()

    def show(self, view: RunView) -> None:
        """Show the device's facts in a view of the run."""
        super().show(view)
        self._view = view
        self._show_facts()

    def _show_facts(self) -> None:
        device = self._view.device(self._device.name)
        if device is not None:
            facts = device_facts(self._device, device, self._view.elapsed_s, self._history)
            columns = 1 if self.app.size.height >= TALL else 2  # to leave lines for exchanges
            if (facts, columns) != self._facts:
                self._facts = (facts, columns)
                self.query_one("#facts", Static).update(side_by_side(facts, columns))

    def lacks(self, view: RunView) -> Read | None:
        """Return the read of the device's history if there may be more than is shown."""
        outcome = outcome_now(view, self._device.name)
        over = (
            view.cursor.resumes,
            view.cursor.round,
            view.cursor.metric,
            view.until_round,
            outcome,
        )
        if over == self._over:
            return None
        self._over = over
        return partial(
            read_history,
            device=self._device.name,
            until_round=view.until_round,
            until_s=inf if view.until_round is None else view.elapsed_s,
        )

    def receive(self, rows: DeviceHistory) -> None:
        """Show the device's history."""
        self._history = rows
        self._show_facts()
        self._fill_table()
        self._plot()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Show only the exchanges that the filter accepts."""
        self._filter = message.filter
        self._fill_table()

    def _fill_table(self) -> None:
        """List the exchanges, newest first; the cursor stays on its line."""
        every = self._history.exchanges if self._history else ()
        rows = [row for row in every if self._filter(row)]
        table = self.query_one(LineTable)
        left_out = f" of {len(every)}" if len(rows) < len(every) else ""
        table.border_title = f"Exchanges, newest first ({len(rows)}{left_out})"
        columns = columns_of(every, is_widest=self._is_widest, further=self._further)
        headings = [heading for heading, _ in columns]
        if (headings, rows) == self._listed:
            return
        self._listed = (headings, rows)
        table.fill(
            [Heading(heading) for heading in headings],
            [[text(row) for _, text in columns] for row in reversed(rows)],
        )

    @property
    def _is_widest(self) -> bool:
        """Headings are spelled out."""
        return self.app.size.width >= WIDEST

    @property
    def _is_small(self) -> bool:
        """Facts and curves stand in the same place, one after the other."""
        return self.app.size.width < WIDE or self.app.size.height < TALL

    def _plot(self) -> None:
        """Show the chosen curves; on a small screen the facts come before the first ones."""
        if self._history is None:
            return
        every = series_of(self._history, self._view.metrics)
        number = self._series % (len(every) + self._is_small) - self._is_small
        self.set_class(self._is_small and number >= 0, "-plotting")
        self.query_one("#facts").border_subtitle = "s: curves" if self._is_small else ""
        plot = self.query_one(CurvePlot)
        chosen = every[number]
        plot.show(chosen.title, chosen.curves, has_zero=chosen.has_zero)
        plot.border_subtitle = f"s: next curve ({number + 1} of {len(every)})"

    def action_series(self, step: int) -> None:
        """Show the next or the previous curves."""
        self._series += step
        self._plot()

    def action_log(self) -> None:
        """Open the log of the device."""
        self.post_message(self.Opens(DeviceLogScreen(self._device.name)))

    def redraw(self) -> None:
        """Draw the plot again, in another theme or with other glyphs."""
        self.query_one(CurvePlot).redraw()

    def explanations(self) -> Sequence[tuple[str, str]]:
        """Return the facts and the columns."""
        every = self._history.exchanges if self._history else ()
        headings = [heading for heading, _ in columns_of(every, is_widest=self._is_widest)]
        return (
            *FACTS,
            *((heading, COLUMN_WORDS[LONG.get(heading, heading)]) for heading in headings),
            *(
                (line.column, line.meaning)
                for line in further_columns()
                if line.column in self._further
            ),
            (
                "done, untimed",
                "The update counts; its time does not, for the reason in its line.",
            ),
            ("done, host busy", "The same: the emulating machine delayed the device."),
        )


def outcome_now(view: RunView, device: str) -> str:
    """Return the outcome of a device's exchange in the newest round; empty while it is open."""
    exchanges = view.rounds[-1].exchanges if view.rounds else ()
    return next((x.outcome for x in exchanges if x.device == device), "")


def series_of(history: DeviceHistory, metrics: Sequence[MetricRow]) -> list[Series]:
    """Return the plots of a device: times first, then conditions and scores that are known.

    Args:
        history: The device.
        metrics: Evaluations of the whole fleet.
    """
    rows = history.exchanges
    times = Series(
        "Exchange time, s",
        (
            _curve("predicted", "low", ((x.round, known_prediction(x.tau_hat_s)) for x in rows)),
            _curve("measured", "main", ((x.round, x.tau_s) for x in rows)),
        ),
    )
    phases = [
        Series(
            "Phases, s",
            tuple(
                _curve(phase, style, ((x.round, phase_seconds(x, phase)) for x in rows))
                for phase, style in zip(group, ("main", "low", "high"), strict=False)
            ),
        )
        for group in _groups(phases_by_duration(rows))
    ]
    conditions = [
        Series("µ, cores", (_condition(history, "µ", "main", lambda x: x.mu_cores),)),
        Series(
            "Clock / nominal clock",
            (_condition(history, "clock", "main", lambda x: x.clock_ratio),),
        ),
        Series(
            "Temperature, °C",
            (_condition(history, "temperature", "main", lambda x: x.temperature_celsius),),
            has_zero=False,
        ),
        Series(
            "Links, Mbit/s",
            (
                _condition(history, "up", "low", lambda x: _mega(x.uplink_bps)),
                _condition(history, "down", "main", lambda x: _mega(x.downlink_bps)),
            ),
        ),
    ]
    scores = [
        Series(
            "Loss",
            (
                _curve("training", "low", ((x.round, _loss(x)) for x in rows)),
                _curve("model", "main", ((number, loss) for number, _, loss in history.scores)),
            ),
        ),
        Series(
            _quality_title(metrics),
            (
                _curve("fleet", "low", ((x.round, spread_of(x).mean) for x in metrics)),
                _curve("device", "main", ((number, value) for number, value, _ in history.scores)),
            ),
        ),
    ]
    known = [x for x in (*phases, *conditions, *scores) if any(x.points for x in x.curves[-1:])]
    return [times, *known, *_of_client(history)]


def _of_client(history: DeviceHistory) -> list[Series]:
    """Return a plot of each metric of the client: of its trainings, and of its evaluations."""
    names = dict.fromkeys(row.name for row in history.metrics)
    found = []
    for name in names:
        rows = [row for row in history.metrics if row.name == name]
        phases = [phase for phase in ("fit", "evaluate") if any(x.phase == phase for x in rows)]
        curves = [
            _curve(phase, style, ((x.round, x.value) for x in rows if x.phase == phase))
            for phase, style in zip(phases, ("main", "low"), strict=False)
        ]
        is_of_client = rows[-1].better is None
        title = f"{name}, of the client" if is_of_client else name
        found.append(Series(title, tuple(curves), has_zero=False))
    return found


def metrics_text(history: DeviceHistory) -> str:
    """Return the newest value of each metric of the client."""
    newest = {(row.phase, row.name): row.value for row in history.metrics}
    parts = [f"{name} {value:.4g}" for (_, name), value in list(newest.items())[:METRICS_SHOWN]]
    more = len(newest) - METRICS_SHOWN
    return ", ".join(parts) + (f", and {more} more" if more > 0 else "")


def _groups(phases: Sequence[str]) -> list[list[str]]:
    """Return phases in groups of one plot each, in which no two have the same initial."""
    groups: list[list[str]] = []
    left = list(phases)
    while left:
        group: list[str] = []
        for phase in left:
            if len(group) < CURVES_OF_PHASES and phase[0] not in [other[0] for other in group]:
                group.append(phase)
        groups.append(group)
        left = [phase for phase in left if phase not in group]
    return groups


def _curve(label: str, style: str, points: Iterable[tuple[float, float | None]]) -> Curve:
    """Return a curve through the points with a known value."""
    return Curve(label, style, tuple((float(x), y) for x, y in points if y is not None))


def _condition(
    history: DeviceHistory,
    label: str,
    style: str,
    value: Callable[[ContextMeans], float | None],
) -> Curve:
    return _curve(label, style, ((at, value(means)) for at, means in history.contexts))


def _mega(rate_bps: float | None) -> float | None:
    return None if rate_bps is None else rate_bps / 1e6


def side_by_side(facts: Sequence[tuple[str, str]], columns: int) -> Table:
    """Return labels and values in columns, filled downwards first; long values are wrapped."""
    table = Table.grid(padding=(0, 2), expand=True)
    for _ in range(columns):
        table.add_column(style="dim", no_wrap=True)
        table.add_column(ratio=1)
    lines = -(-len(facts) // columns)
    for line in range(lines):
        # As `Text`: brackets in what a device reports are not markup.
        table.add_row(*(Text(cell) for fact in facts[line::lines] for cell in fact))
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


def slowest_text(rows: Sequence[ExchangeRow]) -> str:
    """Return the slowest phase of a device in words."""
    found = slowest_phase(rows)
    if isinstance(found, SampleCount):
        return f"{MISSING} ({found} timed, {found.why_none})"
    times = f"{seconds(found.phase_s)} of {seconds(found.tau_s)} s"
    return f"{found.phase}, {times} ({found.sample})"


def problems_text(history: DeviceHistory) -> str:
    """Return how many warnings and errors there are about a device, and the newest one."""
    newest = history.problem
    if newest is None:
        return "none"
    text = f"{history.problems}, newest {instant(newest.at_s)} {newest.kind}: {newest.text}"
    return text if len(text) <= PROBLEM_LENGTH else f"{text[: PROBLEM_LENGTH - 1]}…"


def _of(measured: str, nominal: str | None) -> str:
    return measured if nominal in (None, MISSING) else f"{measured} of {nominal}"


def _link(truth: TruthRow | None) -> str:
    """Return the link that the device drew, if it drew one."""
    name = None if truth is None else truth.drawn_link
    return "" if name is None else f", drew {name}"


def _quality_title(metrics: Sequence[MetricRow]) -> str:
    """Return the title of the curves of accuracy or error."""
    if metrics and metrics[-1].accuracy_mean is None:
        return "Error (RMSE)"
    has_positions = bool(metrics) and metrics[-1].exact_match_mean is not None
    return "Accuracy of positions" if has_positions else "Accuracy"


def _personal(device: DeviceView) -> str:
    """Return accuracy or error of the personal model, if there is one."""
    found = device.personal
    return "" if found is None else f", personal model {ratio(found)}"


def device_facts(
    row: DeviceRow, device: DeviceView, elapsed_s: float, history: DeviceHistory | None = None
) -> list[tuple[str, str]]:
    """Return labels and values of a device at a time of the run clock."""
    try:
        capabilities = dict(json.loads(row.capabilities))
    except ValueError:
        capabilities = {}
    cores, memory_bytes = capabilities.get("cores", MISSING), capabilities.get("memory_bytes")
    machine = [
        str(capabilities[key]) for key in ("model", "machine", "engine") if capabilities.get(key)
    ]
    source = "its own" if row.has_own_data else "a shard"
    celsius = device.temperature_celsius
    heat = MISSING if celsius is None else f"{celsius:.0f} °C"
    truth = history.truth if history else None
    down, up = (bandwidth(truth.down_bps), bandwidth(truth.up_bps)) if truth else (None, None)
    pace = "" if device.clock_ratio is None else f", clock {percent(device.clock_ratio)}"
    slowed = f", throttled: {device.throttled}" if device.throttled else ""
    return [
        ("slowest phase", slowest_text(history.exchanges) if history else MISSING),
        ("state", state_text(device, elapsed_s)),
        ("profile", f"{device.profile or MISSING}{', physical' * (device.kind == 'physical')}"),
        ("machine", ", ".join([*machine, f"{cores} cores"])),
        ("µ", f"{ratio(device.mu_cores, 2)} of {cores} cores"),
        (
            "links",
            f"{_of(bandwidth(device.downlink_bps), down)} down, "
            f"{_of(bandwidth(device.uplink_bps), up)} up, bit/s{_link(truth)}",
        ),
        ("memory", _of(size(device.rss_bytes), size(memory_bytes))),
        ("temperature", f"{heat}{pace}{slowed}"),
        (
            "selected",
            f"{device.selected} of {device.rounds} rounds, {device.aggregated} aggregated",
        ),
        ("queue Z", ratio(device.queue, 2)),
        (
            "accuracy" if device.rmse is None else "RMSE",
            f"{ratio(device.rmse if device.accuracy is None else device.accuracy)}"
            f"{' of positions' * (device.has_positions and device.accuracy is not None)}, loss "
            f"{ratio(device.loss)}{_personal(device)}",
        ),
        *([("metrics", metrics_text(history))] if history and history.metrics else []),
        ("data", f"{row.n_k} examples, {source}"),
        ("problems", problems_text(history) if history else MISSING),
        *([] if device.energy_j is None else [("energy", energy(device.energy_j))]),
        *([("malicious", device.malicious)] if device.malicious else []),
    ]
