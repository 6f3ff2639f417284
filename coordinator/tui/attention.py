"""Control sequences that call a person to the terminal. Pure."""

from collections.abc import Mapping

from fairbed.wire.printable import Printable, printable

BELL = "\x07"

LONGEST = 200
"""Longest text of a notification, characters."""


def attention(title: str, text: str, environ: Mapping[str, str]) -> str:
    """Return the bell, and a desktop notification where the terminal has one.

    OSC 9 is of iTerm2, kitty, WezTerm, Windows Terminal and others; OSC 777 is of VTE (GNOME
    Terminal), foot and rxvt. Others ignore both, but the console of Linux prints parts of them.

    Args:
        title: A few words.
        text: One line.
        environ: Environment variables of the terminal.
    """
    terminal = environ.get("TERM", "")
    if terminal in ("", "dumb", "linux"):
        return BELL
    has_osc_777 = "VTE_VERSION" in environ or terminal.startswith(("foot", "rxvt"))
    return BELL + _sequence(_plain(title), _plain(text), has_osc_777=has_osc_777)


def _sequence(title: Printable, text: Printable, *, has_osc_777: bool) -> str:
    if has_osc_777:
        return f"\x1b]777;notify;{title};{text}\x1b\\"
    return f"\x1b]9;{title}: {text}\x1b\\"


def _plain(text: str) -> Printable:
    """Return a text without control characters and separators."""
    return printable(text.replace(";", " ")[:LONGEST])
