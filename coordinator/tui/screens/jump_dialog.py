"""Dialog that asks for the round to show."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label


class JumpDialog(ModalScreen[int | None]):
    """Answers the number of a closed round, or nothing on Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]

    def __init__(self, oldest: int, newest: int) -> None:
        super().__init__()
        self._oldest, self._newest = oldest, newest

    def compose(self) -> ComposeResult:
        """Build the dialog."""
        with Vertical(id="jump"):
            yield Label(f"Show the run as it was after round ({self._oldest} to {self._newest}):")
            yield Input(type="integer", compact=True, max_length=9)
            yield Label(id="problem")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close the dialog with a round that there is."""
        event.stop()
        text = event.value.strip()
        if text.isdecimal() and self._oldest <= int(text) <= self._newest:
            self.dismiss(int(text))
            return
        rule = f"the round must be from {self._oldest} to {self._newest}, got {text or 'nothing'}"
        self.query_one("#problem", Label).update(rule)
