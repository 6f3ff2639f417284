"""Screen of all rounds, newest first, with the phases of each exchange."""

from textual.app import ComposeResult

from fairbed.coordinator.tui.screens.round import RoundScreen
from fairbed.coordinator.tui.screens.run_screen import Read, RunScreen
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.round_list import RoundList, RoundWindow, read_window


class RoundsScreen(RunScreen):
    """The timeline in full size; Enter opens the round under the cursor."""

    TAB = "rounds"
    PURPOSE = "Where the time of each round went, by device and phase."

    def compose_parts(self) -> ComposeResult:
        """Build the timeline."""
        yield RoundList(id="timeline")

    def show(self, view: RunView) -> None:
        """Show the newest rounds of a view; `receive` shows older ones."""
        super().show(view)
        self.query_one(RoundList).show(view)

    def lacks(self, view: RunView) -> Read | None:
        """Return the read of the rounds around those on the screen."""
        wanted = self.query_one(RoundList).wanted()
        return None if wanted is None else lambda reader: read_window(reader, *wanted)

    def receive(self, rows: RoundWindow) -> None:
        """Show rounds that were read."""
        self.query_one(RoundList).receive(rows)

    def on_round_list_uncovered(self) -> None:
        """Have the rounds read that came onto the screen."""
        self.post_message(self.Lacking())

    def on_round_list_opened(self, message: RoundList.Opened) -> None:
        """Open a round."""
        self.post_message(self.Opens(RoundScreen(message.round)))

    def redraw(self) -> None:
        """Draw all lines again."""
        self.query_one(RoundList).redraw()
