"""`fairbed compare`: run a grid of experiments, or take runs that exist, and compare them."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import msgspec

from fairbed.coordinator.store import RunNotFoundError, StoreError, resolve_run
from fairbed.testbed.api.compare import (
    COMPARISONS,
    check_grid,
    finish,
    joined_for,
    receiver,
    tuning_runs,
)
from fairbed.testbed.api.hosts import OPTION
from fairbed.testbed.cli import DONE, FAILED, count_option, from_clone
from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.comparison import Comparison
from fairbed.testbed.compare.contrasts import power_line
from fairbed.testbed.compare.finished import as_grid, read_runs
from fairbed.testbed.compare.folder import grid_folder, manifest_of
from fairbed.testbed.compare.grid import Grid, GridCell, load_grid
from fairbed.testbed.compare.needed_files import GridInputs, inputs_of_grid
from fairbed.testbed.compare.plots import draw_all
from fairbed.testbed.compare.pool import run_cells
from fairbed.testbed.compare.report import write_report
from fairbed.testbed.compare.table import plain, print_rich
from fairbed.testbed.errors import ClusterError, RunError, UsageError
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.install import install_command
from fairbed.testbed.progress import progress

FIGURES = "figures"
INTERRUPTED = 130


def main(options: argparse.Namespace) -> int:
    """Run or resume a grid, or read runs, and print the comparison; return the exit code."""
    if bool(options.grid) == (options.live_replay is not None):
        raise UsageError(
            "compare: must have either a grid file, or runs, or --live-replay EXPERIMENT"
        )
    if options.live_replay is not None:
        code: int = from_clone("experiments.replay_fidelity.cli").main(options)
        return code
    if options.repeats is not None:
        raise UsageError("--repeats: is for --live-replay only; use --seeds for a grid")
    if len(options.grid) > 1:
        return _compare_runs(options)
    path = Path(options.grid[0])
    if path.is_dir():
        raise UsageError(f"compare: must be a grid file or at least two runs, got {path} alone")
    try:
        jobs = count_option("--jobs", options.jobs)
        grid = load_grid(path, options.set, count_option("--seeds", options.seeds))
        out = options.out or COMPARISONS / grid.name
        check_grid(grid, path, out)
        if grid.contrasts:
            print(f"fairbed: {power_line(grid.contrasts, len(grid.seeds))}", file=sys.stderr)
        if grid.tuning is not None:
            tuned = _tuned(grid, path, out, jobs, options.hosts)
            if tuned is None:
                return _stopped()
            grid = tuned
        inputs = inputs_of_grid(grid)
        with grid_folder(out, grid, inputs.of_arm) as folder:
            if folder.redone:
                print(f"fairbed: {folder.redone}", file=sys.stderr)
            results = _run_cells(grid, inputs, out, jobs, options.hosts)
            if results is None:
                return _stopped()
            comparison = finish(grid, results, out)
            if not options.no_figures:
                _draw(comparison, results, out)
            _print(comparison, out, as_json=options.json)
    except ExperimentError as exc:
        raise UsageError(str(exc)) from exc
    except ClusterError as exc:
        raise RunError(str(exc)) from exc
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise RunError(f"--out: must be a writable folder, got: {exc}") from exc
    return FAILED if comparison.problems else DONE


def _compare_runs(options: argparse.Namespace) -> int:
    """Compare runs that exist; return the exit code."""
    grids = [name for name in options.grid if name.endswith(".toml") and Path(name).is_file()]
    if grids:
        raise UsageError(
            f"compare: must be one grid file or several runs, got {grids[0]} beside others"
        )
    of_grid = {"--seeds": options.seeds, "--jobs": options.jobs, "--set": options.set}
    for option, value in {**of_grid, OPTION: options.hosts}.items():
        if value:
            raise UsageError(f"{option}: is for a grid, whose cells are run; leave it out")
    try:
        folders = [resolve_run(options.runs, reference) for reference in options.grid]
        found = as_grid(read_runs(folders))
        digest = manifest_of(found.grid).grid[:8]
        out = options.out or COMPARISONS / f"{found.grid.name}-{digest}"
        with grid_folder(out, found.grid):
            comparison = found.compare()
            write_report(comparison, out)
            if not options.no_figures:
                _draw(comparison, list(found.results), out)
            _print(comparison, out, as_json=options.json)
    except (ExperimentError, RunNotFoundError) as exc:
        raise UsageError(str(exc)) from exc
    except StoreError as exc:
        raise RunError(str(exc)) from exc
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise RunError(f"--out: must be a writable folder, got: {exc}") from exc
    return FAILED if comparison.problems else DONE


def _stopped() -> int:
    print("fairbed: stopped; the same command resumes the grid", file=sys.stderr)
    return INTERRUPTED


def _tuned(grid: Grid, path: Path, out: Path, jobs: int | None, address: str | None) -> Grid | None:
    """Return a grid with the constants that its search chooses; None after an interruption."""
    with tuning_runs(grid, path, out) as search:
        for line in search.lines:
            print(f"fairbed: {line}", file=sys.stderr)
        with (
            progress(search.n_runs, "cells", "tune") as bar,
            joined_for(address, search.grid, search.inputs, bar.line) as hosts,
        ):

            def run(cells: Sequence[GridCell]) -> list[CellResult] | None:
                results: list[CellResult] = []
                receive = receiver(bar, results, search.inputs, search.folder)
                run = partial(run_cells, hosts=hosts, note=bar.line, only=cells)
                is_whole = anyio.run(run, search.grid, search.folder, jobs, receive)
                return results if is_whole else None

            found = search.choose(run)
    if found is not None and found.tuned is not None:
        for line in (found.tuned.line, *found.tuned.power):
            print(f"fairbed: {line}", file=sys.stderr)
    return found


def _run_cells(
    grid: Grid, inputs: GridInputs, out: Path, jobs: int | None, address: str | None
) -> list[CellResult] | None:
    """Return the results of all cells; None after an interruption."""
    results: list[CellResult] = []
    with (
        progress(len(grid.cells()), "cells", "compare") as bar,
        joined_for(address, grid, inputs, bar.line) as hosts,
    ):
        run = partial(run_cells, hosts=hosts, note=bar.line)
        is_whole = anyio.run(run, grid, out, jobs, receiver(bar, results, inputs, out))
    return results if is_whole else None


def _draw(comparison: Comparison, results: list[CellResult], out: Path) -> None:
    try:
        draw_all(comparison, results, out / FIGURES)
    except ModuleNotFoundError as exc:
        if exc.name != "matplotlib":
            raise
        advice = install_command("fairbed[figures]")
        print(
            f"fairbed: no figures were drawn: they need matplotlib; run: {advice}", file=sys.stderr
        )


def _print(comparison: Comparison, out: Path, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(comparison).decode())
        return
    if sys.stdout.isatty():
        print_rich(comparison)
    else:
        print(plain(comparison))
    print(f"\nall files are in {out}")
