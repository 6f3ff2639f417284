"""`fairbed reproduce`: run the experiments of sources, and write their pages."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fairbed.testbed.api.errors import one_line_errors
from fairbed.testbed.cli import DONE, FAILED, count_option
from fairbed.testbed.errors import ClusterError, RunError
from fairbed.testbed.install import install_command
from fairbed.testbed.progress import clock_text, progress
from fairbed.testbed.replay.cohort.ordered import free_cores
from fairbed.testbed.reproduction.options import ALL, NAMES, OUT
from fairbed.testbed.reproduction.page import claims_csv, html, markdown, rows_csv, summary
from fairbed.testbed.reproduction.results import StudyResult, result_of
from fairbed.testbed.reproduction.running import (
    Plan,
    cell_problems,
    estimate_s,
    make_plan,
    run_plan,
)
from fairbed.testbed.reproduction.study import SizeName, load_studies
from fairbed.wire.printable import printable

INTERRUPTED = 130


def main(options: argparse.Namespace) -> int:
    """Run or resume the cells of sources, write their pages, and print the verdicts."""
    names = NAMES if options.source == ALL else (options.source,)
    size: SizeName = "smoke" if options.smoke else "full"
    out = options.out or (OUT.with_name(f"{OUT.name}-smoke") if options.smoke else OUT)
    jobs = count_option("--jobs", options.jobs)
    failed, is_whole = list[str](), True
    with one_line_errors():
        try:
            plan = make_plan(load_studies(names), size, out)
            _explain(plan, jobs, runs=options.smoke or options.full)
            if options.smoke or options.full:
                with progress(len(plan.left), "cells", "reproduce") as bar:
                    failed, is_whole = run_plan(plan, out, jobs, bar, options.hosts)
            results = [_result(name, plan, options) for name in names]
            for result in results:
                _write(result, out)
        except ClusterError as exc:
            raise RunError(str(exc)) from exc
        except OSError as exc:
            raise RunError(f"--out: must be a writable folder, got: {exc}") from exc
    _print(results, out, as_json=options.json)
    if not is_whole:
        _note("stopped; the same command goes on")
        return INTERRUPTED
    return FAILED if failed else DONE


def _explain(plan: Plan, jobs: int | None, *, runs: bool) -> None:
    """Print what is known before the first cell."""
    for line in (*plan.notes, *cell_problems(plan)):
        _note(line)
    left, cores = len(plan.left), jobs or free_cores()
    done = len(plan.cells) - left
    line = f"{done} of {len(plan.cells)} cells are finished"
    if left:
        line += f"; the others take about {clock_text(estimate_s(plan, jobs))} on {cores} cores"
        line += "" if runs else ": --full runs them, --smoke a few rounds of each"
    _note(line)


def _note(line: str) -> None:
    print(f"fairbed: {printable(line)}", file=sys.stderr)


def _result(name: str, plan: Plan, options: argparse.Namespace) -> StudyResult:
    out = "" if options.out is None else f" --out {options.out}"
    command = f"fairbed reproduce {name} --{plan.size}{out}"
    return result_of(name, plan.studies[name], plan.size, command, plan.finished(name))


def _write(result: StudyResult, out: Path) -> None:
    """Write the pages of a study."""
    from fairbed.testbed.reproduction.figure import figure_svg

    svg = None
    try:
        svg = figure_svg(result)
    except ModuleNotFoundError:
        _note(f"no figure: it needs matplotlib; {install_command('fairbed[figures]')}")
    files: Mapping[str, bytes] = {
        f"{result.name}.md": markdown(result, has_figure=svg is not None).encode(),
        f"{result.name}.html": html(result, svg).encode(),
        f"{result.name}.csv": rows_csv(result).encode(),
        f"{result.name}-claims.csv": claims_csv(result).encode(),
        **({} if svg is None else {f"{result.name}.svg": svg}),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        draft = out / f"{name}.new"
        draft.write_bytes(content)
        draft.replace(out / name)


def _print(results: list[StudyResult], out: Path, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(results).decode())
        return
    for result in results:
        print(f"{result.name}: {summary(result)}")
        for claim in result.claims:
            if claim.verdict in ("holds", "fails"):
                print(f"  {claim.verdict:<6} {claim.panel}, {claim.metric}: {claim.text}")
        print(f"  {out / result.name}.md")
