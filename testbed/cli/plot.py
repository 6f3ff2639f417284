"""`fairbed plot`: one figure of a run, or of several, as a file."""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec

from fairbed.coordinator.report.figures import (
    FIGURES,
    FORMATS,
    figure_bytes,
    read_figures,
    why_missing,
)
from fairbed.coordinator.store import RunReader, resolve_run
from fairbed.coordinator.store.connection import is_locked
from fairbed.testbed.api.errors import one_line_errors
from fairbed.testbed.backends.priority import low_priority
from fairbed.testbed.cli import DONE
from fairbed.testbed.errors import RunError, UsageError
from fairbed.wire.printable import printable


def main(options: argparse.Namespace) -> int:
    """Draw the figure and print its path; return the exit code."""
    if options.json and not options.list:
        raise UsageError("--json: is for --list only, got a figure; leave --json out")
    if options.list and options.json:
        captions = {name: figure.caption for name, figure in FIGURES.items()}
        print(msgspec.json.encode(captions).decode())
        return DONE
    if options.list:
        width = max(map(len, FIGURES))
        for name, kind in FIGURES.items():
            print(f"{name.ljust(width)}  {kind.caption}")
        return DONE
    *references, what = options.words or [""]
    if what not in FIGURES:
        got = repr(what) if what else "none"
        raise UsageError(f"plot: the last word must be a figure ({', '.join(FIGURES)}), got {got}")
    path: Path = options.out or Path(f"{what}.svg")
    suffix = path.suffix[1:].lower()
    if suffix not in FORMATS:
        raise UsageError(f"--out: must end in .{', .'.join(FORMATS)}, got {str(path)!r}")
    runs = []
    with one_line_errors(), ExitStack() as stack:
        folders = [resolve_run(options.runs, ref) for ref in references or ["latest"]]
        if any(map(is_locked, folders)):
            stack.enter_context(low_priority())
        for folder in folders:
            with RunReader(folder) as reader:
                runs.append(read_figures(reader))
        reasons = [(run.run_id, why_missing(what, [run])) for run in runs]
        lacking = [f"{run_id}: {reason}" for run_id, reason in reasons if reason is not None]
        if len(lacking) == len(runs):
            raise RunError(f"{what}: there is nothing to draw: {'; '.join(lacking)}")
        for line in lacking:
            print(f"fairbed: {what}: left out {printable(line)}", file=sys.stderr)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(figure_bytes(what, runs, suffix))
    print(path)
    return DONE
