"""Accuracy of emulated devices: target against achieved values, by backend.

    fairbed bench fidelity [--backend all] [--quantity cpu,step,...] [--repeats 3]
                           [--attempts 12] [--quick] [--json] [--write FILE ...]
                           [--from FILE ...]

Programs inside and outside a device measure paced steps, TCP and datagrams through its link, and
its control groups. A window is valid only if this machine achieved the requested load. Invalid
windows are repeated, and a quantity without a valid window is unknown, with the reason.
docs/accuracy.md explains the table; `--write docs/accuracy.md docs/measurements.md` writes it
there, `--from` reads the rows of earlier runs.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from benchmarks._fidelity import table
from benchmarks._fidelity.catalogue import GROUPS, measure, problem
from benchmarks._fidelity.measure import Plan
from benchmarks._fidelity.rows import QuantitySpec, Row, unknown
from benchmarks._pages import page, placed
from fairbed.testbed.backends.choice import BACKENDS, BackendName

REPEATS, QUICK_REPEATS = 3, 1
ATTEMPTS_PER_REPEAT, QUICK_ATTEMPTS = 4, 2


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench fidelity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--backend", choices=[*BACKENDS, "all"], default="all")
    add("--quantity", default=",".join(GROUPS), help=f"some of {', '.join(GROUPS)}")
    add("--repeats", type=int, help=f"valid windows of each quantity (default {REPEATS})")
    add("--attempts", type=int, help="greatest number of windows of each (default four per repeat)")
    add("--quick", action="store_true", help="few quantities, short windows: for tests")
    add("--json", action="store_true")
    add(
        "--write",
        nargs="+",
        type=page,
        default=[],
        metavar="FILE",
        help="documents to write the table into",
    )
    add(
        "--from",
        dest="sources",
        nargs="+",
        default=[],
        metavar="FILE",
        help="rows of an earlier --json instead of a measurement",
    )
    options = parser.parse_args(arguments)
    names = options.quantity.split(",")
    if unknown_names := [name for name in names if name not in GROUPS]:
        parser.error(f"--quantity: must be some of {', '.join(GROUPS)}, got {unknown_names[0]}")
    for name in ("repeats", "attempts"):
        if (wanted := getattr(options, name)) is not None and wanted < 1:
            parser.error(f"--{name}: must be at least 1, got {wanted}")
    if not options.sources:
        repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
        default = QUICK_ATTEMPTS if options.quick else ATTEMPTS_PER_REPEAT * repeats
        attempts = options.attempts or default
        backends = BACKENDS if options.backend == "all" else (options.backend,)
        rows = anyio.run(_measure, backends, names, Plan(options.quick, repeats, attempts))
        measured_at = time.time()
    else:
        sources = [Path(source) for source in options.sources]
        rows = [
            row
            for source in sources
            for row in msgspec.json.decode(source.read_bytes(), type=list[Row])
        ]
        measured_at = max(source.stat().st_mtime for source in sources)
    rows = table.arranged(rows, BACKENDS)
    print(msgspec.json.encode(rows).decode() if options.json else table.plain(rows))
    for path in options.write:
        _write(path, rows, measured_at)
    return 0


async def _measure(backends: Sequence[BackendName], names: list[str], plan: Plan) -> list[Row]:
    rows: list[Row] = []
    for backend in backends:
        why_not = await problem(backend)
        if why_not is None:
            rows += await measure(backend, names, plan)
        else:
            nothing = QuantitySpec(backend=backend, quantity="all", target=None, unit="ratio")
            rows.append(unknown(nothing, why_not))
    return rows


def _write(path: Path, rows: list[Row], measured_at: float) -> None:
    document = path.read_text(encoding="utf-8")
    tables = {table.TABLE: table.markdown, table.SUMMARY: table.summary}
    found = [name for name in tables if f"<!-- {name} -->" in document]
    if not found:
        sys.stderr.write(f"{path}: must have a place for the table, got none; see accuracy.md\n")
    for name in found:
        text = f"{_origin(measured_at)}\n\n{tables[name](rows)}"
        document = placed(document, name, text)
    path.write_text(document, encoding="utf-8")


def _origin(measured_at: float) -> str:
    """Return the command, date and machine of the measurement."""
    day = time.strftime("%d %B %Y", time.gmtime(measured_at)).lstrip("0")
    python = ".".join(platform.python_version_tuple()[:2])
    kernel = ".".join(platform.release().split(".")[:2])
    return (
        f"`fairbed bench fidelity`, {day}: a virtual machine of {os.cpu_count()} "
        f"cores, {platform.system()} {kernel}, Python {python}."
    )
