"""Run a grid of experiments, or take runs that exist, and compare the arms with their baseline."""

import html
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.report.figure_style import SIZE_IN
from fairbed.coordinator.store.connection import DATABASE
from fairbed.testbed.api.errors import in_python
from fairbed.testbed.api.hosts import replaying
from fairbed.testbed.api.progress import Progress, shown
from fairbed.testbed.api.register import registered_parts
from fairbed.testbed.api.run import Run
from fairbed.testbed.api.start import followed
from fairbed.testbed.compare.cell import CellResult, one_line
from fairbed.testbed.compare.comparison import Comparison
from fairbed.testbed.compare.comparison import compare as compare_cells
from fairbed.testbed.compare.finished import as_grid, read_runs
from fairbed.testbed.compare.folder import MANIFEST, check_folder, grid_folder, manifest_of
from fairbed.testbed.compare.grid import Fleet, Grid, GridCell, load_grid, make_grid
from fairbed.testbed.compare.hosts import CellHosts
from fairbed.testbed.compare.needed_files import GridInputs, inputs_of_grid
from fairbed.testbed.compare.plots import figures_of
from fairbed.testbed.compare.pool import run_cells, run_cells_here
from fairbed.testbed.compare.report import write_report
from fairbed.testbed.compare.table import plain, tables
from fairbed.testbed.compare.worker import CELL_ERRORS
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.file import Experiment, ExperimentError, plain_document
from fairbed.testbed.experiment.fleet import check_fleet
from fairbed.testbed.progress import Bar
from fairbed.testbed.replay.setup import check_setup
from fairbed.wire.plugins import PluginError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairbed.testbed.compare.tuning_runs import RunCells

GivenGrid: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | Sequence[Run]"
"""A grid file, the same as a dict, or runs that exist."""

COMPARISONS = Path("comparisons")
"""Folder of grids without another one, one folder per name, so that the next call resumes."""

MAX_COUNT = 1_000
"""Maximum number of seeds or parallel replays."""


