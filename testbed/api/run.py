"""Runs that exist: their status, results, tables and figures."""

import html
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbed.coordinator.report.quantities import ratio
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_schema import RunSummary
from fairbed.coordinator.report.tables import TABLES, Table, read_table
from fairbed.coordinator.store import RunInfo, RunReader, find_runs, resolve_run
from fairbed.coordinator.store.connection import CONFIG
from fairbed.testbed.api import RUNS
from fairbed.testbed.api.errors import in_python
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.file import Experiment, load_experiment


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
            try:
                return read_table(reader, name, since_round=since_round, columns=columns)
            except ValueError as exc:
                raise UsageError(str(exc)) from exc

    def _info(self) -> RunInfo:
        with in_python(), RunReader(self.folder) as reader:
            return reader.run()

    def __repr__(self) -> str:
        """Return the call that opens the run; it reads nothing."""
        return f"Run.open({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """Return one line for a notebook."""
        info = self._info()
        planned = "" if info.plan.rounds is None else f" of {info.plan.rounds}"
        parts = [
            info.status,
            f"{info.rounds_completed}{planned} rounds",
            f"{info.devices} devices",
            *([] if info.accuracy_mean is None else [f"accuracy {ratio(info.accuracy_mean)}"]),
        ]
        text, name, folder = map(html.escape, (", ".join(parts), self.id, str(self.folder)))
        return f"<b>{name}</b>: {text}<br><code>{folder}</code>"


def runs(folder: str | os.PathLike[str] = RUNS) -> list[Run]:
    """Return the runs below a folder, newest first; warn of those that cannot be read."""
    with in_python():
        found = find_runs(Path(folder))
    for run in found.unreadable:
        warnings.warn(run.problem, stacklevel=2)
    return [Run(info.run_id, info.folder) for info in found.readable]
