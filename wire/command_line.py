"""Commands of operators as text: `set beta 0.2`, `throttle pi-1 cpu 0.5`.

`fairbed command` and the control room read what a person types with `parse_command`. The control
room has a line in place of the words that a shell makes of it: `split_line`.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from fairbed.wire.errors import WireError
from fairbed.wire.messages import (
    FIELDS_OF_ACTION,
    MAX_TEXT,
    Action,
    OperatorCommand,
    is_device_name,
)

MEANINGS: Mapping[Action, str] = {
    "pause": "no further round begins",
    "resume": "rounds begin again",
    "stop": "the run ends now",
    "stop-after-round": "the run ends when the open round has closed",
    "exclude": "the device is not selected any more",
    "include": "the device may be selected again",
    "kick": "the open exchange of the device is cancelled",
    "set": "another value of V, beta, per_round, deadline_s or min_devices from the next round on",
    "note": "a line of text among the events",
    "throttle": "a share of the speed (cpu) or of the rates (link) of an emulated device is left",
    "profile": "an emulated device starts again with another profile",
    "link": "an emulated device has another link",
    "fault": "an emulated device fails for some seconds",
}
"""What each action does, in one line."""

LOSSES: Mapping[Action, str] = {
    "stop": "the open round is lost",
    "kick": "the work of the device in this round is lost",
    "exclude": "its open exchange is lost",
    "profile": "the device starts again, and its open exchange is lost",
    "fault": "its open exchange may be lost",
}
"""What is lost by the actions that are confirmed."""

PLACEHOLDERS: Mapping[str, str] = {
    "device": "DEVICE",
    "name": "NAME",
    "value": "NUMBER",
    "text": "TEXT",
}
"""How a usage line names each field."""

QUOTES = "\"'"
"""Marks that a shell takes off an argument."""


class CommandTextError(WireError):
    """A text is no command."""


def usage(action: Action) -> str:
    """Return the form of a command, as in `throttle DEVICE NAME NUMBER`."""
    return " ".join([action, *(PLACEHOLDERS[field] for field in FIELDS_OF_ACTION[action])])


def split_line(line: str) -> list[str]:
    """Return the words of a line for `parse_command`.

    A note is one word, as it was typed. A pair of quotes around all of it is left out, so that a
    line means the same here and in a shell; any other quote or apostrophe is a part of the note.
    """
    action, *rest = line.split(maxsplit=1) or [""]
    if not rest or FIELDS_OF_ACTION.get(action) != ("text",):  # type: ignore[call-overload]  # any text
        return line.split()
    text = rest[0].rstrip()
    mark = text[0]
    if mark in QUOTES and text.endswith(mark) and text.count(mark) == 2:
        text = text[1:-1].strip()
    return [action, text] if text else [action]


def parse_command(words: Sequence[str], id: bytes) -> OperatorCommand:
    """Return the command of some words.

    Args:
        words: Action and arguments; a note may have several words.
        id: Number of the command, 16 random bytes.

    Raises:
        CommandTextError: There is no such action, or its arguments are not as they must be.
    """
    action, *rest = words or [""]
    wanted = FIELDS_OF_ACTION.get(action)  # type: ignore[call-overload]  # any text
    if wanted is None:
        raise CommandTextError(
            f"command: must be one of {', '.join(FIELDS_OF_ACTION)}, got {action!r}"
        )
    if wanted == ("text",) and rest:
        rest = [" ".join(rest)]
    if len(rest) != len(wanted):
        raise CommandTextError(
            f"command: must be {usage(action)!r}, got {' '.join(words)!r}"  # type: ignore[arg-type]
        )
    fields: dict[str, str | float] = dict(zip(wanted, rest, strict=True))
    if "value" in fields:
        fields["value"] = _number(str(fields["value"]))
    if action == "set":
        fields["name"] = str(fields["name"]).rpartition(".")[2]
    device = fields.get("device")
    if device is not None and not is_device_name(str(device)):
        raise CommandTextError(
            f"command: a device must be 1 to 32 of a-z, 0-9 and hyphen, got {device!r}"
        )
    if len(str(fields.get("text", ""))) > MAX_TEXT:
        raise CommandTextError(
            f"command: a note must have at most {MAX_TEXT} characters; shorten it"
        )
    try:
        return msgspec.convert(
            {"m": "command", "id": id, "action": action, **fields}, OperatorCommand
        )
    except msgspec.ValidationError as exc:
        raise CommandTextError(f"command: {exc}") from exc


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise CommandTextError(f"command: must have a number, got {text!r}")
    return value
