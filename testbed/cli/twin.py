"""`fairbed twin`: the devices of a run beside their recorded profiles, phase by phase."""

import argparse
from collections.abc import Iterator, Sequence

import msgspec

from fairbed import profiles
from fairbed.coordinator.store import RunNotFoundError, StoreError, resolve_run
from fairbed.profiles import ProfileError
from fairbed.testbed.cli import DONE
from fairbed.testbed.compare.twin import (
    DeviceTwin,
    compare_device,
    physical_devices,
    read_task,
)
from fairbed.testbed.errors import BackendError, RunError, UsageError
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.host.termination import unwound_by_signals
from fairbed.testbed.recording.analysis.twin import PhaseTwin
from fairbed.testbed.recording.run_store import NoSuchDevice

MANIFOLD = 9.0
"""A larger relative difference is printed as a multiple."""


def main(options: argparse.Namespace) -> int:
    """Print each device beside its twin; return the exit code."""
    try:
        with unwound_by_signals():
            twins = list(_twins(options))
    except (DatasetError, NoSuchDevice, ProfileError, RunNotFoundError) as exc:
        raise UsageError(str(exc)) from exc
    except (BackendError, ExperimentError, StoreError) as exc:
        raise RunError(str(exc)) from exc
    if options.json:
        print(msgspec.json.encode(twins).decode())
    else:
        print("\n\n".join("\n".join(_table(twin)) for twin in twins))
    return DONE


def _twins(options: argparse.Namespace) -> Iterator[DeviceTwin]:
    folder = resolve_run(options.runs, options.run)
    names: Sequence[str] = options.device or physical_devices(folder)
    if not names:
        raise UsageError(
            f"{folder}: must have a physical device, got none; name an emulated one to compare it"
        )
    found = []
    for name in names:
        path = options.profiles / f"{name}.toml"
        if not path.is_file():
            raise UsageError(
                f"{path}: no such profile; record it: fairbed record {name} --run {options.run}, "
                "or name its folder with --profiles"
            )
        found.append((name, path, profiles.load(path)))
    task = read_task(folder)
    for name, path, profile in found:
        yield compare_device(folder, name, path, profile, task)


def _table(twin: DeviceTwin) -> Iterator[str]:
    """Yield the table of a device, then a line for each number of the profile that is off."""
    yield f"{twin.device}: {twin.exchanges} exchanges beside the twin of {twin.profile}"
    yield f"  {'phase':<12}{'device':>10}{'twin':>10}{'difference':>12}"
    for row in twin.phases:
        yield (
            f"  {_phase(row):<12}{_time(row.device_s):>10}{_time(row.twin_s):>10}"
            f"{_difference(row):>12}"
        )
    off: dict[str, list[PhaseTwin]] = {}
    for row in twin.phases:
        if row.is_off:
            off.setdefault(_verdict(row), []).append(row)
    for verdict, rows in off.items():
        then = [_time(row.twin_then_s) for row in rows if row.twin_then_s is not None]
        after = f"; with it the twin takes {', '.join(then)}" if then else ""
        yield f"  off: {', '.join(map(_phase, rows))}: {verdict}{after}"
    if not off:
        yield "  no phase is off: no number of the profile needs a correction"


def _difference(row: PhaseTwin) -> str:
    if row.device_s == 0.0:
        return "-"
    ratio = row.difference
    return f"{ratio:+.0%}" if ratio < MANIFOLD else f"{1.0 + ratio:.0f} times"


def _verdict(row: PhaseTwin) -> str:
    if row.key is None or row.fits is None:
        return row.reason
    was = "absent" if row.value is None else f"{row.value:g}"
    ratio = "" if not row.value else f", {row.fits / row.value - 1.0:+.0%}"
    return f"{row.key} is {was}, and {row.fits:g} fits{ratio} ({row.reason})"


def _phase(row: PhaseTwin) -> str:
    return row.phase.removesuffix("_s")


def _time(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1.0 else f"{1e3 * seconds:.1f} ms"
