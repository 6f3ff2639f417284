"""Screen of one round: its exchanges, and why each device was selected, or not."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widgets import Static

from fairbed.coordinator.report.client_metrics import values_line
from fairbed.coordinator.report.quantities import ratio, seconds
from fairbed.coordinator.report.selection_reasons import (
    DeviceChoice,
    RoundChoice,
    choice_facts,
    columns_of,
    read_choice,
)
from fairbed.coordinator.report.text_table import GAP, fitting
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.tui.filters import Field, Filter
from fairbed.coordinator.tui.screens.run_screen import Read, RunScreen
from fairbed.coordinator.tui.view import RoundView, RunView, round_views
from fairbed.coordinator.tui.widgets.filter_bar import FilterBar
from fairbed.coordinator.tui.widgets.fleet import FleetTable
from fairbed.coordinator.tui.widgets.line_table import DeviceLines, Heading
from fairbed.coordinator.tui.widgets.timeline import RoundTimeline

MAX_LINES = 2_000
"""Maximum number of devices listed."""

FIELDS: tuple[Field[DeviceChoice], ...] = (
    Field("name", lambda d: d.device, is_searched=True),
    Field("why", lambda d: d.why, is_searched=True),
    Field("selected", lambda d: "yes" if d.is_selected else "no"),
    Field("predicted", lambda d: d.tau_hat_s, is_number=True),
    Field("measured", lambda d: d.tau_s, is_number=True),
    Field("z", lambda d: d.queue_before, is_number=True),
    Field("score", lambda d: d.score, is_number=True),
    Field("margin", lambda d: d.margin, is_number=True),
)
"""What a filter can ask of a device."""


class Order(NamedTuple):
    """One order of the devices."""

    name: str
    key: Callable[[DeviceChoice], Any]
    """A text or a number; devices with None come last."""
    is_falling: bool = False


ORDERS: tuple[Order | None, ...] = (
    None,
    Order("device", lambda d: d.device),
    Order("predicted time", lambda d: d.tau_hat_s, is_falling=True),
    Order("measured time", lambda d: d.tau_s, is_falling=True),
    Order("queue Z before", lambda d: d.queue_before, is_falling=True),
    Order("score", lambda d: d.score),
)
"""Orders in turn; None is that of the selection: cohort, nearest alternatives, no candidates."""


class RoundRows(NamedTuple):
    """What the screen shows of a closed round."""

    choice: RoundChoice
    exchanges: RoundView
    app: str = ""
    """Metrics of the strategy of an app."""


def read_round(round_id: int, reader: RunReader) -> RoundRows | None:
    """Read a round; None if it is not closed."""
    choice = read_choice(reader, round_id)
    if choice is None:
        return None
    is_personal = reader.plan.personalisation.method != "none"
    rows = reader.rounds(round_id - 1, round_id)
    exchanges = reader.exchanges(round_id - 1, round_id)
    has_client = reader.plan.training.client is not None
    app = values_line(reader.client_metrics(round_id - 1, round_id, "")) if has_client else ""
    return RoundRows(choice, round_views(rows, exchanges, is_personal=is_personal)[0], app)


def ordered(devices: Sequence[DeviceChoice], order: Order | None) -> list[DeviceChoice]:
    """Return devices in an order; those without a value last."""
    if order is None:
        return list(devices)
    known = [one for one in devices if order.key(one) is not None]
    unknown = [one for one in devices if order.key(one) is None]
    return [*sorted(known, key=order.key, reverse=order.is_falling), *unknown]


class RoundScreen(RunScreen):
    """One round, opened at a device if one is named."""

    TAB = "rounds"
    PURPOSE = "Which devices took part in one round and which did not, and why."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.back", "Back", id="back", tooltip="To the last screen"),
        Binding("s", "sort", "Sort", id="sort", tooltip="Next order of the devices"),
        Binding(
            "left_square_bracket",
            "other_round(-1)",
            "Earlier",
            id="earlier_round",
            tooltip="The round before this one",
        ),
        Binding(
            "right_square_bracket",
            "other_round(1)",
            "Later",
            id="later_round",
            tooltip="The round after this one",
        ),
    ]

    def __init__(self, round_id: int, device: str | None = None) -> None:
        super().__init__()
        self._round, self._device = round_id, device
        """The device is where the cursor goes when the round is shown."""
        self._view = RunView()
        self._read: tuple[int, int] | None = None
        """Resumes and round that were read."""
        self._rows: RoundRows | None = None
        self._keeps: Filter[DeviceChoice] = Filter()
        self._order = 0
        self._devices: Sequence[DeviceChoice] = ()
        """Listed, in the order of the lines."""

    def compose_parts(self) -> ComposeResult:
        """Build the parts."""
        yield Static(id="choice", classes="panel")
        yield RoundTimeline(id="bars")
        yield DeviceLines(id="choices")
        yield Static(id="why")
        yield FilterBar(FIELDS, example="pi selected:no margin<1")

    def on_mount(self) -> None:
        """Give the table the keys."""
        super().on_mount()
        self.query_one(DeviceLines).focus()

    @property
    def selected_device(self) -> str | None:
        """Name of the device under the cursor."""
        one = self._under_cursor
        return one.device if one is not None else None

    @property
    def _under_cursor(self) -> DeviceChoice | None:
        row = self.query_one(DeviceLines).cursor_row
        return self._devices[row] if 0 <= row < len(self._devices) else None

    def show(self, view: RunView) -> None:
        """Show the round as far as a view has it; `receive` shows the rest."""
        super().show(view)
        self._view = view
        if self._rows is None:
            self._draw()

    def lacks(self, view: RunView) -> Read | None:
        """Return the read of the round once it has closed, and again if the run was resumed."""
        wanted = (view.cursor.resumes, self._round)
        if wanted == self._read or self._round > view.cursor.round:
            return None
        self._read = wanted
        return partial(read_round, self._round)

    def receive(self, rows: RoundRows | None) -> None:
        """Show a round that was read."""
        if rows is None or rows.choice.round == self._round:
            self._rows = rows
            self._draw()

    def action_other_round(self, by: int) -> None:
        """Show another round, at the same device."""
        self._device = self.selected_device or self._device
        self._round, self._rows = self._round + by, None
        self.refresh_bindings()
        self.post_message(self.Lacking())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the rounds that are there."""
        if action == "other_round":
            after = self._round + (1 if parameters == (1,) else -1)
            newest = max(self._view.cursor.round, *(x.round for x in self._view.rounds), 0)
            return 1 <= after <= newest
        return super().check_action(action, parameters)

    def action_sort(self) -> None:
        """Take the next order of the devices."""
        self._device = self.selected_device
        self._order = (self._order + 1) % len(ORDERS)
        self._fill()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Show only the devices that the filter accepts."""
        self._device = self.selected_device or self._device
        self._keeps = message.filter
        self._fill()

    def on_data_table_row_selected(self) -> None:
        """Open the device under the cursor."""
        if (name := self.selected_device) is not None:
            self.post_message(FleetTable.Opened(name))

    def on_data_table_row_highlighted(self) -> None:
        """Explain the device under the cursor."""
        one = self._under_cursor
        self.query_one("#why", Static).update(Text("" if one is None else sentence(one)))

    def on_resize(self, _event: Resize) -> None:
        """Choose the columns again."""
        self._device = self.selected_device or self._device
        self._fill()

    def redraw(self) -> None:
        """Draw the bars again, in another theme or with other glyphs."""
        self.query_one(RoundTimeline).redraw()

    def explanations(self) -> Sequence[tuple[str, str]]:
        """Return the columns and the lines above them."""
        return EXPLANATIONS

    def _draw(self) -> None:
        """Show the facts, the bars and the devices of the round."""
        number, rows = self._round, self._rows
        known = rows.exchanges if rows is not None else self._seen
        if rows is not None:
            lines = [
                Text.assemble((f"{label:<12}", "dim"), text)
                for label, text in (*choice_facts(rows.choice), ("app", rows.app))
                if text
            ]
            facts = Text("\n").join(lines)
        else:
            is_open = number > self._view.cursor.round
            facts = Text("Reasons are stored when the round closes." if is_open else "Reading …")
        panel = self.query_one("#choice", Static)
        panel.border_title = f"Round {number}"
        panel.update(facts)
        self.query_one(RoundTimeline).show(
            RunView(info=self._view.info, rounds=() if known is None else (known,))
        )
        self._fill()

    @property
    def _seen(self) -> RoundView | None:
        """The round in the view, which has the newest ones."""
        return next((x for x in self._view.rounds if x.round == self._round), None)

    def _fill(self) -> None:
        """List the devices that the filter accepts, in the chosen order."""
        table, order = self.query_one(DeviceLines), ORDERS[self._order]
        every = self._rows.choice.devices if self._rows is not None else ()
        kept = [one for one in every if self._keeps(one)]
        self._devices = ordered(kept, order)[:MAX_LINES]
        table.border_title = title_of(len(self._devices), len(every), order)
        if self._rows is None:
            table.fill((), ())
            return
        width = table.scrollable_content_region.width - GAP
        columns = fitting(columns_of(self._rows.choice), self._devices, width)
        table.fill(
            [Heading(column.heading, is_left=column.align == "<") for column in columns],
            [[column.text(one) for column in columns] for one in self._devices],
        )
        names = [one.device for one in self._devices]
        table.move_cursor(row=names.index(self._device) if self._device in names else 0)
        self.on_data_table_row_highlighted()


def title_of(shown: int, total: int, order: Order | None) -> str:
    """Return the title of the table: how many devices it shows, in which order."""
    by = "cohort first, then nearest alternatives" if order is None else f"by {order.name}"
    count = f"{total} devices" if shown == total else f"{shown} of {total} devices"
    return f"Devices · {count} · {by}" if total else "Devices"


def sentence(one: DeviceChoice) -> str:
    """Return why a device was selected, or not, with its numbers."""
    measured = f", measured {seconds(one.tau_s)} s" if one.tau_s is not None else ""
    outcome = f" ({one.outcome})" if one.outcome else ""
    return (
        f"{one.device} was {'' if one.is_selected else 'not '}selected: {one.why} · "
        f"predicted {seconds(one.tau_hat_s)} s{measured}{outcome} · "
        f"Z {ratio(one.queue_before, 2)} → {ratio(one.queue, 2)}"
    )


EXPLANATIONS = (
    ("objective", "What the policy makes as small or as large as it can, for the whole cohort."),
    (
        "best other",
        "The best cohort that differs in one device: which one would leave, which one would come.",
    ),
    ("score", "The number by which the policy ranks one device; the line above names it."),
    (
        "worse",
        "By how much the objective is worse after the best exchange of this device with one on "
        "the other side: with it in the cohort, or without it.",
    ),
    ("lost a tie", "Another cohort is exactly as good; equal devices are drawn at random."),
    ("predicted s", "Exchange time that the estimator expected before the round, seconds."),
    ("measured s", "Exchange time in this round, seconds."),
    ("Z before", "Virtual queue of the device: selections that it is owed, before the round."),
    ("Z after", "The same after the round."),
)
