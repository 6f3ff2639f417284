"""Dialog in which an operator types a command to the run, or chooses one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from fairbed.coordinator.policy.live_settings import SECTIONS
from fairbed.wire.command_line import (
    LOSSES,
    MEANINGS,
    CommandTextError,
    parse_command,
    split_line,
    usage,
)
from fairbed.wire.messages import FIELDS_OF_ACTION, Action, OperatorCommand

PARTS = ("cpu", "link")
"""What can be throttled."""

SHOWN = 200
"""Longest list of completions."""

USAGE_WIDTH = 30
"""Columns of a usage line, before its meaning."""

Names = Mapping[Action, Sequence[str]]
"""Names that an action takes: links, faults and profiles."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A longer text for what was typed so far."""

    text: str
    """The whole line; ends with a space if a further argument follows."""
    label: str
    meaning: str


def completions(
    typed: str, devices: Sequence[str], selected: str | None, names: Names
) -> list[Completion]:
    """Return what can be typed next.

    Args:
        typed: The line so far.
        devices: Names of all devices.
        selected: The device under the cursor, offered first; None without one.
        names: Names by action.
    """
    words = typed.split()
    start = "" if not typed or typed.endswith(" ") else words.pop()
    if not words:
        return [
            Completion(_begun(action, selected), usage(action), meaning)
            for action, meaning in MEANINGS.items()
            if action.startswith(start)
        ]
    action = next((action for action in FIELDS_OF_ACTION if action == words[0]), None)
    fields = () if action is None else FIELDS_OF_ACTION[action]
    at = len(words) - 1
    if action is None or at >= len(fields):
        return []
    if fields[at] == "device":
        chosen = () if selected is None else (selected,)
        found: Sequence[str] = [*chosen, *(name for name in devices if name != selected)]
    elif fields[at] == "name":
        found = {"set": tuple(SECTIONS), "throttle": PARTS}.get(action) or names.get(action, ())
    else:
        return []
    end = " " if at + 1 < len(fields) else ""
    before = " ".join(words)
    matching = [name for name in found if name.lower().startswith(start.lower())]
    return [Completion(f"{before} {name}{end}", name, "") for name in matching[:SHOWN]]


def _begun(action: Action, selected: str | None) -> str:
    """Return the beginning of a command, with the device under the cursor."""
    fields = FIELDS_OF_ACTION[action]
    if fields[:1] == ("device",) and selected is not None:
        return f"{action} {selected}{' ' if len(fields) > 1 else ''}"
    return f"{action} " if fields else action


class CommandDialog(ModalScreen[OperatorCommand | None]):
    """Returns the command, or None.

    A command by which work is lost needs Enter twice.

    Args:
        id: Number of the command, 16 random bytes.
        devices: Names of all devices.
        selected: The device under the cursor; None without one.
        names: Names by action.
        typed: Beginning of the command.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel"),
        Binding("tab", "complete", "Complete", priority=True),
        Binding("down", "move(1)", "Next", show=False, priority=True),
        Binding("up", "move(-1)", "Previous", show=False, priority=True),
    ]

    def __init__(
        self,
        id: bytes,
        devices: Sequence[str],
        selected: str | None,
        names: Names,
        typed: str = "",
    ) -> None:
        super().__init__()
        self._number, self._devices, self._selected = id, devices, selected
        self._names, self._typed = names, typed
        self._found: Sequence[Completion] = ()
        self._needs_no_question = False
        """The next Enter sends a command by which work is lost."""

    def compose(self) -> ComposeResult:
        """Build the dialog."""
        with Vertical(id="command"):
            yield Input(placeholder="set beta 0.2", compact=True, select_on_focus=False)
            yield Static(id="answer")
            options = OptionList(compact=True)
            options.can_focus = False
            yield options

    def on_mount(self) -> None:
        """Give the keys to the line, and judge what it begins with."""
        self.query_one("#command").border_title = "Command to the run"
        self.query_one("#command").border_subtitle = "↑↓ choose  ⇥ complete  ⏎ send  Esc cancel"
        self.query_one(Input).focus()
        self._set(self._typed)
        if self._typed and not self._typed.endswith(" "):
            self._try(self._typed)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Offer what can be typed next."""
        self._typed_so_far(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Send the command; complete it first if it is not one yet."""
        chosen = self._chosen
        if chosen is not None and chosen.text.rstrip() != event.value.strip():
            self._set(chosen.text)
            if chosen.text.endswith(" "):
                return
        self._try(self.query_one(Input).value)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take what was clicked."""
        self._set(self._found[event.option_index].text)

    def action_cancel(self) -> None:
        """Close the dialog without a command."""
        self.dismiss(None)

    def action_complete(self) -> None:
        """Take the marked completion, or the only one."""
        options = self._found
        if (chosen := self._chosen) is not None:
            self._set(chosen.text)
        elif options:
            self._set(options[0].text)

    def action_move(self, step: int) -> None:
        """Mark the next or the previous completion."""
        options = self.query_one(OptionList)
        if self._found:
            at = -1 if options.highlighted is None else options.highlighted
            at = 0 if options.highlighted is None and step > 0 else at + step
            options.highlighted = at % len(self._found)

    @property
    def _chosen(self) -> Completion | None:
        at = self.query_one(OptionList).highlighted
        return self._found[at] if at is not None and at < len(self._found) else None

    def _set(self, text: str) -> None:
        line = self.query_one(Input)
        with self.prevent(Input.Changed):
            line.value = text
        line.cursor_position = len(text)
        self._typed_so_far(text)

    def _typed_so_far(self, text: str) -> None:
        """Offer what can follow; a question before is void."""
        self._needs_no_question = False
        self._show_answer("")
        self._complete(text)

    def _try(self, text: str) -> None:
        """Send a command, ask before one by which work is lost, or show why it is none."""
        try:
            command = parse_command(split_line(text), self._number)
        except CommandTextError as exc:
            self._show_answer(str(exc).removeprefix("command: "), is_problem=True)
            return
        if command.device is not None and command.device not in self._devices:
            self._show_answer(f"no device {command.device!r} is in this run", is_problem=True)
            return
        loss = LOSSES.get(command.action)
        if loss is None or self._needs_no_question:
            self.dismiss(command)
            return
        self._needs_no_question = True
        self._show_answer(f"{loss}; Enter sends it, Escape does not", is_problem=True)

    def _complete(self, typed: str) -> None:
        self._found = completions(typed, self._devices, self._selected, self._names)
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(
            Option(Content(f"{x.label:<{USAGE_WIDTH}} {x.meaning}".rstrip())) for x in self._found
        )
        options.highlighted = None

    def _show_answer(self, text: str, *, is_problem: bool = False) -> None:
        answer = self.query_one("#answer", Static)
        answer.set_class(is_problem, "-problem")
        answer.update(Content(f"! {text}" if is_problem else text))
