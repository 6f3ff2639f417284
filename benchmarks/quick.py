"""What matters most, as ratios to bare operations of the same minutes, beside earlier ones.

    fairbed bench quick [--rounds 12] [--history FILE] [--json]

Takes a minute or two. A machine is half as fast an hour later, and so are its bare operations: the
ratios move less. Each measurement is appended to FILE (benchmarks/history.jsonl of the clone) with
the machine and the revision, and printed beside the last ones of the same machine and Python.

round       a warm round of 20 agents with a 1 MB model (`round-time`) over its floor: matrix
            products, TCP, hashes, SGD and a sum, without a message (`round-time --where`)
first round from the command to the end of the first round, over a start of Python with numpy
exchange    rate of 10 models of 4 MB, of that of a plain TCP copy (`exchange`); more is better
replay      processor time of a round that trains 20 x MLP 784-318-10 or the quickstart's CNN, over
            its bare products (`replay-training`)
merge       an exact running sum over a copy of the same values (`merge-speed`)
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks._floor import floor_of_round
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.progress import progress
from fairbed.testbed.provenance import CHECKOUT, machine, revision

HISTORY = CHECKOUT / "benchmarks" / "history.jsonl"
AGENTS = 20
"""Of the job of `round-time`."""
LONGEST_S = 300.0
"""Of one part."""
EXCHANGE = ("--agents", "10", "--size", "4", "--repeats", "3")
MERGE = ("--devices", "20", "--values", "1000000")
"""Options of `exchange` and `merge-speed`."""
STARTS = 5
"""Starts of Python with numpy that are timed."""
SHOWN = 3
"""Earlier measurements that are printed."""
IS_RATE = ("exchange",)
"""First words of the ratios of which more is better."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measurement: a line of the history."""

    at: str
    """UTC, to the minute."""
    revision: str
    """Of the checkout; it ends with `-dirty` if files differ from the commit."""
    machine: dict[str, str]
    python: str
    load_1min: float
    ratios: dict[str, float]


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench quick",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=12, help="of the run and of the replay")
    parser.add_argument("--history", type=Path, default=HISTORY, metavar="FILE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.rounds < 3:
        parser.error(f"--rounds: must be at least 3, got {options.rounds}")
    before = read_history(options.history)
    entry = Entry(
        at=time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
        revision=revision(CHECKOUT) or "unknown",
        machine=machine(),
        python=platform.python_version(),
        load_1min=round(os.getloadavg()[0], 2),
        ratios=measure(options.rounds),
    )
    with options.history.open("ab") as file:
        file.write(msgspec.json.encode(entry) + b"\n")
    if options.json:
        print(msgspec.json.encode(entry).decode())
    else:
        print(table(entry, before))
    return 0


def read_history(path: Path) -> list[Entry]:
    """Return the measurements of a file, the oldest first; none without one.

    Raises:
        SystemExit: A line is no measurement.
    """
    if not path.exists():
        return []
    entries = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            entries.append(msgspec.json.decode(line, type=Entry))
        except msgspec.DecodeError as exc:
            raise SystemExit(
                f"{path}:{number}: must be a measurement of `fairbed bench quick`, got: {exc}; "
                "remove the line"
            ) from exc
    return entries


def measure(rounds: int) -> dict[str, float]:
    """Return the ratios."""
    with progress(4, "parts", "quick", is_ticking=False) as bar:
        floor_ms = [sum(line.round_ms for line in floor_of_round(AGENTS))]
        start_s = _start_s()
        run = _bench("round-time", "--agents", str(AGENTS), "--rounds", str(rounds))
        floor_ms.append(sum(line.round_ms for line in floor_of_round(AGENTS)))
        bar.advance()
        exchange = _bench("exchange", *EXCHANGE)
        bar.advance()
        replay = _bench("replay-training", "--only", "common,cnn", "--rounds", str(rounds))
        bar.advance()
        merge = _bench("merge-speed", *MERGE)
        bar.advance()
    floor = statistics.mean(floor_ms)
    cpu_ms = {name: value for name, value in run.items() if name.startswith("cpu_ms_")}
    return {
        "round, processor": sum(cpu_ms.values()) / floor,
        "round, processor of the coordinator": cpu_ms["cpu_ms_coordinator"] / floor,
        "round, processor of the agents": cpu_ms["cpu_ms_agents"] / floor,
        "round, time": 1e3 * run["round_median_s"] / floor,
        "first round": run["first_round_done_s"] / start_s,
        "exchange down": exchange["down_ratio"],
        "exchange up": exchange["up_ratio"],
        "replay, MLP": replay["common"]["cpu_over_bare"],
        "replay, CNN": replay["cnn"]["cpu_over_bare"],
        "merge": merge["running_s"] / merge["copy_s"],
    }


def _bench(name: str, *options: str) -> dict[str, Any]:
    """Return the results of a benchmark in a process of its own."""
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", "bench", name, *options, "--json"]
    done = subprocess.run(
        guarded(command), capture_output=True, encoding="utf-8", timeout=LONGEST_S, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SystemExit(f"quick: `fairbed bench {name}` failed: {last}")
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found


def _start_s() -> float:
    """Return the time of a start of Python that imports numpy, seconds: a median."""
    times = []
    for _ in range(STARTS):
        started_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import numpy"], timeout=LONGEST_S, check=True)
        times.append(time.perf_counter() - started_s)
    return statistics.median(times)


def _short(revision: str) -> str:
    """Return the begin of a commit, with `+` if files differ from it."""
    return revision[:9] + "+" * revision.endswith("-dirty")


def table(entry: Entry, before: Sequence[Entry]) -> str:
    """Return the ratios beside the last ones of the same machine and Python."""
    alike = [e for e in before if (e.machine, e.python) == (entry.machine, entry.python)]
    shown = [entry, *reversed(alike[-SHOWN:])]
    width = max(map(len, entry.ratios)) + 2
    rows = [("", [_short(one.revision) for one in shown], "")]
    rows += [("measured", [one.at[5:16].replace("T", " ") for one in shown], "")]
    rows += [("load before", [f"{one.load_1min:.1f}" for one in shown], "")]
    for name in entry.ratios:
        found = [one.ratios.get(name) for one in shown]
        cells = ["-" if ratio is None else f"{ratio:.2f}" for ratio in found]
        rows.append((name, cells, "  (more is better)" if name.startswith(IS_RATE) else ""))
    lines = [
        f"{name:<{width}}" + "".join(f"{cell:>14}" for cell in cells) + note
        for name, cells, note in rows
    ]
    if not alike:
        lines.append("no earlier measurement of this machine with this Python")
    return "\n".join(lines)
