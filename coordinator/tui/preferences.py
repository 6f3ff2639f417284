"""What the control room remembers of its user, in `$XDG_STATE_HOME/fairbed/control-room.json`.

Nothing in it matters for a run: a damaged file counts as an empty one, and a folder that is not
writable is no error.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct


class ScreenChoices(Struct, frozen=True, kw_only=True):
    """Choices of the user for one screen."""

    filter: str = ""
    """Expression of the filter."""
    sort: str = ""
    """Key of the column to sort by, after `-` if the largest come first."""
    columns: tuple[str, ...] | None = None
    """Keys of the columns; None for the usual ones."""


class Preferences(Struct, frozen=True, kw_only=True):
    """Choices of the user; None is the default of the terminal."""

    theme: str | None = None
    """Name of a theme."""
    letters: bool | None = None
    """Draw phases and curves with letters."""
    screen: str | None = None
    """Name of the screen that was open last."""
    calls: bool = True
    """Call to the terminal when a run ends: the bell, and a desktop notification."""
    screens: Mapping[str, ScreenChoices] = {}
    """Choices by name of the screen."""


def preferences_file(environ: Mapping[str, str]) -> Path:
    """Return the file of the user, as the XDG base directories place it."""
    state = environ.get("XDG_STATE_HOME")
    folder = Path(state) if state else Path.home() / ".local/state"
    return folder / "fairbed/control-room.json"


def load_preferences(path: Path) -> Preferences:
    """Return the remembered choices; the defaults without a readable file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Preferences)
    except (OSError, msgspec.DecodeError):
        return Preferences()


def save_preferences(path: Path, preferences: Preferences) -> None:
    """Replace the file, if that is possible."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_bytes(msgspec.json.encode(preferences))
        fresh.replace(path)
