"""Cost of exporting a finished run in each format, and of reading its largest table.

    fairbed bench export [--rounds 500] [--devices 1000] [--per-round 100] [--repeats 3] [--json]

The run is synthetic, with a selection and an evaluation of each device in each round and as much
telemetry as a store retains. Each export is `fairbed export` in a process of its own, from its
start to its end: time, processor time, peak memory, size of the files; medians. The last lines are
the table `selection` in this process: as numpy arrays, and from them as Arrow, pandas and polars.

Linux and macOS.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from benchmarks._meter import MEGABYTE, median
from benchmarks._synthetic_run import SyntheticRun
from fairbed.coordinator.report.export import FORMATS, Format
from fairbed.coordinator.report.tables import TABLES, Table, read_table
from fairbed.coordinator.store import RunReader
from fairbed.testbed.progress import tracked

MEASURED = """
import os, sys
from benchmarks._meter import peak_rss_bytes
from fairbed.testbed.cli.main import main
code = main()
print(peak_rss_bytes(os.getpid()))
sys.exit(code)
"""
"""`fairbed`, which prints its peak memory at the end."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Exports of one run in one format; medians."""

    format: Format
    rows: int
    elapsed_s: float
    cpu_s: float
    peak_mb: float
    """Peak of the resident memory."""
    size_mb: float
    """All files."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench export", description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--per-round", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name) / "run"
        write_run(folder, options.rounds, options.devices, options.per_round)
        costs = [
            measure(folder, form, options.repeats) for form in tracked(FORMATS, "formats", "export")
        ]
        reads = read_s(folder, "selection")
    if options.json:
        result = {"exports": [asdict(cost) for cost in costs], "selection_s": reads}
        print(msgspec.json.encode(result).decode())
    else:
        _print(costs, reads)
    return 0


def write_run(folder: Path, rounds: int, devices: int, per_round: int) -> None:
    """Write a synthetic run."""
    run = SyntheticRun(folder, devices, rounds=rounds, per_round=per_round)
    try:
        run.write_rounds(rounds)
    finally:
        run.close()


def measure(folder: Path, form: Format, repeats: int) -> Cost:
    """Return the cost of exporting a run."""
    costs = [_export(folder, form) for _ in range(repeats)]
    with RunReader(folder) as reader:
        rows = sum(len(read_table(reader, name)) for name in TABLES)
    elapsed_s, cpu_s, peak_mb, size_mb = (median(values) for values in zip(*costs, strict=True))
    return Cost(form, rows, elapsed_s, cpu_s, peak_mb, size_mb)


def _export(folder: Path, form: Format) -> tuple[float, float, float, float]:
    """Return time, processor time, peak memory and size of one export.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-", dir=folder.parent) as name:
        out = Path(name) / "out"
        options = ["export", str(folder), "--format", form, "--out", str(out)]
        began_s, used_s = time.monotonic(), children_s()
        command = [sys.executable, "-c", MEASURED, *options]
        done = subprocess.run(
            command,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        elapsed_s, cpu_s = time.monotonic() - began_s, children_s() - used_s
        size = sum(path.stat().st_size for path in out.iterdir())
    return elapsed_s, cpu_s, int(done.stdout.splitlines()[-1]) / MEGABYTE, size / MEGABYTE


def children_s() -> float:
    """Return the processor time of all processes that were started and have ended, seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_s(folder: Path, name: str) -> dict[str, float]:
    """Return the processor time of reading a table, seconds, by what it becomes."""
    with RunReader(folder) as reader:
        used = time.process_time()
        table = read_table(reader, name)
        found = {"numpy": time.process_time() - used}
    makers: dict[str, Callable[[Table], object]] = {
        "arrow": Table.arrow,
        "pandas": Table.pandas,
        "polars": Table.polars,
    }
    small = Table(table.name, {column: table.column(column)[:1] for column in table.columns})
    for kind, make in makers.items():
        make(small)  # imports the library
        used = time.process_time()
        make(table)
        found[kind] = time.process_time() - used
    return found


def _print(costs: list[Cost], reads: dict[str, float]) -> None:
    print(f"{'format':<10}{'rows':>12}{'time s':>9}{'cpu s':>8}{'peak MB':>9}{'size MB':>9}")
    for cost in costs:
        print(
            f"{cost.format:<10}{cost.rows:>12,}{cost.elapsed_s:>9.2f}{cost.cpu_s:>8.2f}"
            f"{cost.peak_mb:>9.0f}{cost.size_mb:>9.1f}"
        )
    print()
    for kind, spent_s in reads.items():
        print(f"selection as {kind:<8}{spent_s:>8.2f} s of processor time")
