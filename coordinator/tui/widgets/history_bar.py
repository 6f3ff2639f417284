"""The line below the header while a past round is shown, and the keys that move in the past."""

from rich.text import Text
from textual.binding import Binding
from textual.reactive import reactive
from textual.widget import Widget

from fairbed.coordinator.tui.bars import gauge

HINTS = (
    "[ ] step · { } ten · space play · + - speed · g go to · end now",
    "[ ] step · space play · end now",
)
"""The keys, as many as fit."""
GAUGE = (10, 40)
"""Least and most columns of the gauge."""

HISTORY_BINDINGS = (
    Binding(
        "left_square_bracket",
        "step(-1)",
        "Previous round",
        id="history_back",
        show=False,
        tooltip="Show the run as it was after the round before",
    ),
    Binding(
        "right_square_bracket",
        "step(1)",
        "Next round",
        id="history_forward",
        show=False,
        tooltip="Show the run as it was after the next round",
    ),
    Binding(
        "left_curly_bracket",
        "step(-10)",
        "Ten rounds back",
        id="history_back_ten",
        show=False,
        tooltip="Show the run as it was ten rounds before",
    ),
    Binding(
        "right_curly_bracket",
        "step(10)",
        "Ten rounds forward",
        id="history_forward_ten",
        show=False,
        tooltip="Show the run as it was ten rounds later",
    ),
    Binding(
        "space",
        "play",
        "Play or pause",
        id="history_play",
        show=False,
        tooltip="Let the rounds pass, from the first one on unless a past round is shown",
    ),
    Binding(
        "plus",
        "speed(1)",
        "Play faster",
        id="history_faster",
        show=False,
        tooltip="More rounds per second; the last speed is that of the run itself",
    ),
    Binding(
        "minus",
        "speed(-1)",
        "Play slower",
        id="history_slower",
        show=False,
        tooltip="Fewer rounds per second",
    ),
    Binding(
        "g",
        "jump",
        "Go to a round",
        id="history_jump",
        show=False,
        tooltip="Show the run as it was after a round",
    ),
    Binding(
        "end",
        "show_now",
        "Back to now",
        id="history_now",
        priority=True,
        tooltip="Show the newest state of the run",
    ),
)
"""Keys of the application."""


class HistoryBar(Widget):
    """Which past round is shown, and how the rounds move; hidden while the newest state is."""

    line: reactive[str] = reactive("")
    share: reactive[float] = reactive(0.0)
    """Of the closed rounds, up to the one that is shown."""

    def watch_line(self, line: str) -> None:
        """Hide the bar without a line."""
        self.display = bool(line)

    def render(self) -> Text:
        """Draw the line, a gauge in the room that is left, and the keys if they fit."""
        rest = self.content_size.width - len(self.line) - 2
        hints = next((f"  {text}" for text in HINTS if len(text) + 2 <= rest - GAUGE[0]), "")
        room = min(rest - len(hints), GAUGE[1])
        bar = f"  {gauge(self.share, room)}" if room >= GAUGE[0] else ""
        return Text.assemble(self.line, bar, (hints, "not bold"), no_wrap=True)
