"""The exit of a process to its terminal: standard output, standard error, the log.

Nothing that is printed or logged controls the terminal (`wire.printable`): a command prints to the
streams of `print_anything`, all else by `print_line`, also in a program that is not Fairbed's. What
Fairbed itself draws there takes the stream of `for_controls`.

A character that a stream cannot encode never ends a program: it is written as ASCII, by meaning
where there is one (`+-`, `->`, `sigma`), else as JSON escapes it, so that JSON stays valid.
"""

import codecs
import json
import logging
import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TextIO, cast

from fairbed.wire.printable import LINES, Printable, printable

ERRORS: Final = "fairbed.ascii"
"""Name of the error handler of streams."""

UTF_8_MODE: Final = "PYTHONUTF8"
"""Environment variable of the mode in which Python reads names of files as UTF-8 (PEP 540)."""

SHOWN_AROUND: Final = 30
"""Characters that an error shows on either side of one that cannot be encoded."""

SAMPLE: Final = "\u2500\u2588\u25cf\u2191\u03c4"
"""Characters without which the control room cannot be drawn."""

ASCII: Final[Mapping[str, str]] = {
    "\u00b0": " deg ",
    "\u00b1": "+-",
    "\u00b5": "u",
    "\u00b7": ".",
    "\u00d7": "x",
    "\u00f7": "/",
    "\u03bc": "u",
    "\u2013": "-",
    "\u2014": "-",
    "\u2018": "'",
    "\u2019": "'",
    "\u201c": "'",
    "\u201d": "'",
    "\u2022": "*",
    "\u2190": "<-",
    "\u2191": "^",
    "\u2192": "->",
    "\u2193": "v",
    "\u2212": "-",
    "\u2211": "sum",
    "\u221e": "inf",
    "\u2248": "~",
    "\u2260": "!=",
    "\u2264": "<=",
    "\u2265": ">=",
    "\u25a0": "#",
    "\u25b4": "^",
    "\u25b8": ">",
    "\u25be": "v",
    "\u25cf": "*",
}
"""ASCII of single characters."""

_BOXES: Final = range(0x2500, 0x2580)
_BLOCKS: Final = range(0x2580, 0x25A0)


def in_ascii(character: str) -> str:
    """Return ASCII for a character: its meaning, its letter without marks, or its escape."""
    if character in ASCII:
        return ASCII[character]
    code = ord(character)
    if code in _BOXES:
        name = unicodedata.name(character, "")
        return "-" if name.endswith("HORIZONTAL") else "|" if name.endswith("VERTICAL") else "+"
    if code in _BLOCKS:
        return "#"
    name = unicodedata.name(character, "")
    if name.startswith("GREEK ") and " LETTER " in name:
        letter = name.partition(" LETTER ")[2].removeprefix("FINAL ").partition(" ")[0].lower()
        return letter.capitalize() if "CAPITAL" in name else letter
    parts = unicodedata.normalize("NFKD", character).replace("\u2044", "/")  # of a fraction
    plain = parts.encode("ascii", "ignore").decode()
    return plain.strip() or json.dumps(character)[1:-1]


def storable(name: str) -> str:
    """Return the name of a file as text that UTF-8 can encode; bytes that are none are escaped.

    Without UTF-8 in the locale Python keeps bytes of names as lone surrogates (PEP 383).
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def name_problem(exc: BaseException) -> str:
    """Return a line about a name of a file that UTF-8 cannot encode; empty for another error."""
    if not isinstance(exc, UnicodeEncodeError) or "surrogates" not in exc.reason:
        return ""
    around = exc.object[max(0, exc.start - SHOWN_AROUND) : exc.end + SHOWN_AROUND]
    return (
        "names of files and folders must be text in the encoding of the locale "
        f"({sys.getfilesystemencoding()}), got {storable(around)!r}; rename it, or set LC_ALL to "
        "the locale in which its name was written"
    )


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(in_ascii, error.object[error.start : error.end])), error.end


class PrintableStream:
    """A text stream on which nothing controls a terminal; all else is that of the stream below."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text; line ends and tabs stay, other control characters become `?`."""
        _put(self.stream, printable(text, kept=LINES))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _put(stream: TextIO, text: Printable) -> None:
    stream.write(text)


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Write a line to a stream, None: standard error; nothing in it controls a terminal."""
    out = for_controls(sys.stderr if stream is None else stream)
    _put(out, printable(f"{text}\n", kept=LINES))
    out.flush()


def for_controls(stream: TextIO) -> TextIO:
    """Return the stream for what draws on a terminal, which must make its texts `Printable`."""
    return stream.stream if isinstance(stream, PrintableStream) else stream


def print_anything() -> None:
    """Make standard output and standard error of this process accept every character.

    What would control the terminal is not written.
    """
    codecs.register_error(ERRORS, _replace)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # none: a stream of a notebook or of a test
            reconfigure(errors=ERRORS)
        if stream is not None and not isinstance(stream, PrintableStream):
            setattr(sys, name, PrintableStream(stream))


class LineFormatter(logging.Formatter):
    """One line for each message; the traceback of an error follows on lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> Printable:
        """Return the line of a message."""
        record.message = printable(record.message)
        return printable(super().formatMessage(record))


LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_lines(level: str | int, form: str = LOG_FORMAT, *, anew: bool = False) -> None:
    """Let this process log lines to standard error.

    Args:
        level: Least level, by name or number.
        form: Form of a line.
        anew: In place of what it logs to; otherwise a process that logs already is left as it is.
    """
    out = sys.stderr
    if not isinstance(out, PrintableStream):  # the traceback of an error, too
        out = cast(TextIO, PrintableStream(out))
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter(form))
    least = level.upper() if isinstance(level, str) else level
    logging.basicConfig(handlers=[handler], level=least, force=anew)


def read_names_as_utf_8() -> None:
    """Start this program again in Python's UTF-8 mode, if Python reads names of files as ASCII.

    In the C locale a name of other characters has lone surrogates, which no file in UTF-8, no
    message and no database can hold. The process keeps its number; its streams stay ASCII. A
    program that is already in this mode, or cannot be started so, goes on.
    """
    is_ascii = codecs.lookup(sys.getfilesystemencoding()).name == "ascii"
    if not is_ascii or os.environ.get(UTF_8_MODE) == "1":
        return
    streams = os.environ.get("PYTHONIOENCODING") or sys.getfilesystemencoding()
    mode = {UTF_8_MODE: "1", "PYTHONIOENCODING": streams}
    with suppress(OSError):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **mode})


def shows(stream: TextIO, text: str = SAMPLE) -> bool:
    """Return whether a stream can encode a text."""
    try:
        text.encode(stream.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
