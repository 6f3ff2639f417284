"""The cells of studies: which are finished, how long the others take, and their runs.

Cells are replays, run by the workers of `fairbed compare`. A finished cell is a small file, and its
run is removed; an interrupted one is resumed by the same command.
"""

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec

from fairbed.coordinator.report.findings import counted
from fairbed.coordinator.store import StoreError
from fairbed.coordinator.store.connection import RunLock
from fairbed.coordinator.store.errors import RunInUseError
from fairbed.testbed.api.hosts import replaying
from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.grid import RUNS, Arm, Grid, GridCell, TargetConfig
from fairbed.testbed.compare.hosts import CellHosts
from fairbed.testbed.compare.measures import TOTAL_TIME, UPDATES
from fairbed.testbed.compare.needed_files import inputs_of_grid
from fairbed.testbed.compare.pool import run_cells
from fairbed.testbed.errors import RunError
from fairbed.testbed.experiment.data import NAMES
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.testbed.experiment.shards import COLUMNS_LOG, load_examples
from fairbed.testbed.inputs import in_words, product
from fairbed.testbed.progress import Bar
from fairbed.testbed.replay.cohort.ordered import free_cores
from fairbed.testbed.reproduction.record import (
    CellRecord,
    changes,
    depends_of,
    path_of,
    read_record,
    record_of,
    write_record,
)
from fairbed.testbed.reproduction.results import Finished
from fairbed.testbed.reproduction.study import Panel, Run, SizeName, Study

WORK = "work"
"""Folder of the runs of unfinished cells, and of the lock."""
EXPERIMENT = "experiment.toml"
START_S = 0.5
"""Loading data and opening a store, for the estimate, seconds."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a study."""

    study: str
    panel: str
    run: Run
    seed: int
    experiment: Experiment
    depends: dict[str, object]

    @property
    def arm(self) -> str:
        """Name of its arm in the grid of all cells."""
        return f"{self.study}.{self.panel}.{self.run.name}"

    def path(self, out: Path) -> Path:
        """Return its result file."""
        return path_of(out, self.study, self.panel, self.run.name, self.seed)


