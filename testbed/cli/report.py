"""`fairbed report`: one self-contained HTML page about a run, or about several side by side."""

import argparse
import sys
import webbrowser
from pathlib import Path

from fairbed.coordinator.report.figures import RunFigures, read_figures, write_figures
from fairbed.coordinator.report.html import n_parts
from fairbed.coordinator.store import RunNotFoundError, RunReader, StoreError, resolve_run
from fairbed.testbed.cli import DONE
from fairbed.testbed.compare.side_by_side import report_runs
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.progress import progress

MAX_RUNS = 50
"""Runs on one page."""


def main(options: argparse.Namespace) -> int:
    """Write the page and print its path; return the exit code."""
    if len(options.run) > MAX_RUNS:
        raise UsageError(
            f"report: must be of at most {MAX_RUNS} runs, got {len(options.run)}; name fewer"
        )
    try:
        folders = [resolve_run(options.runs, reference) for reference in options.run]
    except RunNotFoundError as exc:
        raise UsageError(str(exc)) from exc
    twice = [folder for at, folder in enumerate(folders) if folder in folders[:at]]
    if twice:
        raise UsageError(f"report: runs must be distinct, got {twice[0]} twice; name it once")
    path: Path = options.out or Path(
        f"{folders[0].name}.html" if len(folders) == 1 else "report.html"
    )
    try:
        has_figures = not options.no_figures
        parts = n_parts(len(folders), has_figures=has_figures)
        with progress(parts, "parts", "report") as bar:
            report_runs(folders, path, has_figures=has_figures, advance=bar.advance)
        if options.figures is not None:
            files = write_figures([_figures_of(folder) for folder in folders], options.figures)
            print(f"{options.figures}: {len(files)} files of figures")
    except StoreError as exc:
        raise RunError(str(exc)) from exc
    except OSError as exc:
        raise RunError(
            f"{exc.filename or path}: must be writable, got: {exc.strerror or exc}; choose another "
            "place with --out or --figures"
        ) from exc
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    if options.open and not webbrowser.open(path.resolve().as_uri()):
        print("fairbed: no browser could be opened here; open the file by hand", file=sys.stderr)
    return DONE


def _figures_of(folder: Path) -> RunFigures:
    with RunReader(folder) as reader:
        return read_figures(reader)
