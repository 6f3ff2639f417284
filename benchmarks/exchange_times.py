"""Live exchange times of emulated fleets, as one file: fleet x link x model x codec.

    fairbed bench exchange-times --out DIR [--exchanges 5000] [--backend auto] [--rounds 12]

Each cell is a live run with a real broker and real agents. A finished cell is a file in DIR/cells;
a killed command is given again and goes on, and a larger `--exchanges` adds repetitions with other
seeds to the same cells. `DIR/exchange-times.csv.xz` has all finished cells; docs/exchange-times.md
describes its columns. Exchanges that this machine delayed are kept and marked (`is_valid` 0); only
timed ones count for `--exchanges`.
"""

import argparse
import itertools
import os
import platform
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks._exchange_log import COLUMNS, lines_of, rows_of, write_rows
from experiments.replay_fidelity.live import LiveRunError, play_live
from fairbed.coordinator.store import RunReader
from fairbed.testbed.errors import RunError
from fairbed.testbed.experiment.file import load_experiment

FLEETS = {
    "boards": ("raspberry-pi-3b-plus", "raspberry-pi-4b"),
    "phones": ("phone-low", "phone-mid"),
}
LINKS = ("wifi-board", "lte-steady", "lte-driving")
MODELS = ("softmax", "mlp")
CODECS = ("float32", "int8")
PER_ROUND, DEVICES = 20, 24
"""Devices in each round, and devices of a fleet, half of each profile."""

DILATION = {"wifi-board": 3, "lte-steady": 2, "lte-driving": 2}
"""By link, seconds of the machine per second of the fleet: a short exchange needs more, because the
machine delays each by about the same."""

CELL_S = 6.0
"""Time of one cell on two cores besides its rounds, seconds, for the estimate."""
ROUND_S = 1.0
"""Time of one round on two cores, dilated, seconds, for the estimate."""

LEAST_TIMED = 0.1
"""With a lower share of timed exchanges in a repetition, the command ends."""

FILE = "exchange-times.csv.xz"

EXPERIMENT = """
name = "exchange-times"
seed = {seed}
rounds = {rounds}
[data]
dataset = "digits"
[model]
name = "{model}"
[training]
epochs = 1
batch_size = 20
[selection]
policy = "uniform"
per_round = {per_round}
[exchange]
up = "{codec}"
down = "{codec}"
[round]
deadline_s = 20.0
[evaluation]
every = 0
[emulation]
backend = "{backend}"
dilation = {dilation}
host_core_speed = 5.0
"""
GROUP = """
[[fleet]]
profile = "{profile}"
link = "{link}"
count = {count}
"""

Cell = tuple[str, str, str, str]
"""Fleet, link, model, codec."""


class CellInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a cell was measured; a file beside its rows."""

    cell: str
    experiment: str
    """Hash of the experiment."""
    exchanges: int
    timed: int
    collected: str
    """Wall-clock time of its end, ISO 8601 in UTC."""
    took_s: float
    load: float
    """Load average of the machine over the last minute, at the end."""
    machine: str


def main(arguments: list[str]) -> int:
    """Collect until there are enough exchanges; return the exit code.

    Raises:
        RunError: A run failed, or the machine is too busy to time exchanges.
    """
    parser = argparse.ArgumentParser(
        prog="fairbed bench exchange-times",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder of cells and file")
    add("--exchanges", type=int, default=5000, help="timed ones, at least (default 5000)")
    add("--rounds", type=int, default=12, help="of each cell (default 12)")
    add("--backend", default="auto", choices=["auto", "namespace", "container", "process"])
    add("--only", default="", metavar="TEXT", help="only cells with this in their name")
    options = parser.parse_args(arguments)
    if options.exchanges < 1 or options.rounds < 2:
        parser.error(
            f"--exchanges and --rounds: must be at least 1 and 2, got {options.exchanges} and "
            f"{options.rounds}"
        )
    cells = [cell for cell in planned() if options.only in ".".join(cell)]
    if not cells:
        parser.error(f"--only: must be in the name of a cell, got {options.only!r}")
    per_repetition = len(cells) * PER_ROUND * options.rounds
    repetitions = -(-options.exchanges // per_repetition)
    minutes = repetitions * len(cells) * (CELL_S + ROUND_S * options.rounds) / 60.0
    print(
        f"about {repetitions} x {len(cells)} cells of {PER_ROUND * options.rounds} exchanges: "
        f"{minutes:.0f} min of this machine, less what is finished",
        flush=True,
    )
    try:
        found = collect(cells, options.out, options.exchanges, options.rounds, options.backend)
    except LiveRunError as exc:
        raise RunError(str(exc)) from exc
    timed, every = sum(x.timed for x in found), sum(x.exchanges for x in found)
    print(f"{options.out / FILE}: {every} exchanges of {len(found)} cells, {timed} timed")
    return 0


def planned() -> list[Cell]:
    """Return all cells, shuffled once, so that a part of them is spread over all factors."""
    cells = list(itertools.product(FLEETS, LINKS, MODELS, CODECS))
    random.Random(0).shuffle(cells)
    return cells


def collect(
    cells: list[Cell], out: Path, exchanges: int, rounds: int, backend: str
) -> list[CellInfo]:
    """Run cells, in whole repetitions, until there are enough timed exchanges.

    Raises:
        LiveRunError: A run failed.
        RunError: A cell was measured with other settings, or too few exchanges are timed.
    """
    (out / "cells").mkdir(parents=True, exist_ok=True)
    found: list[CellInfo] = []
    for repetition in itertools.count(1):
        first = len(found)
        for cell in cells:
            found.append(_measured(cell, repetition, out, rounds, backend))
            _assemble(out)
        timed, newest = sum(x.timed for x in found), found[first:]
        if timed >= exchanges:
            return found
        if sum(x.timed for x in newest) < LEAST_TIMED * sum(x.exchanges for x in newest):
            raise RunError(
                f"exchange-times: at least {LEAST_TIMED:.0%} of the exchanges must be timed, got "
                "fewer; run it on a quieter machine"
            )
    raise AssertionError("the repetitions never end")


def _measured(cell: Cell, repetition: int, out: Path, rounds: int, backend: str) -> CellInfo:
    """Return what is known of a cell; run it unless it is finished."""
    name = ".".join((*cell, str(repetition)))
    fleet, link, model, codec = cell
    source = out / "runs" / f"{name}.plan.toml"
    info_file = out / "cells" / f"{name}.json"
    source.parent.mkdir(parents=True, exist_ok=True)
    groups = "".join(
        GROUP.format(profile=profile, link=link, count=DEVICES // 2) for profile in FLEETS[fleet]
    )
    source.write_text(
        EXPERIMENT.format(
            seed=repetition,
            rounds=rounds,
            model=model,
            codec=codec,
            per_round=PER_ROUND,
            backend=backend,
            dilation=DILATION[link],
        )
        + groups,
        encoding="utf-8",
    )
    experiment = load_experiment(source)
    if info_file.exists():
        info = msgspec.json.decode(info_file.read_bytes(), type=CellInfo)
        if info.experiment != experiment.hash():
            raise RunError(
                f"{info_file}: must be a cell with these settings, got other ones; name another "
                "folder"
            )
        return info
    began = time.monotonic()
    run = play_live(experiment, out / "runs" / name, lambda line: print(line, flush=True))
    with RunReader(run) as reader:
        exchanges, truths = reader.exchanges(), reader.truths()
    key = dict(zip(("run", "fleet", "link", "model", "codec"), (name, *cell), strict=True))
    write_rows(out / "cells" / f"{name}.csv.xz", rows_of(key, exchanges, truths))
    info = CellInfo(
        cell=name,
        experiment=experiment.hash(),
        exchanges=len(exchanges),
        timed=sum(x.outcome == "done" and x.is_valid and x.tau_s is not None for x in exchanges),
        collected=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        took_s=round(time.monotonic() - began, 1),
        load=round(os.getloadavg()[0], 2),
        machine=f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
    )
    info_file.write_bytes(msgspec.json.encode(info))
    shutil.rmtree(run)
    return info


def _assemble(out: Path) -> None:
    """Write the file of all finished cells, in the order of their names."""
    write_rows(out / FILE, _lines(out))


def _lines(out: Path) -> Iterator[list[str]]:
    for info in sorted((out / "cells").glob("*.json")):
        yield from lines_of(info.with_suffix(".csv.xz"))


__all__ = ["COLUMNS", "FILE", "collect", "main", "planned"]
