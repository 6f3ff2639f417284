"""Screen of the events of a run."""

from textual.app import ComposeResult

from fairbed.coordinator.tui.screens.run_screen import RunScreen
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.log import EventLogView


class EventsScreen(RunScreen):
    """The events in full size."""

    TAB = "events"
    PURPOSE = "What happened, and when."
    HAS_PHASES = False

    def compose_parts(self) -> ComposeResult:
        """Build the log."""
        yield EventLogView(id="events")

    def show(self, view: RunView) -> None:
        """Show the events of a view."""
        super().show(view)
        self.query_one(EventLogView).show(view)

    def redraw(self) -> None:
        """Write all events again."""
        self.query_one(EventLogView).restyle()
