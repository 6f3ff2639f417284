"""Processor share and step times of emulated devices against what they should be.

    fairbed bench cpu-fidelity [--json] [--repeats 3] [--patience 60]

Per backend: the share of a process that never pauses (namespace only: nothing else holds back a
process that does not pace itself), the time of steps in a long compute section, and of the first
step after idling, which a quota alone would let run at full speed. A value is the median of its
repeats; `spread` is their least and greatest. A repeat counts when the device waited for other
programs for less than 5 % of the time. Otherwise it is tried again while patience lasts, and a row
without a repeat that counts is not `ok`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from benchmarks._labour import Labour, Wages
from testbed.backends.cells import passing_name
from testbed.backends.cgroups.group import Group
from testbed.backends.cgroups.places import find_places

SHARES = (0.05, 0.1, 0.25, 0.5, 1.0, 1.5)
STEPS_S = (0.005, 0.02, 0.1)

SHARE_S = 2.5
STEPS_FOR_S = 2.0
"""Of a row of steps, at the device's speed."""

SHARE_LIMIT = 0.03
STEP_LIMIT = 0.05

WAIT_LIMIT = 0.05
"""Share of the time for which a device may have waited for other programs."""

TIMEOUT_S = 60.0

PAUSE_S = 1.0
"""Before the next try, when this machine was busy."""


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of one backend."""

    backend: Literal["namespace", "process"]
    quantity: str
    target: float
    achieved: float | None
    """Median; None was never measured while this machine was free."""
    spread: tuple[float, float] | None
    error: float | None
    """achieved / target - 1."""
    limit: float
    repeats: int
    ok: bool


def main(arguments: list[str]) -> int:
    """Run the benchmark and print what it measured; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench cpu-fidelity", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for each row")
    options = parser.parse_args(arguments)
    rows = []
    for row in _rows(options.repeats, options.patience):
        rows.append(row)
        if not options.json:
            print(_line(row), flush=True)
    if options.json:
        print(msgspec.json.encode(rows).decode())
    return 0


def _rows(repeats: int, patience_s: float) -> Iterator[Row]:
    for share in SHARES:
        labour = Labour(kind="share", speed_ratio=share, cell=None, duration_s=SHARE_S)
        ratios = _repeat(labour, repeats, patience_s, in_cell=True)
        yield _row("namespace", f"share {share:g}", share, ratios, SHARE_LIMIT)
    backends: tuple[Literal["namespace", "process"], ...] = ("namespace", "process")
    for backend in backends:
        for share in SHARES[:-1]:
            for step_s in STEPS_S:
                for kind in ("steady", "first"):
                    labour = _steps(kind, share, step_s)
                    ratios = _repeat(labour, repeats, patience_s, in_cell=backend == "namespace")
                    name = f"{kind} step of {1e3 * step_s:g} ms at {share:g}"
                    yield _row(backend, name, step_s / share, ratios, STEP_LIMIT)


def _steps(kind: Literal["steady", "first"], share: float, step_s: float) -> Labour:
    count = max(3, min(30 if kind == "steady" else 6, int(STEPS_FOR_S * share / step_s)))
    return Labour(kind=kind, speed_ratio=share, cell=None, step_s=step_s, steps=count)


def _repeat(labour: Labour, repeats: int, patience_s: float, *, in_cell: bool) -> list[float]:
    """Return the mean ratio of each repeat in which the device hardly had to wait."""
    found: list[float] = []
    deadline = time.monotonic() + patience_s
    while len(found) < repeats and time.monotonic() < deadline:
        started = time.monotonic()
        wages, waited_s = _in_cell(labour) if in_cell else _outside(labour)
        if waited_s <= WAIT_LIMIT * (time.monotonic() - started):
            found.append(statistics.fmean(wages.ratios))
        else:
            time.sleep(PAUSE_S)
    return found


def _in_cell(labour: Labour) -> tuple[Wages, float]:
    group = Group(find_places(), passing_name())
    group.make()
    try:
        group.limit_cpu(labour.speed_ratio)
        wages = _measure(msgspec.structs.replace(labour, cell=group.cell()))
        return wages, group.usage().starved_s or 0.0
    finally:
        group.remove()


def _outside(labour: Labour) -> tuple[Wages, float]:
    wages = _measure(labour)
    return wages, wages.waited_s


def _measure(labour: Labour) -> Wages:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._labour"],
        input=msgspec.json.encode(labour),
        stdout=subprocess.PIPE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        timeout=TIMEOUT_S,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Wages)


def _row(
    backend: Literal["namespace", "process"],
    quantity: str,
    target: float,
    ratios: list[float],
    limit: float,
) -> Row:
    if not ratios:
        return Row(backend, quantity, target, None, None, None, limit, 0, ok=False)
    error = statistics.median(ratios) - 1.0
    return Row(
        backend=backend,
        quantity=quantity,
        target=target,
        achieved=target * (1.0 + error),
        spread=(target * min(ratios), target * max(ratios)),
        error=error,
        limit=limit,
        repeats=len(ratios),
        ok=abs(error) <= limit,
    )


def _line(row: Row) -> str:
    if row.error is None or row.spread is None:
        return f"{row.backend:<10} {row.quantity:<32}  this machine was never free"
    low, high = (number / row.target for number in row.spread)
    mark = "ok" if row.ok else f"beyond {row.limit:.0%}"
    return (
        f"{row.backend:<10} {row.quantity:<32} {1.0 + row.error:6.3f} of the target "
        f"({low:.3f} to {high:.3f}, {row.repeats} times)  {mark}"
    )
