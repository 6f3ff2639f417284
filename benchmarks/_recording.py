"""Devices that are recorded in a run, and emulated again with the recorded profiles."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks._live_run import save_random_examples
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.run_folder import WORK

SPEEDS = {"steady": 0.2, "moving": 0.3}
DOWN_BPS, UP_BPS, DELAY_S = 16e6, 8e6, 0.02
"""Of the constant link, and means of the variable one."""

STEP_S, STEPS = 3.0, 20
"""Length and number of the steps of the variable link, which then repeats."""

SPREAD, CORRELATION = 0.5, 0.8
"""Standard deviation of the logarithm of its rates, and correlation of successive steps: a phone
in a car."""

EXAMPLES = 8000
"""Examples of both devices; a fifth is held out. Transfers are then most of an exchange."""

HOST_CORE_SPEED = 4.0
"""A large value makes devices slow, which leaves processor time for broker and links."""

LIMIT_S = 600.0

PROFILE = """
title = "{name} device of a benchmark"
class = "board"
licence = "made for a benchmark"
cores = {{ value = 4, tag = "literature", source = "made for a benchmark" }}
core_speed = {{ value = {speed}, tag = "literature", source = "made for a benchmark" }}
memory_bytes = {{ value = 4294967296, tag = "literature", source = "made for a benchmark" }}
storage_read_bytes_per_s = {{ value = 40e6, tag = "literature", source = "made for a benchmark" }}
background_load = {{ value = 0.05, tag = "literature", source = "made for a benchmark" }}
engine_threads = {{ value = 1, tag = "literature", source = "made for a benchmark" }}
[link]
down_bps = {{ value = {down}, tag = "literature", source = "made for a benchmark"{trace} }}
up_bps = {{ value = {up}, tag = "literature", source = "made for a benchmark"{trace} }}
delay_s = {{ value = {delay}, tag = "literature", source = "made for a benchmark" }}
"""

EXPERIMENT = """
name = "recording"
seed = {seed}
rounds = {rounds}
[data]
source = "{data}"
[model]
name = "mlp"
[selection]
policy = "uniform"
per_round = 2
[evaluation]
every = 0
[emulation]
backend = "{backend}"
host_core_speed = {speed}
[[fleet]]
name = "steady"
profile = "{steady}"
[[fleet]]
name = "moving"
profile = "{moving}"
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """Options of the runs."""

    folder: Path
    backend: str
    rounds: int
    seed: int

    def original(self, kind: str) -> Path:
        """Return the path of the profile with which a device is emulated."""
        return self.folder / f"{kind}.toml"

    def recorded(self, kind: str) -> Path:
        """Return the path of the profile that is recorded of it."""
        return self.folder / "recorded" / f"{kind}-1.toml"


def prepare(setting: Setting) -> None:
    """Write data and profiles."""
    save_random_examples(setting.folder / "random.npz", EXAMPLES)
    rng = np.random.Generator(np.random.PCG64(setting.seed))
    factors, last = [], 0.0
    for shock in rng.standard_normal(STEPS).tolist():
        last = CORRELATION * last + math.sqrt(1.0 - CORRELATION**2) * shock
        factors.append(math.exp(SPREAD * last))
    rows = [
        f"{STEP_S * i:g},{DOWN_BPS * factor:.0f},{UP_BPS * factor:.0f}"
        for i, factor in enumerate(factors)
    ]
    table = [f"# period_s = {STEP_S * STEPS:g}", "t_s,down_bps,up_bps", *rows]
    (setting.folder / "air.csv").write_text("\n".join(table) + "\n", encoding="utf-8")
    mean = sum(factors) / STEPS
    for kind, factor, trace in (("steady", 1.0, ""), ("moving", mean, ', trace = "air.csv"')):
        text = PROFILE.format(
            name=kind,
            speed=SPEEDS[kind],
            down=DOWN_BPS * factor,
            up=UP_BPS * factor,
            delay=DELAY_S,
            trace=trace,
        )
        setting.original(kind).write_text(text, encoding="utf-8")


def run(setting: Setting, name: str, steady: Path, moving: Path) -> Path:
    """Run both devices; return the folder of the run.

    All runs of a setting charge the step costs of the first one, so that they do not differ by the
    load of this machine during a calibration.

    Raises:
        SystemExit: The run failed.
    """
    experiment, folder = setting.folder / f"{name}.toml", setting.folder / name
    text = EXPERIMENT.format(
        seed=setting.seed,
        rounds=setting.rounds,
        data=setting.folder / "random.npz",
        backend=setting.backend,
        speed=HOST_CORE_SPEED,
        steady=steady,
        moving=moving,
    )
    experiment.write_text(text, encoding="utf-8")
    costs = setting.folder / WORK
    if costs.exists():
        folder.mkdir()
        shutil.copy(costs, folder)
    _fairbed("run", str(experiment), "--out", str(folder), "--headless", "--json")
    shutil.copy(folder / WORK, costs)
    return folder


def record(setting: Setting, run_folder: Path) -> None:
    """Record both devices of a run.

    Raises:
        SystemExit: One cannot be recorded.
    """
    for kind in SPEEDS:
        original = setting.original(kind)
        _fairbed(
            "record",
            f"{kind}-1",
            *("--run", str(run_folder), "--like", str(original)),
            *("--out", str(setting.folder / "recorded"), "--json"),
        )


def _fairbed(*arguments: str) -> object:
    command = guarded([sys.executable, "-m", "fairbed.testbed.cli.main", *arguments])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, encoding="utf-8", errors="replace"
    )
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise SystemExit(f"{arguments[0]} failed: {last_line}")
    return json.loads(done.stdout)
