"""What every screen of a run has: header, tabs, banner and footer, and words that explain it."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer

from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.tui.fleet_columns import Order
from fairbed.coordinator.tui.preferences import ScreenChoices
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.filter_bar import FilterBar
from fairbed.coordinator.tui.widgets.fleet import FleetTable
from fairbed.coordinator.tui.widgets.header import Banner, RunHeader
from fairbed.coordinator.tui.widgets.history_bar import HistoryBar
from fairbed.coordinator.tui.widgets.tabs import ScreenTabs

TALL = 32
"""Screen height from which a screen has room for all its parts, lines."""

WIDE, WIDEST = 100, 160
"""Screen widths from which parts stand side by side, and from which columns are spelled out."""

Read: TypeAlias = Callable[[RunReader], Any]
"""Reads what one screen shows beyond the view; a thread calls it."""


class KeyFooter(Footer):
    """The keys of a screen.

    Textual builds the keys anew when the focus or an offered command changes, and its footer keeps
    those that it replaced (Textual issue 6666). This one lets them go.
    """

    async def recompose(self) -> None:
        """Build the keys anew."""
        await super().recompose()
        watchers: dict[str, list[tuple[Widget, object]]] = getattr(self, "__watchers", {})
        for entries in watchers.values():
            entries[:] = [entry for entry in entries if entry[0].is_attached]


class RunScreen(Screen[None]):
    """One task: what it shows follows from a view of the run and from rows that it reads itself.

    The application calls `show` with each new view while the screen is seen, then reads what the
    screen `lacks` and passes it to `receive`. Keys for a device act on `selected_device`.
    """

    TAB: ClassVar[str] = ""
    """Name of the tab that is marked while the screen is seen; empty for none."""
    PURPOSE: ClassVar[str] = ""
    """What the screen answers, in one sentence."""
    HAS_PHASES: ClassVar[bool] = True
    """The screen shows phases of exchanges, which the help explains."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", id="filter", tooltip="Show only some of the lines"),
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide"), (WIDEST, "-widest")]  # noqa: RUF012 - as Textual declares it
    VERTICAL_BREAKPOINTS = [(0, "-short"), (TALL, "-tall")]  # noqa: RUF012 - as Textual declares it

    class Lacking(Message):
        """The screen lacks rows since the user scrolled or filtered: read them now."""

    class Chosen(Message):
        """The user chose something that is to be remembered."""

        def __init__(self, screen: str, choices: ScreenChoices) -> None:
            self.screen, self.choices = screen, choices
            super().__init__()

    class Opens(Message):
        """Another screen is to open, from which Back returns to this one."""

        def __init__(self, screen: "RunScreen") -> None:
            self.screen = screen
            super().__init__()

    def __init__(self) -> None:
        super().__init__()
        self._choices = ScreenChoices()

    def compose(self) -> ComposeResult:
        """Build the screen."""
        yield RunHeader()
        yield HistoryBar()
        yield ScreenTabs(self.TAB)
        yield Banner()
        yield from self.compose_parts()
        yield KeyFooter(show_command_palette=False)

    def compose_parts(self) -> ComposeResult:
        """Build the parts between the banner and the footer."""
        yield from ()

    def on_mount(self) -> None:
        """Draw the screen again when the theme changes."""
        self.app.theme_changed_signal.subscribe(self, lambda _theme: self.redraw())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer a filter where there is a list."""
        if action == "filter":
            return bool(self.query(FilterBar))
        return super().check_action(action, parameters)

    def action_filter(self) -> None:
        """Give the keys to the filter."""
        self.query_one(FilterBar).open()

    def recall(self, choices: ScreenChoices) -> None:
        """Take over what the user once chose."""
        self._choices = choices
        for bar in self.query(FilterBar):
            bar.set_text(choices.filter)
        for table in self.query(FleetTable):
            table.set_order(Order.read(choices.sort), choices.columns)

    @property
    def memory(self) -> str:
        """Name under which choices are remembered; empty: they are not."""
        return self.TAB

    def choose(self, **changes: Any) -> None:
        """Have choices remembered: fields of `ScreenChoices`."""
        self._choices = msgspec.structs.replace(self._choices, **changes)
        if self.memory:
            self.post_message(self.Chosen(self.memory, self._choices))

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Have the filter remembered; a screen with a list also applies it."""
        self.choose(filter=message.filter.text)

    def on_fleet_table_arranged(self, message: FleetTable.Arranged) -> None:
        """Have order and columns remembered."""
        self.choose(sort=str(message.order), columns=message.columns)

    def on_resize(self, event: Resize) -> None:
        """Write the footer without gaps where keys would not fit."""
        self.query_one(Footer).compact = event.size.width < WIDE

    @property
    def has_parts(self) -> bool:
        """Whether its widgets are there: not while it opens, nor once it is being removed."""
        return self.is_mounted and self.display

    @property
    def selected_device(self) -> str | None:
        """Name of the device under the cursor; None if the screen has none."""
        return None

    def show(self, view: RunView) -> None:
        """Show a view; draw only what changed."""
        self.query_one(RunHeader).view = view
        self.query_one(Banner).show(view)

    def lacks(self, view: RunView) -> Read | None:
        """Return the read of rows that the screen shows beyond a view; None if it has them."""
        return None

    def receive(self, rows: Any) -> None:
        """Show what the read returned."""

    def redraw(self) -> None:
        """Draw all parts again, in another theme or with other glyphs."""

    def explanations(self) -> Sequence[tuple[str, str]]:
        """Return the labels on the screen that need an explanation, and their explanations."""
        return ()
