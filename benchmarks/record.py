"""Accuracy of recordings: the recorded profile of an emulated device against the original one.

    fairbed bench record [--backend process] [--rounds 40] [--seed 1] [--json]

Two devices take part in a run, one with a constant and one with a variable link. Both are recorded,
and the recorded profiles are emulated again. Only exchanges without contention count; with too few
of them a row is unknown. The last row is the cost of sampling.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks._fidelity.rows import QuantitySpec, Row, row_of, unknown
from benchmarks._fidelity.table import plain
from benchmarks._fidelity.windows import Finding
from benchmarks._recording import SPEEDS, Setting, prepare, record, run
from fairbed import profiles
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.profiles.series import Series
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.recording.analysis.from_run import transfers, valid
from fairbed.testbed.recording.machine import MachineReader, own_s, sample
from fairbed.testbed.recording.run_store import CONFIG, read_device

MIN_EXCHANGES = 8
"""Least number of valid exchanges of a known row."""

WATCH_S = 20.0

SPEED_LIMIT = RATE_LIMIT = 0.03
VOLUME_LIMIT, MOMENT_LIMIT = 0.02, 0.05
DELAY_LIMIT_S = 3e-3
WATCH_LIMIT = 0.01
TAU_LIMIT = 0.05
"""Limits of errors: relative, except for the delay."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench record",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", default="process")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        setting = Setting(Path(name), options.backend, options.rounds, options.seed)
        rows = [*measure(setting), watching(setting.backend, WATCH_S)]
    print(msgspec.json.encode(rows).decode() if options.json else plain(rows))
    return 0


def measure(setting: Setting) -> Iterator[Row]:
    """Yield rows that compare the recorded with the original profiles, and the two runs."""
    prepare(setting)
    first = run(setting, "first", *map(setting.original, SPEEDS))
    record(setting, first)
    second = run(setting, "second", *map(setting.recorded, SPEEDS))
    planned = {
        device.spec.name: device
        for device in plan_fleet(load_experiment(first / CONFIG), os.environ)
    }
    for kind in SPEEDS:
        device = f"{kind}-1"
        seen = valid(read_device(first, device).exchanges)
        again = valid(read_device(second, device).exchanges)
        make_row = _RowMaker(setting.backend, kind, len(seen))
        original = profiles.load(setting.original(kind))
        found = profiles.load(setting.recorded(kind))
        yield make_row("core_speed", original.core_speed, found.core_speed, "cores", SPEED_LIMIT)
        delays = original.link.delay_s, found.link.delay_s
        yield make_row("delay_s", *delays, "s", DELAY_LIMIT_S, is_relative=False)
        if kind == "steady":
            for direction in ("down_bps", "up_bps"):
                rates = getattr(original.link, direction), getattr(found.link, direction)
                yield make_row(direction, *rates, "bit/s", RATE_LIMIT)
        else:
            link = planned[device].tracks.link
            assert link is not None
            yield from _variable(make_row, seen, {"down": link.down_bps, "up": link.up_bps})
        make_row = _RowMaker(setting.backend, f"{kind}, emulated again", min(len(seen), len(again)))
        limit = TAU_LIMIT if kind == "steady" else None
        for phase in ("tau_s", "train_s", "download_s", "upload_s"):
            yield make_row(
                f"median {phase}", _median(seen, phase), _median(again, phase), "s", limit
            )


def _variable(
    make_row: "_RowMaker", exchanges: Sequence[ExchangeRow], truth: dict[str, Series]
) -> Iterator[Row]:
    for direction, all_transfers in zip(("down", "up"), transfers(exchanges), strict=True):
        known = [item for item in all_transfers if item is not None]
        true_bits = np.array([truth[direction].integral(x.start_s, x.end_s) for x in known])
        bits = np.array([8.0 * item.n_bytes for item in known])
        total = float(true_bits.sum()) / 8.0, float(bits.sum()) / 8.0
        yield make_row(f"{direction}, bytes in transfers", *total, "bytes", VOLUME_LIMIT)
        error = 1.0 + float(np.median(np.abs(bits / true_bits - 1.0))) if known else 1.0
        yield make_row(f"{direction}, a transfer", 1.0, error, "ratio", MOMENT_LIMIT)


class _RowMaker:
    """Returns rows of one device; they are unknown if it has too few valid exchanges."""

    def __init__(self, backend: str, what: str, n_valid: int) -> None:
        self._backend, self._what, self._n_valid = backend, what, n_valid

    def __call__(
        self,
        quantity: str,
        target: float,
        achieved: float,
        unit: str,
        limit: float | None,
        *,
        is_relative: bool = True,
    ) -> Row:
        spec = QuantitySpec(
            backend=self._backend,
            quantity=f"{self._what}: {quantity}",
            target=target,
            unit=unit,  # type: ignore[arg-type]  # one of those that rows know
            limit=limit,
            is_relative=is_relative,
        )
        if self._n_valid < MIN_EXCHANGES:
            return unknown(spec, f"{self._n_valid} valid exchanges: this machine was too busy")
        return row_of(spec, _found(achieved, self._n_valid))


def watching(backend: str, duration_s: float) -> Row:
    """Return the share of a core that sampling this machine costs."""
    reader = MachineReader()
    cpu_s, began_s = own_s(), time.monotonic()
    samples = len(sample(reader, duration_s))
    ratio = (own_s() - cpu_s) / (time.monotonic() - began_s)
    spec = QuantitySpec(
        backend=backend,
        quantity="sampling, share of a core",
        target=None,
        unit="ratio",
        limit=WATCH_LIMIT,
        is_bound=True,
    )
    return row_of(spec, _found(ratio, samples))


def _found(value: float, n_valid: int) -> Finding:
    return Finding(value=value, low=None, high=None, valid=n_valid, attempts=n_valid, reason=None)


def _median(exchanges: Sequence[ExchangeRow], phase: str) -> float:
    """Return the median of a phase without cold exchanges."""
    known = [getattr(x, phase) for x in exchanges if not x.was_cold]
    return statistics.median(known) if known else float("nan")
