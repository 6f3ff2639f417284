"""Text of the files that a person edits: settings, profiles, experiments, lists of names.

encodings    UTF-8; UTF-16 and UTF-32 with a byte order mark, as editors of Windows write them
line ends    LF, CRLF, CR
"""

import codecs
from collections.abc import Mapping

BYTE_ORDER_MARKS: Mapping[bytes, str] = {
    codecs.BOM_UTF32_LE: "utf-32",  # begins with that of UTF-16
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by the first bytes of a file."""


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
