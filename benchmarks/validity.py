"""How well a run knows which of its exchanges a busy machine delayed.

    fairbed bench validity [EXPERIMENT] [--backend namespace] [--loads quiet,1,2] [--rounds 20]
                           [--set KEY=VALUE] [--json] [--from ROWS.json ...]

Runs a fleet with constant profiles (default `examples/quickstart.toml`), and during the run other
programs that take the processor, `--rounds` rounds each:

    quiet     none: always the first
    1, 2 ..   so many busy loops of equal priority, each in a session of its own
    bursts    all cores for 0.2 s of each second, before everything else; needs root

An exchange is compared with the median of the quiet exchanges of its device in the same run, cold
and warm starts apart, because devices with constant profiles repeat their times. `error` is the
relative difference. The first exchange of a device and the first round of a load do not count. The
first table counts valid exchanges that are more than 10 % off, and untimed ones that are more than
5 % off; the second one compares the delay that each phase was charged with its true delay.

Run it on a machine without other load, in several pieces if it must be short: `--json` prints the
exchanges of one piece, and `--from` prints the tables of several.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.progress import progress
from fairbed.wire.messages import DEVICE_PHASES

EXPERIMENT = Path(__file__).parents[1] / "examples" / "quickstart.toml"
SETTINGS = ('selection.policy="uniform"',)
"""All devices take part equally often, so that each has quiet exchanges."""

LEAST_QUIET = 3
"""Quiet exchanges of a device that give its true time."""

WRONG, DELAYED = 0.10, 0.05
"""Error of a valid exchange that is wrong, and of an untimed one that is so rightly."""

HOG = "while True: pass"
BURSTS = """
import os, time
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
while True:
    time.sleep(1.0 - time.monotonic() % 1.0)
    end = time.monotonic() + 0.2
    while time.monotonic() < end: pass
"""
PHASES = ("download", "compute", "upload")


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange beside the quiet exchanges of its device."""

    load: str
    device: str
    is_valid: bool
    reason: str
    tau_s: float
    error: float
    """Relative to the median of the quiet exchanges."""
    charged_s: dict[str, float]
    """Delay that each of `PHASES` was charged."""
    delay_s: dict[str, float]
    """Difference of each phase from the median of the quiet exchanges."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the tables; return the exit code.

    Raises:
        UsageError: An option is out of range, or a file has no rows.
        RunError: The run failed.
    """
    parser = argparse.ArgumentParser(
        prog="fairbed bench validity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("experiment", nargs="?", type=Path, default=EXPERIMENT, help="of constant profiles")
    add("--backend", default="namespace", help="of the devices (default namespace)")
    add("--loads", default="quiet,1,2", help="in their order (default quiet,1,2)")
    add("--rounds", type=int, default=20, help="of each load (default 20)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="as for `fairbed run`")
    add("--json", action="store_true", help="the exchanges, as one JSON list")
    add("--from", nargs="+", type=Path, dest="files", metavar="ROWS", help="of earlier `--json`")
    options = parser.parse_args(arguments)
    if options.files:
        rows = [row for file in options.files for row in _read(file)]
    else:
        loads = options.loads.split(",")
        _check(loads, options.rounds)
        settings = [*SETTINGS, f'emulation.backend="{options.backend}"', *options.set]
        rows = measure(options.experiment, loads, options.rounds, settings)
    print(msgspec.json.encode(rows).decode() if options.json else "\n".join(tables(rows)))
    return 0


def _read(file: Path) -> list[Compared]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Compared])
    except (OSError, msgspec.MsgspecError) as exc:
        raise UsageError(
            f"bench validity: {file} must have rows of --json, got {exc}; write it with --json"
        ) from exc


def _check(loads: Sequence[str], rounds: int) -> None:
    if loads[0] != "quiet":
        raise UsageError(
            f"bench validity: --loads must begin with quiet, got {loads[0]}; "
            "quiet exchanges give the true times"
        )
    for load in loads[1:]:
        if load != "bursts" and not (load.isdecimal() and int(load) > 0):
            raise UsageError(
                f"bench validity: a load must be a number of programs or bursts, got {load!r}; "
                "change --loads"
            )
    if "bursts" in loads and os.geteuid():
        raise UsageError("bench validity: bursts need root, got another user; change --loads")
    if rounds < 2:
        raise UsageError(f"bench validity: --rounds must be at least 2, got {rounds}; raise it")


