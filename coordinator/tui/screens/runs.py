"""Screen of all runs of the folder: open one, or lay two over each other."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import anyio
import anyio.to_thread
from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.message import Message
from textual.widgets import DataTable

from fairbed.coordinator.tui.filters import Filter
from fairbed.coordinator.tui.preferences import ScreenChoices
from fairbed.coordinator.tui.run_list import (
    COLUMNS,
    FIELDS,
    RunColumn,
    RunLine,
    RunList,
    sorted_lines,
)
from fairbed.coordinator.tui.screens.run_screen import RunScreen
from fairbed.coordinator.tui.widgets.filter_bar import FilterBar

LOOK_AGAIN_S = 2.0
"""Pause between two looks at the folder while the screen is seen, seconds."""
NO_MARK, MARK, OPEN = " ", "*", ">"
"""Before a run: whether it is marked for the overlay, and whether it is open here."""
INDENT = 3 * NO_MARK


class RunTable(DataTable[Text]):
    """One line per run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open", id="run_open", tooltip="Show this run"),
    ]


class RunsScreen(RunScreen):
    """All runs, the newest first unless sorted by a column."""

    TAB = "runs"
    PURPOSE = "Which runs there are, how they ended, and how two of them differ."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "Mark", id="run_mark", tooltip="Mark a run for the overlay"),
        Binding("o", "overlay", "Overlay", id="run_overlay", tooltip="Compare the two marked runs"),
        Binding("s", "sort", "Sort", id="run_sort", tooltip="Sort by the next column"),
        Binding(
            "r", "reverse", "Reverse", id="run_reverse", show=False, tooltip="Reverse the order"
        ),
        Binding(
            "b",
            "former",
            "Former run",
            id="run_former",
            tooltip="Show the run before this one",
        ),
    ]

    class Opened(Message):
        """The user chose a run to show."""

        def __init__(self, folder: Path) -> None:
            self.folder = folder
            super().__init__()

    class Compared(Message):
        """The user chose two runs to lay over each other."""

        def __init__(self, first: Path, second: Path) -> None:
            self.folders = (first, second)
            super().__init__()

    def __init__(self) -> None:
        super().__init__()
        self._list: RunList | None = None
        self._open: Path | None = None
        self._former: Path | None = None
        self._is_listing = False
        self._filter: Filter[RunLine] = Filter()
        self._order = "-started"
        self._marked: list[Path] = []
        self._lines: list[RunLine] = []
        self._drawn: tuple[object, ...] = ()

    def compose_parts(self) -> ComposeResult:
        """Build the table."""
        yield RunTable(id="runs", classes="panel", cursor_type="row", zebra_stripes=True)
        yield FilterBar(FIELDS, example="status:done accuracy>0.9")

    def on_mount(self) -> None:
        """Give the table the keys, and look at the folder from time to time."""
        super().on_mount()
        self.query_one(RunTable).focus()
        self.set_interval(LOOK_AGAIN_S, self.look)

    def list_runs(self, root: Path, shown: Path, former: Path | None) -> None:
        """List the runs of a folder.

        Args:
            root: The folder.
            shown: Folder of the run that is shown in this control room.
            former: Folder of the run that was shown before; None for none.
        """
        if self._list is None:
            self._list = RunList(root)
        self._open, self._former = shown, former
        self.look()

    def look(self) -> None:
        """Read runs that are new or changed, while the screen is seen."""
        if self._list is not None and self.is_current and not self._is_listing:
            self._is_listing = True
            self.run_worker(self._read(self._list), name="tui.runs")

    async def _read(self, runs: RunList) -> None:
        try:
            has_more = True
            while has_more and self.is_current:
                has_more = await anyio.to_thread.run_sync(runs.read)
                self._draw()
        finally:
            self._is_listing = False

    @property
    def _under_cursor(self) -> RunLine | None:
        row = self.query_one(RunTable).cursor_row
        return self._lines[row] if 0 <= row < len(self._lines) else None

    def on_data_table_row_selected(self, message: DataTable.RowSelected) -> None:
        """Open the run under the cursor."""
        message.stop()
        line = self._under_cursor
        if line is not None and line.info is None:
            self.notify(line.problem, severity="error", title="Cannot open the run")
        elif line is not None:
            self.post_message(self.Opened(line.folder))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the way back where there is one."""
        if action == "former":
            return self._former is not None
        return super().check_action(action, parameters)

    def action_former(self) -> None:
        """Open the run that was shown before."""
        if self._former is not None:
            self.post_message(self.Opened(self._former))

    def action_mark(self) -> None:
        """Mark the run under the cursor, or take its mark away; two runs can be marked."""
        line = self._under_cursor
        if line is None or line.info is None:
            return
        if line.folder in self._marked:
            self._marked.remove(line.folder)
        else:
            self._marked = [*self._marked, line.folder][-2:]
        self._draw()

    def action_overlay(self) -> None:
        """Compare the marked runs; a single one with the run under the cursor."""
        line, chosen = self._under_cursor, list(self._marked)
        if len(chosen) == 1 and line is not None and line.info and line.folder not in chosen:
            chosen.append(line.folder)
        if len(chosen) == 2:
            self.post_message(self.Compared(*chosen))
        else:
            self.notify("mark two runs with space first", title="Nothing to compare")

    def action_sort(self) -> None:
        """Sort by the next column."""
        keys = [column.key for column in COLUMNS]
        place = (keys.index(self._order.lstrip("-")) + 1) % len(keys)
        self._sort(keys[place])

    def action_reverse(self) -> None:
        """Sort in the opposite direction."""
        order = self._order
        self._sort(order[1:] if order.startswith("-") else f"-{order}")

    def _sort(self, order: str) -> None:
        self._order = order
        self.choose(sort=order)
        self._draw()

    def recall(self, choices: ScreenChoices) -> None:
        """Take over the order that the user once chose."""
        super().recall(choices)
        if choices.sort.lstrip("-") in {column.key for column in COLUMNS}:
            self._order = choices.sort
        self._draw()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Show only the runs that the filter accepts."""
        super().on_filter_bar_changed(message)
        self._filter = message.filter
        self._draw()

    def on_resize(self, _event: Resize) -> None:
        """Choose the columns again."""
        self._draw()

    def redraw(self) -> None:
        """Draw all lines again."""
        self._drawn = ()
        self._draw()

    def explanations(self) -> Sequence[tuple[str, str]]:
        """Return what the marks and columns mean."""
        marks = [
            (MARK, "Marked for the overlay."),
            (OPEN, "The run that is shown in this control room."),
        ]
        return [*marks, *((column.title, column.meaning) for column in COLUMNS)]

    def _draw(self) -> None:
        """Write the table again if a text of it changed; the cursor stays on its run."""
        if self._list is None or not self.query(RunTable):  # not yet composed, or removed
            return
        key, is_reversed = self._order.lstrip("-"), self._order.startswith("-")
        accepted = [line for line in self._list.lines if self._filter(line)]
        lines = sorted_lines(accepted, key, is_reversed=is_reversed)
        table = self.query_one(RunTable)
        columns = fitting(lines, table.size.width - 4)
        arrow = " ▾" if is_reversed else " ▴"
        titles = [f"{column.title}{arrow * (column.key == key)}" for column in columns]
        titles[0] = f"{INDENT}{titles[0]}"
        marks = [
            (MARK if x.folder in self._marked else NO_MARK)
            + (OPEN if x.folder == self._open else NO_MARK)
            + NO_MARK
            for x in lines
        ]
        cells = [[column.text(line) for column in columns] for line in lines]
        for mark, texts in zip(marks, cells, strict=True):
            texts[0] = f"{mark}{texts[0]}"
        total = self._list.total
        shown = f"{len(lines)} of {total}" if len(lines) < total else str(total)
        filter_ = f" · filter /{self._filter.text}" if self._filter.text else ""
        title = f"Runs in {self._list.root.name} · {shown}{filter_}"
        drawn = (titles, cells, title)
        if drawn == self._drawn:
            return
        former = self._under_cursor
        self._drawn, self._lines = drawn, lines
        table.border_title = Text(title).markup
        table.clear(columns=True)
        for i, (column, title) in enumerate(zip(columns, titles, strict=True)):
            width = max(map(cell_len, [title, *(texts[i] for texts in cells)]))
            table.add_column(_cell(title, column), width=width)
        for mark, texts in zip(marks, cells, strict=True):
            style = "bold" * (mark != INDENT)
            table.add_row(*(_cell(texts[i], column, style) for i, column in enumerate(columns)))
        folders = [line.folder for line in lines]
        if former is not None and former.folder in folders:
            table.move_cursor(row=folders.index(former.folder))


def _cell(text: str, column: RunColumn, style: str = "") -> Text:
    return Text(text, style=style, justify="right" if column.is_number else "left")


def fitting(lines: Sequence[RunLine], width: int) -> tuple[RunColumn, ...]:
    """Return the first columns that fit into a width; two spaces around each cell."""
    used = len(INDENT)
    kept: list[RunColumn] = []
    for column in COLUMNS:
        widest = max([len(column.title) + 2, *(len(column.text(line)) for line in lines)])
        used += widest + 2
        if kept and used > width:
            break
        kept.append(column)
    return tuple(kept)
