"""Help: what a screen answers, its labels, marks and phases, and its keys, in words."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from fairbed.coordinator.tui.phase_spans import LETTERS, WORDS
from fairbed.coordinator.tui.widgets.header import explanations

LABEL_WIDTH = 14
"""Columns for labels and keys; longer ones are wrapped."""


class KeyHelp(NamedTuple):
    """A key of a screen in words."""

    keys: str
    name: str
    words: str


class HelpScreen(ModalScreen[None]):
    """Explains one screen; scrolls, and closes with Escape.

    Args:
        title: Title of the screen.
        purpose: What the screen answers.
        labels: Labels on the screen and their explanations.
        keys: Keys of the screen.
        has_phases: The screen shows phases.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q", "dismiss", "Close", tooltip="Back to the screen"),
    ]

    def __init__(
        self,
        title: str,
        purpose: str,
        labels: Sequence[tuple[str, str]],
        keys: Sequence[KeyHelp],
        *,
        has_phases: bool,
    ) -> None:
        super().__init__()
        self._heading, self._purpose = title, purpose
        self._labels, self._keys, self._has_phases = labels, keys, has_phases

    def compose(self) -> ComposeResult:
        """Build the text."""
        with VerticalScroll(id="help"):
            yield HelpText(self._parts)

    def on_mount(self) -> None:
        """Set the title."""
        box = self.query_one("#help")
        box.border_title = f"Help · {self._heading}"
        box.border_subtitle = "↑ ↓ scroll, Esc closes"
        box.focus()

    def _parts(self, text: "HelpText") -> Iterable[RenderableType]:
        yield Text(self._purpose, "bold")
        yield from text.section("On this screen", self._labels)
        if self._has_phases:
            yield from text.section("Phases of an exchange, and their letters", text.phases())
        keys = [(key.keys, f"{key.name}: {key.words}") for key in self._keys]
        yield from text.section("Keys", keys)
        yield from text.section("Top lines", explanations())


class HelpText(Static):
    """The text, in the colours of the theme."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"timeline--{phase}" for phase in LETTERS}

    def __init__(self, parts: Callable[["HelpText"], Iterable[RenderableType]]) -> None:
        super().__init__()
        self._parts = parts

    def on_mount(self) -> None:
        """Write the text."""
        self.update(Group(*self._parts(self)))

    def section(
        self, title: str, rows: Sequence[tuple[str | Text, str]]
    ) -> Iterable[RenderableType]:
        """Return a title and two columns; nothing without rows."""
        if not rows:
            return
        yield Text(f"\n{title}", "bold underline")
        table = Table.grid(padding=(0, 2))
        table.add_column(width=LABEL_WIDTH)
        table.add_column(ratio=1)
        for label, words in rows:
            table.add_row(label if isinstance(label, Text) else Text(label), Text(words))
        yield table

    def phases(self) -> list[tuple[str | Text, str]]:
        """Return each phase with its letter and its colour."""
        rows: list[tuple[str | Text, str]] = []
        for phase, letter in LETTERS.items():
            style = self.get_component_rich_style(f"timeline--{phase}", partial=True)
            rows.append((Text.assemble((f"■ {letter} ", style), phase), WORDS[phase]))
        return rows


def key_helps(app: App[Any]) -> list[KeyHelp]:
    """Return the keys that do something on the screen that is seen, one line for each action."""
    found: dict[tuple[str, str], list[str]] = {}
    bindings = {}
    for _node, binding, _is_enabled, _tooltip in app.screen.active_bindings.values():
        if binding.id:
            name = (binding.id, binding.action)
            found.setdefault(name, []).append(app.get_key_display(binding))
            bindings[name] = binding
    return [
        KeyHelp(" ".join(dict.fromkeys(keys)), bindings[name].description, bindings[name].tooltip)
        for name, keys in found.items()
    ]
