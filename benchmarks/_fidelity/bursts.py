"""Bursts: the work that a device does at full speed after a pause, in processor time.

quota    any program under the quota alone, in namespaces and containers
start    from the start of a program in a new group until the quota stops it for the first time
shape    any program under `fairbed shape --backend process`
paced    steps of 1 ms with the pacing of an agent, from the begin of a section

The longest of several bursts counts: a burst that another program interrupts is too short.

`python -m benchmarks._fidelity.bursts COUNT IDLE_S LIMIT_S` prints the bursts as JSON.
"""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from benchmarks._fidelity import limits
from benchmarks._fidelity.cpu import IDLE_S, at_speed, device
from benchmarks._fidelity.end_commands import Burst, RunPaced, Steps
from benchmarks._fidelity.end_process import EndError
from benchmarks._fidelity.host_contention import stolen_s, watch
from benchmarks._fidelity.measure import Plan, measured_row
from benchmarks._fidelity.measured_device import FREE, MeasuredDevice
from benchmarks._fidelity.rows import QuantitySpec, Row
from benchmarks._fidelity.windows import Evidence, Window
from benchmarks._fidelity.work import STOP_S, burst
from fairbed.testbed.backends.base import DeviceSpec
from fairbed.testbed.backends.cgroups.fleet import limit_speed, open_groups
from fairbed.testbed.backends.cgroups.group import Group
from fairbed.testbed.host.guard import guarded

STEP_S = 1e-3
"""Processor time of a step of paced work."""

LONGEST_S = 0.6
"""Limit of a burst, seconds."""

START_S, POLL_S = 10.0, 0.3e-3
"""Limit until a program is stopped for the first time, and the time between two readings."""

ROOT = Path(__file__).parents[2]


