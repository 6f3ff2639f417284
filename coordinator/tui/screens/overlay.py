"""Screen of two runs over each other: accuracy and queues as curves, and what differs."""

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import Static

from fairbed.coordinator.store.reader import LIVE, RunReader
from fairbed.coordinator.tui.run_list import (
    RunSeries,
    differences,
    overlaid,
    quality_name,
    read_series,
)
from fairbed.coordinator.tui.screens.run_screen import Read, RunScreen
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.line_table import Heading, LineTable
from fairbed.coordinator.tui.widgets.plot import CurvePlot

PLOTS = (
    ("over-rounds", "Accuracy over rounds"),
    ("over-time", "Accuracy over the run clock, s"),
    ("worst", "Accuracy of the worst 10 % over rounds"),
    ("queues", "Virtual queues Z, sum, over rounds"),
)
"""Id and title."""

HEADINGS = (Heading("", is_left=True), Heading("A"), Heading("B"), Heading("B - A"))


class OverlayScreen(RunScreen):
    """Two runs, A and B; the difference is B - A.

    Args:
        first: Folder of run A.
        second: Folder of run B.
    """

    PURPOSE = "How two runs differ: in accuracy, in queues, in time, and in their settings."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.back", "Back", id="overlay_back", tooltip="To the runs"),
    ]

    def __init__(self, first: Path, second: Path) -> None:
        super().__init__()
        self._folders = (first, second)
        self._shown: tuple[RunSeries, ...] = ()

    def compose_parts(self) -> ComposeResult:
        """Build names, plots and table."""
        yield Static(id="names")
        with Container(id="overlaid"):
            for name, title in PLOTS:
                yield CurvePlot(
                    title,
                    id=name,
                    is_over_rounds=name != "over-time",
                    has_zero=name == "queues",
                )
        yield LineTable(id="differences")

    def on_mount(self) -> None:
        """Set the columns."""
        super().on_mount()
        table = self.query_one(LineTable)
        table.border_title = "Results and settings that differ"
        table.fill(HEADINGS, ())
        table.focus()

    def lacks(self, view: RunView) -> Read | None:
        """Return the read of both runs; again only while one of them is live."""
        is_over = [run.line.status not in LIVE for run in self._shown]
        return None if self._shown and all(is_over) else self._read

    def _read(self, _reader: RunReader) -> tuple[RunSeries, ...]:
        return tuple(read_series(folder) for folder in self._folders)

    def receive(self, rows: tuple[RunSeries, ...]) -> None:
        """Show both runs."""
        if rows == self._shown:
            return
        self._shown = rows
        names = "   ".join(
            f"{label}: {run.line.name} ({run.line.status})"
            for label, run in zip("AB", rows, strict=True)
        )
        self.query_one("#names", Static).update(Text(names))
        quality, titles = quality_name(*rows), dict(PLOTS)
        for name, curves in overlaid(rows).items():
            title = titles[name].replace("Accuracy", quality[:1].upper() + quality[1:])
            has_zero = name == "queues"
            self.query_one(f"#{name}", CurvePlot).show(title, curves, has_zero=has_zero)
        self.query_one(LineTable).fill(HEADINGS, list(differences(*rows)))

    def redraw(self) -> None:
        """Draw the plots again, in another theme or with other glyphs."""
        for plot in self.query(CurvePlot):
            plot.redraw()
