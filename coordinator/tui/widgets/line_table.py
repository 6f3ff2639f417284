"""Table of text lines that are replaced together, as a list of devices after each round."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable


class Heading(NamedTuple):
    """Heading of a column."""

    text: str
    is_left: bool = False
    """Aligned to the left; numbers are to the right."""


class LineTable(DataTable[Text]):
    """A table whose lines are replaced together; cursor and scroll position stay.

    Textual's `DataTable` keeps an object for each row and cell. To remove and add a thousand rows
    each round takes time, and leaves cycles of objects that fill memory until they are collected.
    This class keeps the rows, and makes the cells of a line when the line is drawn.
    """

    def __init__(self, *, id: str, classes: str = "panel") -> None:
        super().__init__(id=id, classes=classes, cursor_type="row", zebra_stripes=True)
        self._headings: tuple[Heading, ...] = ()
        self._lines: Sequence[Sequence[str]] = ()
        self._widths: list[int] = []
        """Widths of the columns, which only grow: narrower numbers would move all columns."""

    def fill(self, headings: Sequence[Heading], lines: Sequence[Sequence[str]]) -> None:
        """Replace all lines; `lines` must not change afterwards.

        Args:
            headings: The columns.
            lines: A text for each column; one line per row.
        """
        line = self.cursor_row
        if tuple(headings) != self._headings:
            self.clear(columns=True)
            self._headings = tuple(headings)
            self._widths = [cell_len(heading.text) for heading in headings]
            for heading in headings:
                self.add_column(self._cell(heading, heading.text), width=1)
        if len(lines) < self.row_count:
            self.clear()
        self._lines = lines
        empty = Text()
        for _ in range(len(lines) - self.row_count):
            self.add_row(*(empty for _ in headings))
        self._widths = [
            max(width, max((cell_len(cells[at]) for cells in lines), default=0))
            for at, width in enumerate(self._widths)
        ]
        for column, width in zip(self.ordered_columns, self._widths, strict=True):
            column.width = width
        if lines:  # a changed cell makes the table draw all its lines, and measure its columns
            self.update_cell_at(Coordinate(0, 0), empty, update_width=True)
        self.move_cursor(row=min(line, max(len(lines) - 1, 0)))

    def get_row_at(self, row_index: int) -> list[Text]:
        """Return the cells of a line."""
        cells = self._lines[row_index]
        return [self._cell(x, text) for x, text in zip(self._headings, cells, strict=True)]

    @staticmethod
    def _cell(heading: Heading, text: str) -> Text:
        return Text(text, justify="left" if heading.is_left else "right")


class DeviceLines(LineTable):
    """One line per device; Enter opens the one under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter", "select_cursor", "Device", id="device", tooltip="Open the one under the cursor"
        ),
    ]