def measure(
    experiment: Path, loads: Sequence[str], rounds: int, settings: Sequence[str]
) -> list[Compared]:
    """Run a fleet beside one load after the other; return its exchanges beside quiet ones.

    Raises:
        RunError: The run failed.
    """
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder, total = Path(name) / "run", rounds * len(loads)
        command = [sys.executable, "-m", "fairbed.testbed.cli.main", "run", str(experiment)]
        command += ["--headless", "--json", "--out", str(folder)]
        for setting in (*settings, f"rounds={total}"):
            command += ["--set", setting]
        last = ""
        with (
            subprocess.Popen(
                guarded(command),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
            ) as run,
            progress(total, "rounds", "validity", is_ticking=False) as bar,
            ExitStack() as others,
        ):
            assert run.stderr is not None
            for line in run.stderr:
                if not line.startswith("round "):
                    last = line.strip()
                    continue
                closed = int(line.split()[1].split("/")[0])
                bar.update(closed)
                if closed % rounds == 0 and closed < total:
                    others.close()
                    others.enter_context(busy(loads[closed // rounds]))
        if run.returncode:
            raise RunError(f"the run failed: {last}")
        with RunReader(folder) as reader:
            return compare(reader.exchanges(0), loads, rounds)


@contextmanager
def busy(load: str) -> Iterator[None]:
    """Run the programs of a load while the context lasts."""
    count, program = (os.cpu_count() or 1, BURSTS) if load == "bursts" else (int(load), HOG)
    processes = [
        subprocess.Popen(guarded([sys.executable, "-c", program]), start_new_session=True)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def compare(rows: Iterable[ExchangeRow], loads: Sequence[str], rounds: int) -> list[Compared]:
    """Return the exchanges with an update beside the quiet ones of their device.

    Args:
        rows: The exchanges of a run, in the order of their rounds.
        loads: Each for `rounds` rounds; the first is quiet.
        rounds: Rounds of each load.
    """
    seen = set[str]()
    by_load: list[tuple[str, ExchangeRow]] = []
    for row in sorted(rows, key=lambda row: row.round):
        at, place = divmod(row.round - 1, rounds)
        is_first = row.device not in seen
        seen.add(row.device)
        if row.tau_s is not None and not is_first and (place or not at):
            by_load.append((loads[at], row))
    quiet: dict[tuple[str, bool | None], list[dict[str, float]]] = defaultdict(list)
    for load, row in by_load:
        if load == "quiet":
            quiet[row.device, row.was_cold].append(phases_s(row))
    true_s: Mapping[tuple[str, bool | None], dict[str, float]] = {
        key: {part: statistics.median(one[part] for one in found) for part in found[0]}
        for key, found in quiet.items()
        if len(found) >= LEAST_QUIET
    }
    return [
        _compared(load, row, true_s[row.device, row.was_cold])
        for load, row in by_load
        if (row.device, row.was_cold) in true_s
    ]


def phases_s(row: ExchangeRow) -> dict[str, float]:
    """Return tau of an exchange, and the durations of `PHASES`, whose sum it is."""
    tau_s, download_s = row.tau_s or 0.0, row.download_s or 0.0
    compute_s = sum(getattr(row, f"{phase}_s") or 0.0 for phase in DEVICE_PHASES) - download_s
    upload_s = tau_s - download_s - compute_s
    return {"tau": tau_s, "download": download_s, "compute": compute_s, "upload": upload_s}


def _compared(load: str, row: ExchangeRow, true_s: Mapping[str, float]) -> Compared:
    found = phases_s(row)
    return Compared(
        load=load,
        device=row.device,
        is_valid=row.is_valid,
        reason=row.reason,
        tau_s=found["tau"],
        error=found["tau"] / true_s["tau"] - 1.0,
        charged_s={
            "download": row.contended_download_s or 0.0,
            "compute": row.contended_compute_s or 0.0,
            "upload": (row.contended_upload_s or 0.0) + row.lag_s,
        },
        delay_s={phase: found[phase] - true_s[phase] for phase in PHASES},
    )


def tables(rows: Sequence[Compared]) -> list[str]:
    """Return both tables as lines of Markdown."""
    loads = list(dict.fromkeys(row.load for row in rows))
    lines = [
        "| load | exchanges | valid | of those over 10 % off | untimed | of those over 5 % off "
        "| error, p50, p95, max |",
        "|---|---|---|---|---|---|---|",
    ]
    for load in loads:
        own = [row for row in rows if row.load == load]
        valid = [abs(row.error) for row in own if row.is_valid]
        untimed = [abs(row.error) for row in own if not row.is_valid]
        p50, p95, most = np.quantile([abs(row.error) for row in own], (0.5, 0.95, 1.0))
        lines.append(
            f"| {load} | {len(own)} | {len(valid)} | {sum(x > WRONG for x in valid)} "
            f"| {len(untimed)} | {sum(x > DELAYED for x in untimed)} "
            f"| {p50:.1%}, {p95:.1%}, {most:.1%} |"
        )
    lines += [
        "",
        "| load | phase | delay, p50, p95, max, ms | charged, p50, p95, max, ms |",
        "|---|---|---|---|",
    ]
    for load in loads:
        for phase in PHASES:
            own = [row for row in rows if row.load == load]
            columns = (
                [1e3 * row.delay_s[phase] for row in own],
                [1e3 * row.charged_s[phase] for row in own],
            )
            cells = [
                ", ".join(f"{x:.0f}" for x in np.quantile(column, (0.5, 0.95, 1.0)))
                for column in columns
            ]
            lines.append(f"| {load} | {phase} | {cells[0]} | {cells[1]} |")
    return lines
