"""Predicted beside measured share of untimed exchanges, and the delays of this machine.

    fairbed bench dilation [--settings 4:4:1,120:4:8] [--backend namespace] [--model mlp]
                           [--epochs 1] [--rounds 20] [--others 0] [--set KEY=VALUE] [--json]
                           [--from ROWS.json ...]

Runs a fleet of Raspberry Pi 4B with handwritten digits for each of the settings
`devices:per_round:dilation`, where the dilation may be `auto`. The prediction is the one that a run
states before its first round (`testbed/emulation/machine_delay.py`); the first exchange of each
run does not count. Delays are those that make an exchange untimed, in seconds of this machine.

The last line fits the constants of the prediction to all exchanges: the median delay over devices
at once per core, and the standard deviation of its logarithm. Run it on a machine without other
load, or in a control group that has priority over it, with `--others 0`: delays grow several times
with other programs. `--json` prints the exchanges of one piece, and
`--from` prints the table of several.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import psutil
from scipy.optimize import nnls

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.store import RunReader
from fairbed.device_agent.sensors import real_host
from fairbed.testbed.emulation.machine_delay import (
    FIXED_S,
    OTHERS_S,
    QUEUED_S,
    SIGMA,
    ExchangeTimes,
    MachineDelay,
)
from fairbed.testbed.emulation.work import TaskCosts, WorkCosts
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.experiment.fleet import fleet_names
from fairbed.testbed.experiment.shards import FleetData, load_examples, task_of
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.host.other_load import runnable_tasks
from fairbed.testbed.host.speed import host_speed
from fairbed.testbed.progress import tracked
from fairbed.testbed.replay.expected import expected_exchanges
from fairbed.testbed.run_folder import WORK

SETTINGS = "4:4:1,4:4:4,12:12:4,120:4:8,24:24:16,120:4:auto"
LIMIT_S = 300.0
"""Time limit of a run, seconds."""

EXPERIMENT = """
name = "dilation"
seed = 3
rounds = {rounds}
[data]
dataset = "digits"
[model]
name = "{model}"
[training]
epochs = {epochs}
batch_size = 20
[selection]
policy = "uniform"
per_round = {per_round}
[evaluation]
every = 0
[emulation]
backend = "{backend}"
dilation = {dilation}
host_core_speed = "auto"
[[fleet]]
profile = "raspberry-pi-4b"
count = {devices}
"""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The exchanges of one run beside their prediction."""

    setting: str
    model: str
    backend: str
    at_once: int
    cores: float
    others: float
    """Cores that other programs used during the run."""
    waiting: float
    """Threads of other programs that ran or waited before the run."""
    dilation: float
    cold_s: list[float]
    """Predicted times of exchanges that load session and data, seconds of the fleet."""
    warm_s: list[float]
    """The same of devices that have kept them."""
    warm_share: float
    untimed: list[bool]
    delay_s: list[float]
    """Delays of each exchange, seconds of this machine."""
    tau_s: list[float]
    """Times of the exchanges, seconds of the fleet."""

    def times(self) -> ExchangeTimes:
        """Return the predicted times."""
        return ExchangeTimes(np.array([self.cold_s]), np.array([self.warm_s]), self.warm_share)


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the table; return the exit code.

    Raises:
        UsageError: A setting is not three numbers, or a file has no rows.
        RunError: A run failed.
    """
    parser = argparse.ArgumentParser(
        prog="fairbed bench dilation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--settings", default=SETTINGS, help="devices:per_round:dilation, with commas between")
    add("--backend", default="auto", help="of the devices (default auto)")
    add("--model", default="mlp", help="softmax, mlp or cnn (default mlp)")
    add("--epochs", type=int, default=1, help="of local training (default 1)")
    add("--rounds", type=int, default=20, help="of each run (default 20)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="as for `fairbed run`")
    add("--others", type=float, help="threads of other programs, in the place of those counted")
    add("--json", action="store_true", help="the exchanges, as one JSON list")
    add("--from", nargs="+", type=Path, dest="files", metavar="ROWS", help="of earlier `--json`")
    options = parser.parse_args(arguments)
    if options.files:
        rows = [row for file in options.files for row in _read(file)]
    else:
        settings = [_setting(text) for text in options.settings.split(",")]
        rows = [measure(setting, options) for setting in tracked(settings, "runs", "dilation")]
    print(msgspec.json.encode(rows).decode() if options.json else "\n".join(table(rows)))
    return 0


def _read(file: Path) -> list[Measured]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Measured])
    except (OSError, msgspec.MsgspecError) as exc:
        raise UsageError(
            f"bench dilation: {file} must have rows of --json, got {exc}; write it with --json"
        ) from exc


def _setting(text: str) -> tuple[int, int, str]:
    try:
        devices, per_round, dilation = text.split(":")
        if dilation != "auto":
            float(dilation)
        return int(devices), int(per_round), dilation
    except ValueError as exc:
        raise UsageError(
            f"bench dilation: a setting must be devices:per_round:dilation, got {text!r}; "
            "change --settings"
        ) from exc


def measure(setting: tuple[int, int, str], options: argparse.Namespace) -> Measured:
    """Run one setting; return its exchanges beside their prediction.

    Raises:
        RunError: The run failed.
    """
    devices, per_round, dilation = setting
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder, file = Path(name) / "run", Path(name) / "experiment.toml"
        text = EXPERIMENT.format(
            rounds=options.rounds,
            model=options.model,
            epochs=options.epochs,
            per_round=per_round,
            backend=options.backend,
            dilation='"auto"' if dilation == "auto" else dilation,
            devices=devices,
        )
        file.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "fairbed.testbed.cli.main", "run", str(file)]
        command += ["--headless", "--json", "--out", str(folder)]
        for one in options.set:
            command += ["--set", one]
        waiting = runnable_tasks() if options.others is None else options.others
        begun, busy_s = time.monotonic(), _others_s()
        done = subprocess.run(
            guarded(command), capture_output=True, encoding="utf-8", check=False, timeout=LIMIT_S
        )
        if done.returncode:
            raise RunError(f"the run failed: {done.stderr.strip()[-300:]}")
        others = (_others_s() - busy_s) / (time.monotonic() - begun)
        return read(folder, ":".join(map(str, setting)), others, waiting)


def _others_s() -> float:
    """Return the processor time of this machine without that of ended runs, seconds."""
    all_s, own = psutil.cpu_times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    busy_s = sum(all_s) - all_s.idle - getattr(all_s, "iowait", 0.0)
    return float(busy_s - own.ru_utime - own.ru_stime)


def read(folder: Path, setting: str, others: float, waiting: float) -> Measured:
    """Return the exchanges of a run beside their prediction.

    Args:
        folder: Folder of the run.
        setting: Its setting.
        others: Cores that other programs used meanwhile.
        waiting: Other runnable threads before the run.
    """
    experiment = load_experiment(folder / "experiment.toml")
    with RunReader(folder) as reader:
        k = reader.run().row.dilation
        rows = [row for row in reader.exchanges(0) if row.tau_s is not None]
        backend = next(e.text for _, e in reader.events() if e.kind == "backend")
    rows = sorted(rows, key=lambda row: row.dispatched_at_s)[1:]
    dataset = load_examples(experiment, os.environ)
    speed = experiment.emulation.host_core_speed
    costs = TaskCosts.of(
        msgspec.json.decode((folder / WORK).read_bytes(), type=WorkCosts),
        host_speed(os.environ).core_speed if speed == "auto" else speed,
    )
    data = FleetData.planned(experiment, dataset, fleet_names(experiment))
    times = expected_exchanges(experiment, data, task_of(experiment, dataset), costs)
    assert times is not None, "the devices have profiles"
    at_once, cores = experiment.coordinator().cohort_size, real_host().sensors.cores()
    return Measured(
        setting=setting,
        model=experiment.model.name,
        backend=backend.partition(" backend")[0].split()[-1],
        at_once=at_once,
        cores=cores,
        others=max(others, 0.0),
        waiting=waiting,
        dilation=k,
        cold_s=times.cold_s.ravel().tolist(),
        warm_s=times.warm_s.ravel().tolist(),
        warm_share=times.warm_share,
        untimed=[row.is_contended for row in rows],
        delay_s=[k * ((row.contended_s or 0.0) + row.lag_s) for row in rows],
        tau_s=[row.tau_s or 0.0 for row in rows],
    )


def table(rows: Sequence[Measured]) -> list[str]:
    """Return the runs of each setting as a line of Markdown, and the constants that fit them."""
    lines = [
        "| devices, at once, dilation | model, backend | runs, exchanges | other threads, cores "
        "| predicted untimed | measured, least, all, most | delay, p16, p50, p84, ms "
        "| predicted, ms | exchange, predicted, measured median, ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, str, bool], list[Measured]] = defaultdict(list)
    for row in rows:
        groups[row.setting, row.model, row.backend, row.waiting > 0.0].append(row)
    for (setting, model, backend, _), runs in groups.items():
        low, median, high = 1e3 * np.quantile(_all(runs, "delay_s"), (0.16, 0.5, 0.84))
        waiting = np.mean([run.waiting for run in runs])
        one, dilations = runs[0], sorted({run.dilation for run in runs})
        delay, times = MachineDelay.of(one.at_once, one.cores, float(waiting)), one.times()
        ends = ", ".join(f"{1e3 * delay.quantile_s(z):.1f}" for z in (-1.0, 0.0, 1.0))
        devices, per_round, configured = setting.split(":")
        k = " to ".join(f"{k:g}" for k in dilations) + (" (auto)" if configured == "auto" else "")
        predicted = np.mean([_predicted(run) for run in runs])
        typical_s = times.warm_s if times.warm_share > 0.5 else times.cold_s
        untimed = [float(np.mean(run.untimed)) for run in runs]
        of_all = np.mean(_all(runs, "untimed"))
        lines.append(
            f"| {devices}, {per_round}, {k} | {model}, {backend} "
            f"| {len(runs)}, {len(_all(runs, 'untimed'))} "
            f"| {waiting:.1f}, {np.mean([run.others for run in runs]):.1f} "
            f"| {predicted:.0%} "
            f"| {min(untimed):.0%}, {of_all:.0%}, {max(untimed):.0%} "
            f"| {low:.1f}, {median:.1f}, {high:.1f} | {ends} "
            f"| {1e3 * np.nanmedian(typical_s):.0f}, {1e3 * np.median(_all(runs, 'tau_s')):.0f} |"
        )
    fixed_s, queued_s, others_s, sigma = fitted(rows)
    return [
        *lines,
        "",
        f"fit: {1e3 * fixed_s:.2f} ms + ({1e3 * queued_s:.2f} ms per device at once "
        f"+ {1e3 * others_s:.2f} ms per other thread) / cores, sigma {sigma:.2f}; "
        f"in use: {1e3 * FIXED_S:.2f}, {1e3 * QUEUED_S:.2f}, {1e3 * OTHERS_S:.2f}, {SIGMA:g}",
    ]


def _predicted(run: Measured) -> float:
    delay = MachineDelay.of(run.at_once, run.cores, run.waiting)
    return delay.untimed_share(run.times(), run.dilation)


def _all(runs: Sequence[Measured], name: str) -> Floats:
    """Return a column of all exchanges of runs."""
    found: Floats = np.concatenate([np.array(getattr(run, name), dtype=float) for run in runs])
    return found


def fitted(rows: Sequence[Measured]) -> tuple[float, float, float, float]:
    """Return `FIXED_S`, `QUEUED_S`, `OTHERS_S` and `SIGMA` that fit the exchanges of runs.

    The first three are at least 0, and fit the medians of the runs with least relative errors.
    """
    median_s = np.array([np.median(row.delay_s) for row in rows])
    loads = [(1.0, row.at_once / row.cores, row.waiting / row.cores) for row in rows]
    columns = np.array(loads)
    found, _ = nnls(columns / median_s[:, np.newaxis], np.ones(len(rows)))
    expected_s = columns @ found
    logs = [
        np.log(np.maximum(row.delay_s, 1e-4) / one)
        for row, one in zip(rows, expected_s.tolist(), strict=True)
    ]
    fixed_s, queued_s, others_s = found.tolist()
    return fixed_s, queued_s, others_s, float(np.std(np.concatenate(logs)))
