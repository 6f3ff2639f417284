"""What every screen of a run has: header, tabs, banner and footer, and words that explain it."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer

from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.header import Banner, RunHeader
from fairbed.coordinator.tui.widgets.tabs import ScreenTabs

TALL = 32
"""Screen height from which a screen has room for all its parts, lines."""

Read: TypeAlias = Callable[[RunReader], Any]
"""Reads what one screen shows beyond the view; a thread calls it."""


class RunScreen(Screen[None]):
    """One task: what it shows follows from a view of the run and from rows that it reads itself.

    The application calls `show` with each new view while the screen is seen, then reads what the
    screen `lacks` and passes it to `receive`. Keys for a device act on `selected_device`.
    """

    TAB: ClassVar[str] = ""
    """Name of the tab that is marked while the screen is seen; empty for none."""
    PURPOSE: ClassVar[str] = ""
    """What the screen answers, in one sentence."""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 - as Textual declares it
    VERTICAL_BREAKPOINTS = [(0, "-short"), (TALL, "-tall")]  # noqa: RUF012 - as Textual declares it

    def compose(self) -> ComposeResult:
        """Build the screen."""
        yield RunHeader()
        yield ScreenTabs(self.TAB)
        yield Banner()
        yield from self.compose_parts()
        yield Footer(show_command_palette=False)

    def compose_parts(self) -> ComposeResult:
        """Build the parts between the banner and the footer."""
        yield from ()

    def on_mount(self) -> None:
        """Draw the screen again when the theme changes."""
        self.app.theme_changed_signal.subscribe(self, lambda _theme: self.redraw())

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
