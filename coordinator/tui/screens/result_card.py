"""The card that is shown when a run has ended."""

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Static

from fairbed.coordinator.report.result import RunResult, next_commands, result_lines


class ResultCard(ModalScreen[None]):
    """How the run ended, and the commands for what comes next; a key copies one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,i", "dismiss", "Close", tooltip="Back to the screen"),
        Binding("q", "app.leave", "Quit", tooltip="Leave the control room"),
    ]

    def __init__(self, result: RunResult) -> None:
        super().__init__()
        self._result = result
        self._next = next_commands(result)

    def compose(self) -> ComposeResult:
        """Build the card."""
        with VerticalScroll(id="result"):
            yield Static(_table([(f"{k:<10}", text) for k, text in result_lines(self._result)]))
            yield Static("\nNext, in a shell; a key copies the command:")
            next_ = [(f"{key}  {word}", command) for key, word, command in self._next]
            yield Static(_table(next_))

    def on_mount(self) -> None:
        """Set the title."""
        box = self.query_one("#result")
        box.border_title = f"{self._result.info.row.name} · {self._result.info.status}"
        box.border_subtitle = "Esc closes · i shows it again"
        box.focus()

    def on_key(self, event: Key) -> None:
        """Copy the command of a key."""
        commands = {key: command for key, _, command in self._next}
        if (command := commands.get(event.key)) is not None:
            event.stop()
            self.app.copy_to_clipboard(command)
            self.notify(command, title="Copied", markup=False)


def _table(rows: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for label, text in rows:
        table.add_row(Text(label, "bold"), Text(text))
    return table