@dataclass(frozen=True, slots=True, repr=False)
class ComparedRuns:
    """Runs of several arms, and how each arm differs from the baseline, paired by seed."""

    summary: Comparison
    """The content of `compare.json`."""
    folder: Path | None
    """Where tables are written; None for runs that exist."""
    results: tuple[CellResult, ...]

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures for which there are numbers."""
        return tuple(figures_of(self.summary, self.results))

    def figure(self, what: str) -> "Figure":
        """Return a figure of all arms.

        Args:
            what: One of `figures`.

        Raises:
            UsageError: There is no such figure.
            ImportError: matplotlib is not installed.
        """
        paints = figures_of(self.summary, self.results)
        if what not in paints:
            raise UsageError(f"figure: must be one of {', '.join(paints)}, got {what!r}")
        with in_python():
            from fairbed.testbed.api.figure import drawn

            return drawn(lambda figure: paints[what](figure.add_subplot()), SIZE_IN)

    def pandas(self) -> Any:
        """Return a data frame with one row per run: arm, seed, folder and every metric.

        Raises:
            ImportError: pandas is not installed.
        """
        with in_python():
            import pandas

            columns = [metric.key for metric in self.summary.metrics]
            rows = [
                {"arm": c.arm, "seed": c.seed, "folder": c.folder, "problem": c.problem}
                | {key: c.values.get(key) for key in columns}
                for c in self.summary.cells
            ]
            return pandas.DataFrame(rows)

    def __str__(self) -> str:
        """Return the tables that the command prints."""
        return plain(self.summary)

    def __repr__(self) -> str:
        """Return its name and size."""
        arms, cells = len(self.summary.arms), len(self.summary.cells)
        return f"ComparedRuns({self.summary.name!r}, {arms} arms, {cells} runs)"

    def _repr_html_(self) -> str:
        """Return the first table of the command for a notebook."""
        overview = next(tables(self.summary))
        rows = [
            "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in row)
            for tag, row in (("th", overview.headings), *(("td", row) for row in overview.rows))
        ]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><caption>{html.escape(overview.title)}</caption>{body}</table>"


def compare(
    grid: GivenGrid,
    *,
    set: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    seeds: int | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    progress: Progress = None,
) -> ComparedRuns:
    """Run or resume a grid of experiments, or compare runs that exist.

    Replays use all cores; those with parts that this program registered run in this process, one
    after another.

    Args:
        grid: A grid file, the same as a dict, or runs. Of runs, those with equal experiments but
            the seed are one arm; the arm of the first run is the baseline.
        set: Other values of keys in every arm, such as `{"rounds": 50}`; for a grid.
        out: Folder of a grid, new or of this grid; None is `comparisons/NAME`. Runs that exist
            are compared without a folder.
        seeds: Number of seeds in place of the grid's.
        jobs: Replays in parallel; None is one per core.
        cluster: HOST:PORT of the head of a Ray cluster whose hosts replay the cells, or `local`
            for one on this machine; without it, this machine alone and no Ray.
        progress: What shows progress.

    Raises:
        UsageError: The grid, an arm, or the folder cannot be used.
        RunError: A run or the folder cannot be read or written. A run of the grid that fails does
            not raise: `summary.problems` has it.
        KeyboardInterrupt: It was interrupted; the same call continues it.
    """
    with in_python():
        for name, count in (("seeds", seeds), ("jobs", jobs)):
            if count is not None and not 1 <= count <= MAX_COUNT:
                raise UsageError(f"{name}: must be from 1 to {MAX_COUNT:,}, got {count}")
        if not isinstance(grid, str | os.PathLike | Mapping):
            if set or out or seeds or jobs or cluster:
                raise UsageError(
                    "compare: set, out, seeds, jobs and cluster are for a grid; leave them out"
                )
            return _of_runs(grid)
        planned, path = _planned(grid, set or {}, seeds)
        folder = COMPARISONS / planned.name if out is None else Path(out)
        check_grid(planned, path, folder)
        if planned.tuning is not None:
            planned = _tuned(planned, path, folder, jobs, cluster, progress)
        inputs = inputs_of_grid(planned)
        with (
            grid_folder(folder, planned, inputs.of_arm) as opened,
            shown(progress, len(planned.cells()), "cells", "compare", is_ticking=True) as bar,
            joined_for(cluster, planned, inputs, bar.line) as hosts,
        ):
            if opened.redone:
                bar.line(opened.redone)
            results = _run(planned, inputs, folder, jobs, bar, hosts)
            summary = finish(planned, results, folder)
    return ComparedRuns(summary, folder, tuple(results))


def _tuned(
    grid: Grid,
    path: Path,
    out: Path,
    jobs: int | None,
    cluster: str | None,
    progress: Progress,
) -> Grid:
    """Return a grid with the constants that its search chooses."""
    with (
        tuning_runs(grid, path, out) as search,
        shown(progress, search.n_runs, "cells", "tune", is_ticking=True) as bar,
        joined_for(cluster, search.grid, search.inputs, bar.line) as hosts,
    ):
        for line in search.lines:
            bar.line(line)
        found = search.choose(
            lambda cells: _run(search.grid, search.inputs, search.folder, jobs, bar, hosts, cells)
        )
    assert found is not None, "an interruption raises"
    return found


def _run(
    grid: Grid,
    inputs: GridInputs,
    out: Path,
    jobs: int | None,
    bar: Bar,
    hosts: CellHosts | None,
    only: Sequence[GridCell] | None = None,
) -> list[CellResult]:
    """Return the results of all cells of a grid, or of some."""
    results = list[CellResult]()
    receive = receiver(bar, results, inputs, out)

    def show(event: CellResult | str) -> None:
        if isinstance(event, str):
            bar.line(event)
        else:
            receive(event)

    async def run(send: Callable[[CellResult | str], None]) -> bool:
        # Signals arrive in the calling thread only.
        return await run_cells(
            grid, out, jobs, send, handles_signals=False, hosts=hosts, note=send, only=only
        )

    if any(registered_parts(arm.experiment) for arm in grid.arms):
        run_cells_here(grid, out, receive, only)
    else:
        followed(run, show, lambda portal, future: future.cancel())
    return results


@dataclass(frozen=True, slots=True)
class Search:
    """The tuning runs of a grid, whose folder is locked."""

    grid: Grid
    """The tuning runs as a grid."""
    inputs: GridInputs
    folder: Path
    n_runs: int
    lines: tuple[str, ...]
    """What is run, before it begins."""
    choose: "Callable[[RunCells], Grid | None]"
    """Returns the grid with the chosen constants; None after an interruption."""


@contextmanager
def tuning_runs(grid: Grid, path: Path, out: Path) -> Iterator[Search]:
    """Check and lock the tuning runs of a grid.

    Args:
        grid: A grid with a search.
        path: Its file.
        out: Its folder.

    Raises:
        ExperimentError: A point cannot be run, or the folder has another grid.
    """
    from fairbed.testbed.compare import tuning_runs as tuning
    from fairbed.testbed.compare.tuning.result import plan_text

    check_folder(out)
    folder = tuning.folder_of(out)
    if (out / MANIFEST).exists() and not folder.exists():
        raise ExperimentError(
            f"--out {out}: cells must be unchanged since the grid began, got [tune] after cells "
            "without it; remove it, or choose another folder"
        )
    trials = tuning.tuning_grid(grid)
    check_grid(trials, path, folder)
    inputs = inputs_of_grid(trials)
    plan = plan_text(tuning.rungs_of(grid), len(grid.arms), trials.seeds, len(grid.cells()))
    with grid_folder(folder, trials, inputs.of_arm) as opened:
        yield Search(
            trials,
            inputs,
            folder,
            tuning.runs_of(grid),
            (plan, opened.redone) if opened.redone else (plan,),
            lambda run: tuning.tuned(grid, trials, run),
        )


def _of_runs(runs: Sequence[Run]) -> ComparedRuns:
    if not (isinstance(runs, Sequence) and runs and all(isinstance(run, Run) for run in runs)):
        raise UsageError(
            "compare: must have a grid file, the same as a dict, or a list of runs, got "
            f"{runs!r:.60}"
        )
    found = as_grid(read_runs([run.folder for run in runs]))
    return ComparedRuns(found.compare(), None, found.results)


def _planned(
    grid: "str | os.PathLike[str] | Mapping[str, Any]",
    settings: Mapping[str, Any],
    seeds: int | None,
) -> tuple[Grid, Path]:
    """Return a grid and its file.

    Raises:
        ExperimentError: It breaks a rule.
    """
    if isinstance(grid, Mapping):
        path = Path("grid")
        try:
            planned = make_grid(plain_document(grid), path, settings, seeds)
        except ValueError as exc:
            raise ExperimentError(f"{path}: {exc}") from exc
    else:
        path = Path(grid)
        planned = load_grid(path, settings, seeds)
    return planned, path


@contextmanager
def joined_for(
    address: str | None, grid: Grid, inputs: GridInputs, note: Callable[[str], object]
) -> Iterator[CellHosts | None]:
    """Join the cluster that replays a grid, and check that its hosts can; None without address.

    Raises:
        ClusterError: It cannot be joined, or a host lacks a file that the grid reads.
        UsageError: The grid must run on this machine.
    """
    if address is not None and grid.fleet == "run":
        raise UsageError(
            '--cluster: is for a grid of replays, got fleet = "run"; leave it out, or set fleet = '
            '"replay"'
        )
    if address is not None and any(arm.cohorts_of for arm in grid.arms):
        raise UsageError(
            '--cluster: is for cells that need no other cell, got cohorts = "fixed"; leave it out, '
            'or set cohorts = "own"'
        )
    experiments = (arm.experiment for arm in grid.arms)
    with replaying(address, experiments, lambda line: note(f"warning: {line}")) as hosts:
        if hosts is not None:
            hosts.check_files(inputs.files)
        yield hosts


def receiver(
    bar: Bar, results: list[CellResult], inputs: GridInputs, out: Path
) -> Callable[[CellResult], None]:
    """Return what collects the results of cells and shows them.

    A cell during which one of its files has changed has failed.
    """

    def receive(result: CellResult) -> None:
        result = inputs.checked(result, out)
        results.append(result)
        if problem := result.outcome.problem:
            bar.line(f"{result.arm}, seed {result.seed}: failed: {problem}")
        if result.outcome.was_done_before:
            bar.skip()
        else:
            bar.advance()

    return receive


def finish(grid: Grid, results: Sequence[CellResult], folder: Path) -> Comparison:
    """Return the comparison of a grid, and write its tables."""
    summary = compare_cells(grid, manifest_of(grid).grid, version("fairbed"), results)
    write_report(summary, folder)
    return summary


def check_grid(grid: Grid, path: Path, out: Path) -> None:
    """Check all arms before the first one runs, with the plan of the first cell of each.

    A replay is set up as its cell would be, without a round: data, fleet, model, costs and
    plug-ins. Cells that have begun in `out` were set up then.

    Raises:
        ExperimentError: An arm cannot be run.
    """
    fleets, worlds = set[bytes](), set[bytes]()
    for arm in grid.arms:
        fleet = msgspec.json.encode(arm.experiment.fleet)
        cell = GridCell(arm, grid.seeds[0])
        try:
            _check_arm(arm.experiment, grid.fleet, is_known_fleet=fleet in fleets)
            if grid.fleet == "replay" and not (cell.folder(out) / DATABASE).exists():
                check_setup(cell.experiment, worlds)
        except CELL_ERRORS as exc:
            raise ExperimentError(f"{path}: arm {arm.name!r}: {one_line(exc)}") from exc
        fleets.add(fleet)


def _check_arm(experiment: Experiment, kind: Fleet, *, is_known_fleet: bool) -> None:
    """Check that an arm can be run.

    Raises:
        ExperimentError: The arm needs a feature that this kind of fleet lacks, a plug-in cannot be
            loaded, or its settings do not go together.
        ProfileError: A profile, link or trace is unknown, or breaks a rule.
    """
    selection, replay = experiment.selection, experiment.replay
    if experiment.application:
        raise ExperimentError(
            f"{experiment.application}: must be left out of a grid, which does not know the rounds "
            "and the code of an app; run it for each seed, and compare the runs"
        )
    if kind == "run" and selection.needs_known_times:
        raise ExperimentError(
            "selection.policy: must not need true exchange times in a live run, got "
            f'{selection.policy!r}; use another policy, or fleet = "replay"'
        )
    if kind == "run" and (parts := registered_parts(experiment)):
        raise ExperimentError(
            f"{parts[0]}: must be importable by other processes in a grid of live runs, got a name "
            "that this program registered; put the part into a module and write module:Name"
        )
    if kind == "replay" and replay.task_costs is None and replay.costs_from == "measured":
        raise ExperimentError(
            'replay.costs_from: must be equal in all cells, got "measured", which differs per '
            "cell; name the folder of a run that measured the costs"
        )
    if not experiment.fleet:
        raise ExperimentError("fleet: a grid needs devices, got none; add [[fleet]]")
    try:
        make_decisions(experiment.coordinator(), experiment.devices)
    except (PluginError, ValueError) as exc:
        raise ExperimentError(str(exc)) from exc
    is_linear = kind == "replay" and any(group.model is not None for group in experiment.fleet)
    if not is_known_fleet and not is_linear:
        check_fleet(experiment, os.environ)