async def bursts(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the bursts of a device at two speeds."""
    ways: tuple[tuple[str, _Measure], ...] = (("shape", _shaped), ("paced", _paced))
    if measured.backend != "process":
        ways = (("quota", _under_quota), ("start", _at_start), ("paced", _paced))
    rows = []
    for share in (0.8,) if plan.is_quick else limits.BURST_SHARES:
        for name, way in ways:
            spec = QuantitySpec(
                backend=measured.backend,
                quantity=f"burst at {100 * share:g} %, {name}",
                target=None,
                unit="s",
                limit=limits.burst(measured.backend, share, is_paced=name == "paced"),
                is_bound=True,
            )

            async def measure(share: float = share, way: _Measure = way) -> Window:
                return await way(measured, plan, share)

            rows.append(await measured_row(plan, spec, measure))
    return rows


_Measure = Callable[[MeasuredDevice, Plan, float], Awaitable[Window]]


def _command(plan: Plan) -> Burst:
    return Burst(count=round(plan.pick(12, 3)), idle_s=IDLE_S, limit_s=LONGEST_S)


async def _under_quota(measured: MeasuredDevice, plan: Plan, share: float) -> Window:
    await measured.apply(at_speed(share))
    with watch([], measured.contended_s) as contention:
        taken = await measured.inside.request(_command(plan), Steps)
    await measured.apply(FREE)
    return _window(max(taken.cpu_s), contention.wall_s, contention.stolen_s, contention.contended_s)


async def _at_start(measured: MeasuredDevice, plan: Plan, share: float) -> Window:
    found, wall_s, stolen, contended_s = list[float](), 0.0, 0.0, 0.0
    for _ in range(round(plan.pick(12, 1))):
        name = f"bench-{secrets.token_hex(4)}"
        spec = DeviceSpec(name, None, None)
        async with open_groups({name: spec}, {name: name}) as groups:
            group = groups[name]
            limit_speed(group, name, share)
            with watch([], partial(_contended_s, group)) as waits:
                found.append(await anyio.to_thread.run_sync(_started_burst, group))
        wall_s, stolen = wall_s + waits.wall_s, stolen + waits.stolen_s
        contended_s += waits.contended_s or 0.0
    return _window(max(found), wall_s, stolen, contended_s)


def _contended_s(group: Group) -> float:
    return group.usage().contended_s or 0.0


def _started_burst(group: Group) -> float:
    """Return the processor time of a new program until the quota stops it, seconds."""
    encoded = msgspec.json.encode(group.sandbox()).decode()
    inside = [sys.executable, "-m", "fairbed.testbed.backends.sandbox", str(os.getpid()), encoded]
    until = time.monotonic() + START_S
    with subprocess.Popen(guarded([*inside, "sh", "-c", "while :; do :; done"])) as program:
        try:
            used_s = 0.0
            while (usage := group.usage()).throttled_s == 0.0:  # counted when the stop ends
                used_s = usage.cpu_s
                if time.monotonic() > until:
                    raise EndError(f"fidelity: a program must be stopped within {START_S:g} s")
                time.sleep(POLL_S)
            return used_s
        finally:
            program.kill()


async def _paced(measured: MeasuredDevice, plan: Plan, share: float) -> Window:
    await measured.apply(at_speed(share))
    steps = round(LONGEST_S / STEP_S)
    command = RunPaced(
        device=device(),
        gauge=measured.gauge,
        sandbox=measured.sandbox,
        steps=steps,
        sections=round(plan.pick(4, 1)),
        idle_s=IDLE_S,
        spin_s=STEP_S,
    )
    with watch([], measured.contended_s) as contention:
        taken = await measured.inside.request(command, Steps)
    await measured.apply(FREE)
    found = max(
        until_stop(taken.wall_s[begin : begin + steps], taken.cpu_s[begin : begin + steps])
        for begin in range(0, len(taken.cpu_s), steps)
    )
    return _window(found, contention.wall_s, contention.stolen_s, contention.contended_s)


def until_stop(wall_s: list[float], cpu_s: list[float]) -> float:
    """Return the processor time of steps up to the first that contains a stop."""
    total_s = 0.0
    for wall, cpu in zip(wall_s, cpu_s, strict=True):
        total_s += cpu
        if wall - cpu >= STOP_S:
            break
    return total_s


async def _shaped(measured: MeasuredDevice, plan: Plan, share: float) -> Window:
    command = _command(plan)
    words = [str(command.count), str(command.idle_s), str(command.limit_s)]
    shape = ["-m", "fairbed.testbed.cli.main", "shape", "--backend", "process", "--cpu"]
    inside = [sys.executable, "-m", "benchmarks._fidelity.bursts", *words]
    stolen_before_s = stolen_s()
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        file = Path(folder) / "report.json"
        done = await anyio.run_process(
            [
                sys.executable,
                *shape,
                f"{share:g}",
                "--json",
                str(file),
                "--",
                *inside,
            ],
            check=False,
            cwd=ROOT,
            stderr=subprocess.PIPE,
        )
        if done.returncode != 0:
            raise EndError(f"fidelity: fairbed shape failed: {done.stderr.decode()[-200:]}")
        report = msgspec.json.decode(file.read_bytes(), type=_Report)
    taken = msgspec.json.decode(done.stdout, type=Steps)
    stolen = stolen_s() - stolen_before_s
    return _window(max(taken.cpu_s), report.wall_s, stolen, report.cpu.contended_s or 0.0)


class _Cpu(msgspec.Struct):
    contended_s: float | None


class _Report(msgspec.Struct):
    wall_s: float
    cpu: _Cpu


def _window(value: float, wall_s: float, stolen: float, contended_s: float) -> Window:
    return Window(value, Evidence(wall_s=wall_s, stolen_s=stolen, contended_s=contended_s))


def main(words: list[str]) -> None:
    """Print the bursts of this process."""
    count, idle_s, limit_s = words
    command = Burst(count=int(count), idle_s=float(idle_s), limit_s=float(limit_s))
    sys.stdout.buffer.write(msgspec.json.encode(burst(command)))


if __name__ == "__main__":
    main(sys.argv[1:])
