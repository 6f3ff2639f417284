"""Cost of the HTML report of a large run: time, processor time, memory and size of the page.

    fairbed bench report [--rounds 500] [--devices 1000] [--per-round 100] [--repeats 3] [--json]

The run is synthetic, with a selection and an evaluation of each device in each round. Each page is
written by `fairbed report` in a process of its own, measured from its start to its end; medians.
The page without figures is the part of summary and tables. Exits with 1 if the whole page is above
a limit.

Linux and macOS.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from benchmarks._meter import MEGABYTE, median
from benchmarks.export import MEASURED, children_s, write_run
from fairbed.testbed.progress import tracked

LIMIT_S, LIMIT_MB = 10.0, 5.0
"""Limits of time and size for 500 rounds of 1,000 devices."""

PAGES: dict[str, list[str]] = {"whole": [], "no figures": ["--no-figures"]}
"""Options of each measured page."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Pages of one run; medians."""

    page: str
    elapsed_s: float
    cpu_s: float
    peak_mb: float
    """Peak of the resident memory."""
    size_mb: float


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench report", description=__doc__)
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
            measure(folder, page, options.repeats)
            for page in tracked(list(PAGES), "pages", "report")
        ]
    if options.json:
        print(msgspec.json.encode([asdict(cost) for cost in costs]).decode())
    else:
        print(f"{'page':<12}{'time s':>9}{'cpu s':>8}{'peak MB':>9}{'size MB':>9}")
        for cost in costs:
            print(
                f"{cost.page:<12}{cost.elapsed_s:>9.2f}{cost.cpu_s:>8.2f}{cost.peak_mb:>9.0f}"
                f"{cost.size_mb:>9.2f}"
            )
    whole = costs[0]
    return int(whole.elapsed_s > LIMIT_S or whole.size_mb > LIMIT_MB)


def measure(folder: Path, page: str, repeats: int) -> Cost:
    """Return the cost of one page of a run."""
    found = [_report(folder, PAGES[page]) for _ in range(repeats)]
    return Cost(page, *(median(values) for values in zip(*found, strict=True)))


def _report(folder: Path, options: list[str]) -> tuple[float, float, float, float]:
    """Return time, processor time, peak memory and size of one page.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    out = folder.parent / "page.html"
    command = [sys.executable, "-c", MEASURED, "report", str(folder), "--out", str(out), *options]
    began_s, used_s = time.monotonic(), children_s()
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
    )
    elapsed_s, cpu_s = time.monotonic() - began_s, children_s() - used_s
    peak_mb = int(done.stdout.splitlines()[-1]) / MEGABYTE
    return elapsed_s, cpu_s, peak_mb, out.stat().st_size / MEGABYTE
