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
    kept = columns if width is None else fitting(columns, rows, width)
    cells = [[column.heading for column in kept]]
    cells += [[column.text(row) for column in kept] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(kept))]
    return [_line(line, widths, kept) for line in cells]


def fitting(
    columns: Sequence[TextColumn[RowT]], rows: Sequence[RowT], width: int
) -> list[TextColumn[RowT]]:
    """Return the columns that fit into `width` with `GAP` between them, in their order."""
    kept = {c: max(len(c.heading), *(len(c.text(row)) for row in rows), 0) for c in columns}
    while sum(kept.values()) + GAP * (len(kept) - 1) > width:
        least = max(kept, key=lambda column: column.priority)
        if least.priority == 0:
            break
        del kept[least]
    return list(kept)


def _line(cells: Sequence[str], widths: Sequence[int], columns: Sequence[TextColumn[RowT]]) -> str:
    parts = [
        f"{cell:{column.align}{width}}"
        for cell, width, column in zip(cells, widths, columns, strict=True)
    ]
    return (" " * GAP).join(parts).rstrip()
