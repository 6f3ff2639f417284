"""The line that a person types a filter into, above the footer."""

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from fairbed.coordinator.tui.filters import Field, Filter, FilterError, parse_filter


class FilterBar(Horizontal):
    """Filter of the list of a screen: hidden without a filter, opened by `/`, closed by Escape.

    A screen yields it from `compose_parts`, and filters its list on `FilterBar.Changed`, which
    comes with each character that completes an expression. Enter keeps the filter and gives the
    keys back to the list; Escape clears it, there too. `RunScreen` has the key `/` and remembers
    the filter.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape", "clear", "Clear the filter", id="filter_clear", tooltip="Show all lines again"
        ),
        Binding(
            "down", "keep", "Keep the filter", id="filter_keep", tooltip="Back to the lines (or ⏎)"
        ),
    ]

    class Changed(Message):
        """The filter is another one."""

        def __init__(self, bar: "FilterBar", filter: Filter[Any]) -> None:
            self.bar, self.filter = bar, filter
            super().__init__()

        @property
        def control(self) -> "FilterBar":
            """The bar, for `textual.on` with a selector."""
            return self.bar

    def __init__(self, fields: Sequence[Field[Any]], *, example: str) -> None:
        """Prepare the line.

        Args:
            fields: What a filter can ask of a row.
            example: An expression, shown while nothing is typed.
        """
        super().__init__()
        self._fields, self._example = fields, example
        self._former: Widget | None = None
        """Had the keys before the bar."""
        self.filter: Filter[Any] = Filter()
        """The newest complete expression."""

    def compose(self) -> ComposeResult:
        """Build the line."""
        yield Static("/", id="slash")
        yield Input(placeholder=f"for example: {self._example}", compact=True, id="expression")
        yield Static(id="problem")

    def on_mount(self) -> None:
        """Hide the line."""
        self.display = False

    def open(self) -> None:
        """Show the line and give it the keys."""
        self._former = self.screen.focused
        self.display = True
        self.query_one(Input).focus()

    def set_text(self, text: str) -> None:
        """Filter by an expression; a damaged one counts as none."""
        try:
            parse_filter(text, self._fields)
        except FilterError:
            text = ""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = text
        self._apply(text)
        self.display = bool(self.filter.text)

    def action_clear(self) -> None:
        """Show all lines again, and hide this one."""
        self._give_back()
        self.set_text("")

    def action_keep(self) -> None:
        """Give the keys back to the list; what is no expression is taken back."""
        self._give_back()
        self.set_text(self.filter.text)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Do the same as `action_keep`."""
        event.stop()
        self.action_keep()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter by what is typed so far, if that is an expression."""
        event.stop()
        self._apply(event.value)

    def _apply(self, text: str) -> None:
        problem = ""
        try:
            filter_ = parse_filter(text, self._fields)
        except FilterError as exc:
            problem = str(exc)
        else:
            if filter_.text != self.filter.text:
                self.filter = filter_
                self.post_message(self.Changed(self, filter_))
        self.query_one("#problem", Static).update(Content(problem))

    def _give_back(self) -> None:
        if self._former is not None and self.query_one(Input).has_focus:
            self.screen.set_focus(self._former)
