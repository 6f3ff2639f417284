"""Dialog on exit from a run that this terminal started."""

from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Label

Answer = Literal["stop", "detach", "cancel"]


class ExitDialog(ModalScreen[Answer]):
    """Offers to stop the run or to leave it running; Ctrl-C means stop."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "dismiss('stop')", "Stop the run"),
        Binding("l", "dismiss('detach')", "Leave it running"),
        Binding("escape,c,q", "dismiss('cancel')", "Cancel"),
        Binding("right", "app.focus_next", "Next answer", show=False),
        Binding("left", "app.focus_previous", "Previous answer", show=False),
    ]

    def compose(self) -> ComposeResult:
        """Build the dialog."""
        with Vertical(id="question"):
            yield Label("This terminal started the run. Stop it?")
            with Horizontal():
                yield Button("[u]S[/u]top it", id="stop", variant="error")
                yield Button("[u]L[/u]eave it running", id="detach", variant="primary")
                yield Button("[u]C[/u]ancel", id="cancel")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Close the dialog with the answer of the button."""
        answers: dict[str | None, Answer] = {"stop": "stop", "detach": "detach"}
        self.dismiss(answers.get(event.button.id, "cancel"))
