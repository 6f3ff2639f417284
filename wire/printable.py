"""Text that others wrote, made safe for every exit: terminals, screens, pages, tables, logs.

Names and texts of devices, of files and of foreign runs are in every output. `Printable` is the
type of a text that no longer controls what shows it. Call sites give an exit any text: the exit
itself makes it `Printable`, because the function in it that writes takes nothing else, which mypy
checks. docs/security.md lists the exits, tests/test_printable.py refuses other ways out. Pure.
"""

import re
import unicodedata
from typing import Any, Final

REPLACEMENT: Final = "?"
"""What a reader sees for a character that is not printable."""

LINES: Final = "\n\t"
"""Characters that a text of several lines keeps."""

FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that spreadsheet programs evaluate.

Source: OWASP, CSV injection (https://owasp.org/www-community/attacks/CSV_Injection).
"""

is_printable = str.isprintable
"""Whether a text needs no change on one line; a call of C, for texts of every message."""

_NUMBER: Final = re.compile(r"[+-]?(\d[\d_,]*\.?\d*|\.\d+)([eE][+-]?\d+)?%?|[+-]?(inf|nan)")

_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")


class Printable(str):
    """A text without characters that control a terminal or the direction of a text.

    Only this module makes one.
    """

    __slots__ = ()


def printable(text: str, kept: str = "") -> Printable:
    """Return a text whose characters are all visible, or spaces.

    Control characters (ESC, BEL, CR, C1), those that reverse or hide text, and separators of lines
    become `?`, line ends and tabs a space; a lone surrogate is escaped.

    Args:
        text: Any text.
        kept: Control characters that stay, as in `LINES`.
    """
    if type(text) is Printable:
        return text
    if is_printable(text.translate(dict.fromkeys(map(ord, kept))) if kept else text):
        return Printable(text)
    return Printable("".join(c if c.isprintable() or c in kept else _shown(c) for c in text))


def _shown(character: str) -> str:
    if character in LINES:
        return " "
    match unicodedata.category(character):
        case "Zs":  # spaces of other widths
            return character
        case "Cs":  # a byte of a name of a file that is no text
            return f"\\u{ord(character):04x}"
    return REPLACEMENT


def printable_values(value: Any) -> Any:
    """Return a value of JSON or TOML whose texts and keys, at any depth, are printable lines."""
    if isinstance(value, dict):
        return {str(printable(key)): printable_values(one) for key, one in value.items()}
    if isinstance(value, list):
        return [printable_values(one) for one in value]
    return str(printable(value)) if isinstance(value, str) else value


def output_line(text: str, length: int) -> Printable:
    """Return a line that a program has written for a terminal, without its colours."""
    return one_line(_COLOUR.sub("", text).strip("\r"), length)


def one_line(text: str, length: int) -> Printable:
    """Return a text on one line of at most `length` characters; `…` marks a cut."""
    return printable(text if len(text) <= length else f"{text[: length - 1]}…")


def csv_cell(text: str) -> Printable:
    """Return a text of others as the content of a CSV cell, which no spreadsheet evaluates.

    A cell that begins like a formula gets an apostrophe, unless it is a number. The line ends and
    quotes inside are left to the writer of the file.
    """
    shown = printable(text)
    if text.startswith(FORMULA_STARTS) and _NUMBER.fullmatch(text) is None:
        return Printable(f"'{shown}")
    return shown


_LATEX: Final = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    '"': r"\textquotedbl{}",
    "|": r"\textbar{}",
    "\u2013": "--",
    "\u2020": r"$^{\dagger}$",
}


def latex(text: str) -> Printable:
    """Return a text with the special characters of LaTeX escaped."""
    return Printable("".join(_LATEX.get(character, character) for character in printable(text)))
