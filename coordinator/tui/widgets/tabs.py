"""One line with the screens of the control room and their keys."""

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static


class ScreenTabs(Static):
    """Keys and titles of the screens; the current one stands in brackets. A click opens one.

    Args:
        current: Name of the current screen; empty for none.
    """

    def __init__(self, current: str) -> None:
        super().__init__()
        self._current = current

    def show(self, tabs: Sequence[tuple[str, str, str]]) -> None:
        """Show tabs: name, key and title of each."""
        line = Content()
        for name, key, title in tabs:
            text = f"[{key} {title}]" if name == self._current else f" {key} {title} "
            style = "bold" if name == self._current else "dim"
            line += Content(text).stylize(style).stylize(f"@click=app.open_tab('{name}')")
        self.update(line)
