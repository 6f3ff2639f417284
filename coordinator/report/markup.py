"""HTML that is escaped by construction: a text becomes markup only through `tag`.

Names and texts of devices are in every report, and a device is never trusted.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, TypeAlias

from fairbed.wire.printable import Printable, printable

VOID = frozenset({"meta", "link", "br", "hr", "img"})
"""Elements without an end tag."""

Tone: TypeAlias = Literal["", "bad", "good", "quiet"]
Attribute: TypeAlias = str | int | bool | None


class Markup(str):
    """HTML that needs no escaping: of this module, or a file or figure of Fairbed's own."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """Return a text as markup; a character that is not printable becomes `?`.

    That includes the characters which reverse the direction of a text.
    """
    if isinstance(text, Markup):
        return text
    return _text(printable(text))


def _text(text: Printable) -> Markup:
    return Markup(html.escape(text).replace(" %", "&nbsp;%"))


def join(*children: str) -> Markup:
    """Return children one after the other; those that are not markup are escaped."""
    return Markup("".join(escaped(child) for child in children))


def tag(name: str, /, *children: str, **attributes: Attribute) -> Markup:
    """Return an element; children that are not markup, and all attributes, are escaped.

    Args:
        name: Name of the element.
        children: Its content.
        attributes: `_` at the end of a name is left out, others become `-`; None and False leave
            the attribute out, True leaves its value out.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        parts.append(shown if value is True else f'{shown}="{escaped(str(value))}"')
    start = f"<{' '.join(parts)}>"
    return Markup(start if name in VOID else f"{start}{join(*children)}</{name}>")


@dataclass(frozen=True, slots=True)
class HtmlColumn:
    """A column of a table."""

    heading: str
    kind: Literal["text", "number"] = "number"
    """Numbers are aligned at the right."""
    title: str = ""
    """What the column is, shown by the heading."""


@dataclass(frozen=True, slots=True)
class HtmlCell:
    """A cell of a table."""

    text: str
    value: float | None = None
    """What the column is sorted by; None: by the text."""
    share: float | None = None
    """Length of a bar behind the text, from 0 to 1; None: no bar."""
    tone: Tone = ""


Row: TypeAlias = Sequence[str | HtmlCell]


def html_table(
    columns: Sequence[HtmlColumn], rows: Sequence[Row], *, sorts: bool = False, kind: str = ""
) -> Markup:
    """Return a table that scrolls by itself where it is wider than the page.

    Args:
        columns: Its columns.
        rows: Rows with a cell for each column.
        sorts: A click on a heading sorts the rows; without scripts they stay in their order.
        kind: A class of the style sheet.
    """
    head = [
        tag("th", column.heading, scope="col", class_=column.kind, title=column.title or None)
        for column in columns
    ]
    body = [
        tag("tr", *(_cell(cell, column) for cell, column in zip(row, columns, strict=True)))
        for row in rows
    ]
    table = tag(
        "table",
        tag("thead", tag("tr", *head)),
        tag("tbody", *body),
        class_=" ".join(filter(None, (kind, "sorts" if sorts else ""))) or None,
    )
    return tag("div", table, class_="scrolls")


def _cell(cell: str | HtmlCell, column: HtmlColumn) -> Markup:
    if isinstance(cell, str):
        return tag("td", cell, class_=column.kind)
    has_bar = cell.share is not None and isfinite(cell.share)
    share = min(max(cell.share or 0.0, 0.0), 1.0)
    classes = (column.kind, cell.tone, "bar" if has_bar else "")
    return tag(
        "td",
        cell.text,
        class_=" ".join(filter(None, classes)),
        data_value=None if cell.value is None else f"{cell.value:.6g}",
        style=f"--share:{share:.3f}" if has_bar else None,
    )