@dataclass(slots=True)
class Plan:
    """The cells of some studies."""

    studies: Mapping[str, Study]
    size: SizeName
    cells: list[Cell] = field(default_factory=list)
    records: dict[tuple[str, str], dict[tuple[str, int], CellRecord]] = field(default_factory=dict)
    """Finished cells by study and panel, then by run and seed."""
    problems: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why a panel has no data, by study and panel."""
    notes: list[str] = field(default_factory=list)
    """Lines about result files."""

    @property
    def left(self) -> list[Cell]:
        """The unfinished cells, seed by seed, long ones first."""
        found = [
            cell
            for cell in self.cells
            if (cell.run.name, cell.seed) not in self.records[cell.study, cell.panel]
        ]
        return sorted(found, key=lambda cell: (cell.seed, -self.cost_s(cell)))

    def cost_s(self, cell: Cell) -> float:
        """Return the time of a cell, seconds: the mean of finished ones of its run, or as stated.

        A cell of the smoke size has its rounds as a share of the full ones.
        """
        own = self.records[cell.study, cell.panel]
        known = [one.seconds for (run, _), one in own.items() if run == cell.run.name]
        if known:
            return sum(known) / len(known)
        study = self.studies[cell.study]
        panel = next(one for one in study.panel if one.name == cell.panel)
        whole = study.experiment_of(cell.study, panel, cell.run, "full", 0).rounds
        return START_S + cell.run.cost_s * cell.experiment.rounds / whole

    def finished(self, study: str) -> dict[str, Finished]:
        """Return the finished cells of a study by panel."""
        return {
            panel.name: Finished(
                self.records[study, panel.name], self.problems.get((study, panel.name), "")
            )
            for panel in self.studies[study].panel
        }


def make_plan(studies: Mapping[str, Study], size: SizeName, out: Path) -> Plan:
    """Return the cells of some studies, and which of them are finished in a folder.

    Raises:
        ExperimentError: A cell is refused.
    """
    plan, hashes = Plan(studies, size), dict[bytes, str | DatasetError]()
    for name, study in studies.items():
        for panel in study.panel:
            plan.records[name, panel.name] = {}
            problem = _add_panel(plan, name, study, panel, hashes)
            if problem:
                plan.problems[name, panel.name] = problem
    _read_finished(plan, out)
    return plan


def _add_panel(
    plan: Plan, name: str, study: Study, panel: Panel, hashes: dict[bytes, str | DatasetError]
) -> str:
    """Add the cells of a panel; return why it has no data, or nothing."""
    cells = list[Cell]()
    dataset = dataset_of(study, panel)
    if dataset not in (None, *NAMES):
        return f"{dataset}: this version of Fairbed has no loader for it"
    for run in study.runs_of(panel):
        for seed in range(study.seeds(panel, plan.size)):
            try:
                experiment = study.experiment_of(name, panel, run, plan.size, seed)
            except ValueError as exc:
                raise ExperimentError(f"{name}: {panel.name}: {run.name}: {exc}") from exc
            sha = ""
            if experiment.trains_in_replay and experiment.data.dataset != "synthetic":
                found = _data_sha256(experiment, hashes)
                if isinstance(found, DatasetError):
                    return str(found)
                sha = found
            cells.append(Cell(name, panel.name, run, seed, experiment, depends_of(experiment, sha)))
    plan.cells += cells
    return ""


def dataset_of(study: Study, panel: Panel) -> str | None:
    """Return the name of the data set of a panel at its full size; None without one."""
    given = panel.set.get("data") or study.experiment.get("data") or {}
    found: str | None = panel.set.get("data.dataset") or given.get("dataset")
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the lines about a data set back: the pages have what concerns their numbers."""
    log = logging.getLogger(COLUMNS_LOG)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _data_sha256(
    experiment: Experiment, hashes: dict[bytes, str | DatasetError]
) -> str | DatasetError:
    """Return the hash of the whole data set of an experiment, loaded once for all its cells."""
    key = msgspec.json.encode((experiment.data, experiment.model.task))
    if key not in hashes:
        try:
            with _quiet():
                dataset = load_examples(experiment, os.environ)
        except DatasetError as exc:
            hashes[key] = exc
        else:
            hashes[key] = "" if dataset is None else dataset.whole_sha256 or dataset.sha256
    return hashes[key]


def _read_finished(plan: Plan, out: Path) -> None:
    """Read the result files of a plan; note those that are done again."""
    redone, older = dict[str, int](), dict[str, int]()
    for cell in plan.cells:
        found = read_record(cell.path(out))
        if found is None:
            continue
        if isinstance(found, str):
            plan.notes.append(found)
            continue
        if changed := changes(found.depends, cell.depends):
            line = f"{cell.study}: {in_words(changed)} changed since"
            redone[line] = redone.get(line, 0) + 1
            continue
        if found.fairbed != product():
            older[found.fairbed] = older.get(found.fairbed, 0) + 1
        plan.records[cell.study, cell.panel][cell.run.name, cell.seed] = found
    plan.notes += [f"{line}: {counted(n, 'cell')} to run again" for line, n in redone.items()]
    plan.notes += [
        f"warning: {counted(count, 'finished cell')} of Fairbed {one}, this is {product()}; remove "
        f"the files below {out / 'cells'} to run them again"
        for one, count in older.items()
    ]


def estimate_s(plan: Plan, jobs: int | None) -> float:
    """Return the expected time of the unfinished cells, seconds, with some workers."""
    costs = [plan.cost_s(cell) for cell in plan.left]
    return max(sum(costs) / (jobs or free_cores()), max(costs, default=0.0))


