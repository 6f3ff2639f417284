"""Cost of following traces: the driver, and the helper processes that apply its changes.

    fairbed bench trace-driver [--devices 100] [--seconds 30] [--backend none] [--step 0.1] [--json]

Every device has its own rates and clock, which change ten times a second; no agent runs. With
another `--step` the traces change at other intervals, each device at its own instants; the driver
applies the means over its ticks, ten times a second. `none`
applies nothing and shows the cost of the driver itself. `process` changes proxies, `namespace` the
kernel's links and quotas (root).
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, get_args

import anyio
import msgspec
import numpy as np
import psutil

from fairbed import profiles
from fairbed.profiles.series import Series
from fairbed.profiles.tracks import LinkTracks
from fairbed.testbed.backends.base import DeviceSpec, device_spec
from fairbed.testbed.backends.choice import open_backend
from fairbed.testbed.backends.cpu_time import cpu_s
from fairbed.testbed.backends.proxy.protocol import Shape
from fairbed.testbed.backends.schedule_driver import TICK_S, Driven, ScheduleDriver
from fairbed.testbed.emulation.conditions import Conditions
from fairbed.testbed.emulation.schedule import Schedule, ScheduleFollower, Speed

PERIOD_S = 60.0
"""Length of the traces, which then repeat."""

MIN_STEP_S = 1e-3
"""Shortest step of traces, seconds."""

UNUSED_URL = "mqtt://127.0.0.1:1"
"""Broker address that is never used, because no agent runs."""

Choice = Literal["none", "process", "namespace", "container"]


class _NoBackend:
    """Applies nothing."""

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        await anyio.lowlevel.checkpoint()

    def cpu_s(self, name: str) -> float | None:
        return 0.0


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench trace-driver", description=__doc__)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--backend", choices=get_args(Choice), default="none")
    parser.add_argument(
        "--step", type=float, default=TICK_S, help="seconds between two rates of a trace"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if not MIN_STEP_S <= options.step <= PERIOD_S:
        parser.error(f"--step: must be from {MIN_STEP_S:g} to {PERIOD_S:g}, got {options.step:g}")
    result = anyio.run(measure, options.backend, options.devices, options.seconds, options.step)
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        for key, value in result.items():
            print(f"{key:<28}{value:.5g}")
    return 0


async def measure(
    choice: Choice, devices: int, seconds: float, step_s: float = TICK_S
) -> dict[str, float]:
    """Return cores and lateness of `devices` whose traces change every `step_s` for `seconds`."""
    rng = np.random.default_rng(7)
    followers = {f"device-{number}": _follower(rng, step_s) for number in range(devices)}
    notes = 0

    def note(name: str, stretch: object) -> None:
        nonlocal notes
        notes += 1

    async with _backend(choice, list(followers)) as backend:
        driver = ScheduleDriver(backend, followers, note=note)
        helpers = [process.pid for process in psutil.Process().children(recursive=True)]
        own_before, helpers_before = time.process_time(), _cpu_s(helpers)
        since = time.monotonic()
        with anyio.move_on_after(seconds):
            await driver.run()
        wall_s = time.monotonic() - since
        own, others = time.process_time() - own_before, _cpu_s(helpers) - helpers_before
    punctuality = driver.punctuality
    return {
        "devices": devices,
        "changes_per_s": punctuality.changes / wall_s,
        "driver_cores": own / wall_s,
        "helper_cores": others / wall_s,
        "rows_per_s": notes / wall_s,
        "ticks": punctuality.ticks,
        "skipped": punctuality.skipped,
        "late_p50_ms": 1e3 * punctuality.late_p50_s,
        "late_p99_ms": 1e3 * punctuality.late_p99_s,
        "late_max_ms": 1e3 * punctuality.late_max_s,
    }


def _follower(rng: np.random.Generator, step_s: float) -> ScheduleFollower:
    steps = round(PERIOD_S / step_s)
    rates = (rng.lognormal(15.5, 0.8, size=(2, steps))).tolist()
    clock = rng.uniform(0.5, 1.0, size=steps).tolist()
    start_s = 0.0 if step_s == TICK_S else float(rng.uniform(0.0, PERIOD_S))
    nothing = Series.constant(0.0)

    def followed(values: list[float]) -> Series:
        return Series.sampled(values, step_s).starting_at(start_s)

    link = LinkTracks(
        down_bps=followed(rates[0]),
        up_bps=followed(rates[1]),
        delay_s=nothing,
        jitter_s=nothing,
        loss_ratio=nothing,
    )
    speed = Speed(
        per_core=0.4,
        threads=1,
        cores=4,
        clock_ratio=followed(clock),
        background_load=nothing,
    )
    return ScheduleFollower(Schedule(speed=speed, link=link))


@asynccontextmanager
async def _backend(choice: Choice, names: list[str]) -> AsyncIterator[Driven]:
    if choice == "none":
        yield _NoBackend()
        return
    pi = profiles.load("raspberry-pi-4b")
    shape = Shape(down_bps=5e6, up_bps=5e6)
    fleet = [
        DeviceSpec(name, device_spec(name, pi).device, shape, is_driven=True) for name in names
    ]
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        run_id = f"bench-{time.monotonic_ns() % 10**8}"
        async with (
            open_backend(choice, fleet, Path(folder), run_id) as stage,
            stage.backend(UNUSED_URL) as backend,
        ):
            yield backend


def _cpu_s(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            total += cpu_s(pid) or 0.0
    return total
