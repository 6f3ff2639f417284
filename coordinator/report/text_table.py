"""Tables of plain text that leave out columns where a terminal is narrow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

RowT = TypeVar("RowT")

GAP = 2
"""Spaces between two columns."""


@dataclass(frozen=True, slots=True)
class TextColumn(Generic[RowT]):
    """A column of a table."""

    heading: str
    text: Callable[[RowT], str]
    align: Literal["<", ">"] = ">"
    priority: int = 0
    """Columns that do not fit are left out, the highest number first; never those with 0."""


def table_lines(
    columns: Sequence[TextColumn[RowT]], rows: Sequence[RowT], width: int | None
) -> list[str]:
    """Return a line of headings and one line per row.

    Args:
        columns: In their order.
        rows: The rows.
        width: Columns of the terminal; None for lines of any length.
    """
    kept = list(columns)
    while True:
        cells = [[column.heading for column in kept]]
        cells += [[column.text(row) for column in kept] for row in rows]
        widths = [max(len(line[i]) for line in cells) for i in range(len(kept))]
        least = max(kept, key=lambda column: column.priority)
        fits = width is None or sum(widths) + GAP * (len(kept) - 1) <= width
        if fits or least.priority == 0:
            return [_line(line, widths, kept) for line in cells]
        kept.remove(least)


def _line(cells: Sequence[str], widths: Sequence[int], columns: Sequence[TextColumn[RowT]]) -> str:
    parts = [
        f"{cell:{column.align}{width}}"
        for cell, width, column in zip(cells, widths, columns, strict=True)
    ]
    return (" " * GAP).join(parts).rstrip()
