"""Runs that exist: their status, results, tables and figures."""

import html
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairbed.coordinator.report.export import Exported, Format, export_run
from fairbed.coordinator.report.figures import RunFigures, read_figures
from fairbed.coordinator.report.html import n_parts
from fairbed.coordinator.report.quality import measure
from fairbed.coordinator.report.quantities import ratio
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_schema import RunSummary
from fairbed.coordinator.report.tables import TABLES, Table, read_table
from fairbed.coordinator.store import RunInfo, RunReader, find_runs, resolve_run
from fairbed.coordinator.store.connection import CONFIG
from fairbed.testbed.api import RUNS
from fairbed.testbed.api.errors import in_python
from fairbed.testbed.api.progress import Progress, shown
from fairbed.testbed.experiment.file import Experiment, load_experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """A live or finished run; each property reads its present state from its folder."""

    id: str
    folder: Path

    @classmethod
    def open(
        cls, ref: str | os.PathLike[str] = "latest", runs: str | os.PathLike[str] = RUNS
    ) -> "Run":
        """Return a run.

        Args:
            ref: A run id, its first characters, the folder of a run, or `latest`.
            runs: Folder of the runs.

        Raises:
            UsageError: No run matches, or more than one.
            RunError: The run cannot be read.
        """
        with in_python():
            folder = resolve_run(Path(runs), os.fspath(ref))
            with RunReader(folder) as reader:
                return cls(reader.run().run_id, folder)

    @property
    def status(self) -> str:
        """created, running, paused, done, stopped, failed or interrupted."""
        return self._info().status

    @property
    def experiment(self) -> Experiment:
        """The experiment with all defaults."""
        with in_python():
            return load_experiment(self.folder / CONFIG)

    @property
    def summary(self) -> RunSummary:
        """The summary, as printed by `fairbed show --json`."""
        with in_python(), RunReader(self.folder) as reader:
            return summarise_run(reader)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables; docs/store.md describes them."""
        return TABLES

    def table(
        self, name: str, *, since_round: int = 0, columns: Sequence[str] | None = None
    ) -> Table:
        """Return a table as it is now.

        Args:
            name: One of `tables`.
            since_round: Only rows of rounds after this one; for tables with a round in each row.
            columns: Only these columns, in this order; None: all.

        Raises:
            UsageError: There is no such table or column, or its rows have no round.
            RunError: The run cannot be read.
        """
        with in_python(), RunReader(self.folder) as reader:
            return read_table(reader, name, since_round=since_round, columns=columns)

    def plot(self, what: str, *others: "Run") -> "Figure":
        """Return a figure of this run, or of several runs.

        Args:
            what: Its name: accuracy, accuracy-time, selection, ...; docs/analysis.md lists them.
            others: Further runs, in the same figure where it compares them.

        Raises:
            UsageError: There is no such figure, or the runs lack its data.
            RunError: A run cannot be read.
            ImportError: matplotlib is not installed.
        """
        with in_python():
            from fairbed.testbed.api.figure import figure_of

            found = list[RunFigures]()
            for run in (self, *others):
                with RunReader(run.folder) as reader:
                    found.append(read_figures(reader))
            return figure_of(what, found)

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *others: "Run",
        progress: Progress = None,
    ) -> Path:
        """Write the page of this run, or of several runs side by side; return its path.

        Args:
            path: The file, replaced if it exists; None is the id of the run with `.html`.
            others: Further runs.
            progress: What shows progress.

        Raises:
            RunError: A run cannot be read, or the file cannot be written.
        """
        file = Path(f"{self.id}.html" if path is None else path)
        folders = [run.folder for run in (self, *others)]
        with in_python(), shown(progress, n_parts(len(folders)), "parts", "report") as bar:
            from fairbed.testbed.compare.side_by_side import report_runs  # loads scipy

            report_runs(folders, file, advance=bar.advance)
        return file

    def export(
        self,
        format: Format,
        folder: str | os.PathLike[str] | None = None,
        *,
        tables: Sequence[str] = TABLES,
        progress: Progress = None,
    ) -> Path:
        """Write tables to files, with a data dictionary; return their folder.

        Args:
            format: csv, parquet or sqlite.
            folder: A new or empty folder; None is the id of the run with the format.
            tables: Names of tables.
            progress: What shows progress.

        Raises:
            UsageError: There is no such table or format, or the folder has files.
            RunError: The run cannot be read, or a file cannot be written.
            ImportError: pyarrow is not installed, which writes Parquet.
        """
        out = None if folder is None else Path(folder)
        with in_python():
            return export_tables(self, format, out, tables, progress).folder

    def _info(self) -> RunInfo:
        with in_python(), RunReader(self.folder) as reader:
            return reader.run()

    def __repr__(self) -> str:
        """Return the call that opens the run; it reads nothing."""
        return f"Run.open({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """Return one line for a notebook."""
        info = self._info()
        planned = "" if info.last_round is None else f" of {info.last_round}"
        parts = [
            info.status,
            f"{info.rounds_completed}{planned} rounds",
            f"{info.devices} devices",
            *([] if info.quality is None else [f"{measure(info.row.task)} {ratio(info.quality)}"]),
        ]
        text, name, folder = map(html.escape, (", ".join(parts), self.id, str(self.folder)))
        return f"<b>{name}</b>: {text}<br><code>{folder}</code>"


def export_tables(
    run: Run, form: Format, folder: Path | None, tables: Sequence[str], progress: Progress = None
) -> Exported:
    """Do what `Run.export` does, and return what was written; errors are those of `export_run`."""
    with (
        RunReader(run.folder) as reader,
        shown(progress, None, "rows", "export", is_ticking=True) as bar,
    ):

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done)

        return export_run(reader, folder or Path(f"{run.id}-{form}"), form, tables, show)


def runs(folder: str | os.PathLike[str] = RUNS) -> list[Run]:
    """Return the runs below a folder, newest first; warn of those that cannot be read."""
    with in_python():
        found = find_runs(Path(folder))
    for run in found.unreadable:
        warnings.warn(run.problem, stacklevel=2)
    return [Run(info.run_id, info.folder) for info in found.readable]
