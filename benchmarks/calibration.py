"""Repeatability of a calibration: the cost of the same training step, measured again and again.

    fairbed bench calibration [--times 20] [--model cnn] [--shape 1,28,28]
                              [--classes 10] [--batch-size 20] [--json]

Each measurement runs in a child process and reads no cache. A run charges the step as a multiple
of the reference step, which is measured once per machine: that ratio is the first row, and has the
limit. The second row is the same cost in seconds, as a calibration without a reference step beside
it would have it.
"""

import argparse
from collections.abc import Sequence

import anyio
import msgspec
import numpy as np
from msgspec import Struct

from fairbed.coordinator.policy.config import TrainingConfig
from fairbed.coordinator.task.catalogue import load_task
from fairbed.testbed.host.calibration import Measured, Probe, measure_in_child
from fairbed.testbed.progress import tracked

LIMIT = 0.03
"""Largest relative distance of a calibration from their median."""


class Row(Struct, frozen=True, kw_only=True):
    """One quantity over all calibrations."""

    quantity: str
    unit: str
    median: float
    low: float
    """Least value relative to the median; `high` is the greatest."""
    high: float
    limit: float | None
    ok: bool | None
    """None without a limit."""
    values: list[float]


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench calibration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--shape", default="1,28,28", help="of one example")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    shape = tuple(int(size) for size in options.shape.split(","))
    artifact = load_task(options.model, shape, options.classes)
    probe = Probe.of(artifact, TrainingConfig(batch_size=options.batch_size))
    found = [
        anyio.run(measure_in_child, probe)
        for _ in tracked(range(options.times), "calibrations", "calibration")
    ]
    rows = rows_of(found)
    print(msgspec.json.encode(rows).decode() if options.json else _table(rows, found))
    return 0


def rows_of(found: Sequence[Measured]) -> list[Row]:
    """Return the rows of calibrations of one task."""
    relative = [one.costs.train.seconds(one.batch_size) / one.reference_s for one in found]
    seconds = [one.costs.train.seconds(one.batch_size) for one in found]
    return [
        _row("training step, relative to the reference step", "ratio", relative, LIMIT),
        _row("training step, processor time", "s", seconds, None),
    ]


def _row(quantity: str, unit: str, values: list[float], limit: float | None) -> Row:
    middle = float(np.median(values))
    low, high = min(values) / middle - 1.0, max(values) / middle - 1.0
    ok = None if limit is None else max(-low, high) <= limit
    return Row(
        quantity=quantity,
        unit=unit,
        median=middle,
        low=low,
        high=high,
        limit=limit,
        ok=ok,
        values=values,
    )


def _table(rows: Sequence[Row], found: Sequence[Measured]) -> str:
    lines = []
    for row in rows:
        mark = "" if row.ok is None else f"  {'ok' if row.ok else 'FAILED'}"
        limit = "" if row.limit is None else f" (limit {row.limit:.0%})"
        lines.append(
            f"{row.quantity:<46} {row.median:.4g} {row.unit}  {row.low:+.1%} to {row.high:+.1%}"
            f"{limit}{mark}"
        )
    spread = float(np.median([one.spread_ratio for one in found]))
    lines.append(
        f"{len(found)} calibrations; the median of the spreads that they state: {spread:.1%}"
    )
    return "\n".join(lines)