def run_plan(
    plan: Plan, out: Path, jobs: int | None, bar: Bar, address: str | None = None
) -> tuple[list[str], bool]:
    """Run the unfinished cells of a plan, and add their records to it.

    Args:
        plan: The plan.
        out: Folder of the result files, which is locked meanwhile.
        jobs: Cells at the same time; None is one per core.
        bar: Shows the progress.
        address: Head of a cluster whose hosts run the cells; None is this machine.

    Returns:
        Lines about failed cells, and whether no signal interrupted it.

    Raises:
        RunError: Another process uses the folder.
    """
    left, failed = plan.left, list[str]()
    if not left:
        return [], True
    work = out / WORK
    grid = _grid(left)
    by_name = {(cell.arm, cell.seed): cell for cell in left}

    def receive(result: CellResult) -> None:
        cell, folder = by_name[result.arm, result.seed], work / result.folder
        problem = result.outcome.problem
        if result.outcome.measured is not None:
            try:
                record = record_of(
                    folder, result.outcome.measured, cell.depends, product(), _seconds(folder)
                )
                write_record(cell.path(out), record)
                plan.records[cell.study, cell.panel][cell.run.name, cell.seed] = record
                shutil.rmtree(folder)
            except (OSError, StoreError) as exc:
                problem = str(exc)
        if problem:
            failed.append(f"{result.arm}, seed {result.seed}: failed: {problem}")
            bar.line(failed[-1])
        bar.advance()

    with _locked(work), _hosts(address, grid, bar) as hosts:
        _remove_changed(work, left)

        async def run() -> bool:
            return await run_cells(
                grid, work, jobs, receive, hosts=hosts, note=bar.line, only=_cells(grid, left)
            )

        is_whole = anyio.run(run)
        if is_whole and not failed:
            shutil.rmtree(work / RUNS, ignore_errors=True)
    return failed, is_whole


@contextmanager
def _hosts(address: str | None, grid: Grid, bar: Bar) -> Iterator[CellHosts | None]:
    with replaying(
        address, (arm.experiment for arm in grid.arms), lambda line: bar.line(f"warning: {line}")
    ) as hosts:
        if hosts is not None:
            hosts.check_files(inputs_of_grid(grid).files)
        yield hosts


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    work.mkdir(parents=True, exist_ok=True)
    try:
        lock = RunLock(work)
    except RunInUseError as exc:
        raise RunError(
            f"--out {work.parent}: another process uses it; wait for it, or choose another folder"
        ) from exc
    try:
        yield
    finally:
        lock.release()


def _grid(cells: Sequence[Cell]) -> Grid:
    """Return the grid of all cells: an arm for each run of each panel of each study."""
    first = {cell.arm: cell for cell in reversed(cells)}
    arms = tuple(Arm(name, name, (), cell.experiment) for name, cell in first.items())
    return Grid(
        name="reproduce",
        fleet="replay",
        seeds=tuple(sorted({cell.seed for cell in cells})),
        arms=arms,
        baseline=arms[0].name,
        primary=TOTAL_TIME,
        budget_metric=UPDATES,
        target=TargetConfig(),
    )


def _cells(grid: Grid, cells: Sequence[Cell]) -> list[GridCell]:
    arms = {arm.name: arm for arm in grid.arms}
    return [GridCell(arms[cell.arm], cell.seed) for cell in cells]


def _remove_changed(work: Path, cells: Sequence[Cell]) -> None:
    """Remove interrupted runs of another experiment than that of their cell."""
    for cell in cells:
        folder = work / RUNS / cell.arm / str(cell.seed)
        try:
            text = (folder / EXPERIMENT).read_text(encoding="utf-8")
        except OSError:
            continue
        if text != cell.experiment.resolved_toml():
            shutil.rmtree(folder)


def _seconds(folder: Path) -> float:
    """Return the time between the first and the last file of a run, seconds."""
    times = [path.stat().st_mtime for path in folder.rglob("*")]
    return max(times, default=0.0) - min(times, default=0.0)


def cell_problems(plan: Plan) -> Iterator[str]:
    """Yield a line for each panel without data."""
    for (study, panel), problem in plan.problems.items():
        yield f"{study}: {panel}: not run: no data: {problem}"
