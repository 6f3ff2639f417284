"""Text of the files that a person edits: settings, profiles, experiments, lists of names.

encodings    UTF-8; UTF-16 and UTF-32 with a byte order mark, as editors of Windows write them
line ends    LF, CRLF, CR
"""

import codecs
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOMLDecodeError = tomllib.TOMLDecodeError

BYTE_ORDER_MARKS: Mapping[bytes, str] = {
    codecs.BOM_UTF32_LE: "utf-32",  # begins with that of UTF-16
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by the first bytes of a file."""


MAX_TOML_BYTES: Final = 16 << 20
"""Longest TOML file: an experiment of 10,000 devices with a table each has 2 MB."""

MAX_LEVELS: Final = 64
"""Most arrays and tables inside each other; the parser takes a level of Python's stack for each."""

MAX_KEY_PARTS: Final = 64
"""Most parts of a dotted key: the time of the parser grows with their square."""

_TOKENS: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*'
    r"|[\[\]{}.=,\n]",
    re.DOTALL,
)


class NotText(ValueError):
    """The content of a file is no text; the message is the rule, the value and what to do."""


def encoding_of(head: bytes) -> str:
    """Return the encoding that the first bytes of a file state; UTF-8 if they state none."""
    return next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), "utf-8")


def text_of(content: bytes) -> str:
    """Return the text in the content of a file, with LF.

    Raises:
        NotText: It is no text in a known encoding.
    """
    encoding = encoding_of(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as exc:
        if encoding != "utf-8":
            raise NotText(
                f"must be {encoding.upper().removesuffix('-SIG')} text, as its first bytes state, "
                f"got: {exc.reason}; save it as UTF-8"
            ) from exc
        row = 1 + content.count(b"\n", 0, exc.start)
        raise NotText(
            f"must be UTF-8 text, got byte 0x{content[exc.start]:02x} in row {row}; save it as "
            "UTF-8"
        ) from exc
    if "\0" in text:
        raise NotText(
            "must be UTF-8 text, or UTF-16 with a byte order mark, got zero bytes; save it as UTF-8"
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def toml_of(text: str) -> dict[str, Any]:
    """Return the document in a TOML text, whose bounds are checked before it is parsed.

    Raises:
        NotText: It is too long, too deep, or has too long a key.
        TOMLDecodeError: It is not TOML.
    """
    if len(text) > MAX_TOML_BYTES:
        raise NotText(
            f"must be TOML of at most {MAX_TOML_BYTES >> 20} MiB, got {len(text) >> 20} MiB; put "
            "data into a file of its own"
        )
    level, parts = 0, 1
    for token in _TOKENS.finditer(text):
        match token[0]:
            case "[" | "{":
                level, parts = level + 1, 1
            case "]" | "}":
                level, parts = max(level - 1, 0), 1
            case ".":
                parts += 1
            case "=" | "," | "\n":
                parts = 1
        if level > MAX_LEVELS or parts > MAX_KEY_PARTS:
            row = 1 + text.count("\n", 0, token.start())
            rule = (
                f"at most {MAX_LEVELS} arrays and tables inside each other"
                if level > MAX_LEVELS
                else f"keys of at most {MAX_KEY_PARTS} parts"
            )
            raise NotText(f"must be TOML with {rule}, got more in row {row}; correct it")
    return tomllib.loads(text)


_WORDS: Final[Mapping[str, str]] = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "left out",
    "object": "a table",
    "str": "a text",
}
"""What a decoder calls the kinds of values, and what a person does."""

_NUMBER: Final = re.compile(r"\s*([+-]?\d+([.,]\d+)?)\s*([A-Za-z%/]*)\s*$")
_TRUTHS: Final[Mapping[str, str]] = {
    "true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"
}  # fmt: skip


def kinds_in_words(rule: str) -> str:
    """Return a rule of a decoder with the kinds of values as a person names them."""
    rule = re.sub(rf"\b({'|'.join(_WORDS)})\b", lambda kind: _WORDS[kind[1]], rule)
    return rule.replace(" | ", " or ")


def as_it_must_be(key: str, rule: str, value: object, *, of_texts: bool = True) -> str:
    """Return how a value of a wrong kind is written in TOML, as the end of a message; or nothing.

    Args:
        key: Name of the value, after the last dot.
        rule: In words, as in `must be a list`.
        value: What was given.
        of_texts: A list has texts.
    """
    name = key.rpartition(".")[2]
    if isinstance(value, int | float) and not isinstance(value, bool) and "a text" in rule:
        return f'; write it in quotes: {name} = "{value}"'
    if not isinstance(value, str):
        return ""
    if "a list" in rule:
        words = ", ".join(f'"{word}"' for word in value.split())
        return f"; write each word as one text: {name} = [{words}]" if of_texts else ""
    if "true or false" in rule:
        truth = _TRUTHS.get(value.strip().lower())
        return f"; write it without quotes: {name} = {truth}" if truth else ""
    number = _NUMBER.match(value)
    if "number" not in rule or number is None or (number[2] and "whole" in rule):
        return ""
    is_in_unit = not number[3] or name.endswith(f"_{number[3].lower()}")
    shown = f": {name} = {number[1].replace(',', '.')}" if is_in_unit else ""
    return f"; write the number alone, in the unit of its name{shown}"
