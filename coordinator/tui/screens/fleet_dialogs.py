"""Dialogs that choose order and columns of the fleet."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from fairbed.coordinator.tui.fleet_columns import ARROWS, PHASE_BAR, FleetColumn, Order, all_columns

JOINED = ("o", "", "order in which the devices joined")
"""Letter, key and words of the order without a column."""
NAME_WIDTH = 13


class SortDialog(ModalScreen[str | None]):
    """Offers the columns to sort by; a letter chooses one, and the same again reverses it.

    Args:
        columns: Columns of the table.
        order: The present order.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Cancel", id="cancel", tooltip="Keep the order"),
    ]

    def __init__(self, columns: Sequence[FleetColumn], order: Order) -> None:
        super().__init__()
        self._order = order
        sortable = [column for column in columns if column is not PHASE_BAR]
        self._choices = [JOINED, *((c.letter, c.key, c.wide_heading) for c in sortable)]

    def compose(self) -> ComposeResult:
        """Build the list."""
        options = [self._option(*choice) for choice in self._choices]
        yield OptionList(*options, id="offered", markup=False)

    def on_mount(self) -> None:
        """Set the title, and begin at the present order."""
        choices = self.query_one(OptionList)
        choices.border_title = "Sort by"
        choices.border_subtitle = "a letter or ⏎; the same again reverses; Esc cancels"
        keys = [key for _, key, _ in self._choices]
        choices.highlighted = keys.index(self._order.key) if self._order.key in keys else 0

    def _option(self, letter: str, key: str, words: str) -> Option:
        arrow = ARROWS[self._order.is_largest_first] if key == self._order.key else " "
        return Option(Content.assemble((f" {letter} ", "bold"), f" {words} {arrow}"))

    def on_key(self, event: Key) -> None:
        """Choose by letter."""
        for letter, key, _ in self._choices:
            if event.character == letter:
                event.stop()
                self.dismiss(key)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Choose the column under the cursor."""
        self.dismiss(self._choices[event.option_index][1])


class ColumnsDialog(ModalScreen[tuple[tuple[str, ...] | None] | None]):
    """Offers the columns with check marks; the answer holds their keys, or None for the usual ones.

    Args:
        shown: Keys of the columns that are chosen now.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Cancel", id="cancel", tooltip="Keep the columns"),
        Binding("space", "toggle_column", "Show or hide", id="toggle", tooltip="This column"),
        Binding("u", "usual", "Usual columns", id="usual", tooltip="Show what a run has"),
    ]

    def __init__(self, shown: Sequence[str]) -> None:
        super().__init__()
        self._shown = set(shown)
        self._columns = [column for column in all_columns() if column.key != "name"]

    def compose(self) -> ComposeResult:
        """Build the list."""
        yield OptionList(*map(self._prompt, self._columns), id="offered", markup=False)

    def on_mount(self) -> None:
        """Set the title."""
        choices = self.query_one(OptionList)
        choices.border_title = "Columns"
        choices.border_subtitle = "space changes, ⏎ accepts, u the usual ones, Esc cancels"

    def _prompt(self, column: FleetColumn) -> Content:
        mark = "x" if column.key in self._shown else " "
        words = Content(column.help).stylize("dim")
        return Content(f" [{mark}] {column.wide_heading:{NAME_WIDTH}} ") + words

    def action_toggle_column(self) -> None:
        """Show or hide the column under the cursor."""
        choices = self.query_one(OptionList)
        if (at := choices.highlighted) is not None:
            self._shown ^= {self._columns[at].key}
            choices.replace_option_prompt_at_index(at, self._prompt(self._columns[at]))

    def action_usual(self) -> None:
        """Show the columns that follow from the run and the width of the screen."""
        self.dismiss((None,))

    def on_option_list_option_selected(self) -> None:
        """Accept the columns."""
        self.dismiss((tuple(c.key for c in self._columns if c.key in self._shown),))
