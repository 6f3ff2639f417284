"""Screen of the rounds, newest first, with the phases of each exchange."""

from textual.app import ComposeResult

from fairbed.coordinator.tui.screens.run_screen import RunScreen
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.timeline import RoundTimeline


class RoundsScreen(RunScreen):
    """The timeline in full size."""

    TAB = "rounds"
    PURPOSE = "Where the time of each round went, by device and phase."

    def compose_parts(self) -> ComposeResult:
        """Build the timeline."""
        yield RoundTimeline(id="timeline")

    def show(self, view: RunView) -> None:
        """Show the rounds of a view."""
        super().show(view)
        self.query_one(RoundTimeline).show(view)

    def redraw(self) -> None:
        """Draw all lines again."""
        self.query_one(RoundTimeline).redraw()
