"""Processor: the share of a core, and the time of a step.

share, paced     steps of a kernel with the pacing of an agent, charged their unthrottled cost in
                 the same run; share = steps * cost / time
share, quota     any program under the quota alone; share = processor time / time
work             passes over arrays in a processor second under the quota, relative to full speed
step             a step with a given processor time, one after another and after a pause
"""

import math
import statistics

from benchmarks._fidelity import limits
from benchmarks._fidelity.arithmetic import drift
from benchmarks._fidelity.end_commands import Compute, Passes, RunKernel, RunPaced, Steps, Work
from benchmarks._fidelity.host_contention import watch
from benchmarks._fidelity.measure import Plan, measured_row, print_row
from benchmarks._fidelity.measured_device import DEVICE, FREE, MeasuredDevice
from benchmarks._fidelity.rows import QuantitySpec, Row, unknown
from benchmarks._fidelity.windows import Evidence, Window
from fairbed.testbed.emulation.conditions import Conditions, Shape
from fairbed.testbed.emulation.device import EmulatedDevice

STEP_SHARE = 0.25
"""Speed at which the time of steps of every length is measured."""

STEPS = (
    *((cpu_s, STEP_SHARE) for cpu_s in limits.STEPS_S),
    *((0.020, share) for share in (0.05, 0.10, 0.50, 1.0)),
)
"""Processor time of a step, and the device's speed."""

MAX_STEPS, MIN_STEPS = 30, 4

STEP_CPU_S = 0.010
"""Processor time of a step of the kernel, about."""

IDLE_S = 0.3
"""Idle time before a first burst, and lead before a steady share: several periods of any quota."""

LONG_S, SHORT_S = 4.0, 1.5
"""Length of a window with a slow device, and with one that needs most of a core: a shared machine
is seldom free for longer."""

MAX_DRIFT = limits.CPU / 2.0
"""Greatest drift of the control: if the kernel itself changes by more, 3 % cannot be resolved."""


async def shares(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the share of a core of a paced agent."""
    rows = []
    for share in (0.10, 0.50) if plan.is_quick else limits.SHARES:
        spec = QuantitySpec(
            backend=measured.backend,
            quantity=f"cpu share {100 * share:g} %",
            target=share,
            unit="cores",
            limit=limits.CPU,
        )

        async def measure(share: float = share) -> Window:
            return await _paced_share(measured, plan, share)

        rows.append(await measured_row(plan, spec, measure))
    return rows


async def quotas(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the share of a core that the kernel's quota alone gives to a program."""
    rows = []
    for share in (0.25,) if plan.is_quick else limits.SHARES:
        spec = QuantitySpec(
            backend=measured.backend,
            quantity=f"cpu quota {100 * share:g} %",
            target=share,
            unit="cores",
            limit=limits.CPU,
        )
        if measured.sandbox is None:
            rows.append(unknown(spec, "not emulated: only paced programs are slowed"))
            print_row(rows[-1])
            continue

        async def measure(share: float = share) -> Window:
            await measured.apply(at_speed(share))
            with watch([], measured.contended_s) as contention:
                command = Compute(
                    lead_s=IDLE_S, lasting_s=plan.pick(3.0, 0.5), threads=math.ceil(share)
                )
                steps = await measured.inside.request(command, Steps)
            await measured.apply(FREE)
            evidence = Evidence(
                wall_s=contention.wall_s,
                stolen_s=contention.stolen_s,
                contended_s=contention.contended_s,
            )
            return Window(steps.cpu_s[0] / steps.wall_s[0], evidence)

        rows.append(await measured_row(plan, spec, measure))
    return rows


WORK = ((1, 1 << 16, 0.5), (2, 1 << 16, 1.0), (1, 16 << 20, 0.5), (2, 16 << 20, 1.0))
"""Threads, bytes of each of three arrays, and speed: arrays that the caches of a core hold, and
larger ones."""


async def work(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the work of a processor second under the quota, relative to that without it."""
    rows = []
    for threads, n_bytes, share in WORK[-1:] if plan.is_quick else WORK:
        size = f"{n_bytes >> 10} KB" if n_bytes < 1 << 20 else f"{n_bytes >> 20} MB"
        spec = QuantitySpec(
            backend=measured.backend,
            quantity=f"work at {100 * share:g} %, {threads} x 3 x {size}",
            target=1.0,
            unit="ratio",
        )
        if measured.sandbox is None:
            rows.append(unknown(spec, "not emulated: only paced programs are slowed"))
            print_row(rows[-1])
            continue
        command = Passes(
            n_bytes=n_bytes,
            threads=threads,
            lead_s=plan.pick(IDLE_S, 0.05),
            lasting_s=plan.pick(1.5, 0.1),
        )

        async def measure(share: float = share, command: Passes = command) -> Window:
            rates = []
            with watch([], measured.contended_s) as contention:
                for speed in (None, share, share, None):  # a drift of the machine cancels out
                    await measured.apply(at_speed(speed))
                    done = await measured.inside.request(command, Work)
                    rates.append(done.passes / done.cpu_s)
            await measured.apply(FREE)
            evidence = Evidence(
                wall_s=contention.wall_s,
                stolen_s=contention.stolen_s,
                contended_s=contention.contended_s,
            )
            return Window((rates[1] + rates[2]) / (rates[0] + rates[3]), evidence)

        rows.append(await measured_row(plan, spec, measure))
    return rows


async def steps(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the time of steps, in sequence and each after a pause."""
    rows = []
    for cpu_s, share in ((0.020, STEP_SHARE),) if plan.is_quick else STEPS:
        for is_first in (False, True):
            kind = "first" if is_first else "steady"
            spec = QuantitySpec(
                backend=measured.backend,
                quantity=f"step {1e3 * cpu_s:g} ms at {100 * share:g} %, {kind}",
                target=cpu_s / share,
                unit="s",
                limit=limits.step(measured.backend, cpu_s),
            )

            async def measure(
                cpu_s: float = cpu_s, share: float = share, is_first: bool = is_first
            ) -> Window:
                return await _steps(measured, plan, cpu_s, share, is_first)

            rows.append(await measured_row(plan, spec, measure))
    return rows


def at_speed(share: float | None, dilation: float = 1.0) -> Conditions:
    """Return the conditions of a device of this speed on a free link."""
    return Conditions(speed_ratio=share, shape=Shape()).dilated(dilation)


def device(threads: int = 1, dilation: float = 1.0) -> EmulatedDevice:
    """Return the device for the pacing; its speed is in its gauge."""
    return EmulatedDevice(
        title=DEVICE.title,
        cores=max(DEVICE.cores, threads),
        memory_bytes=DEVICE.memory_bytes,
        background_load=0.0,
        engine_threads=threads,
        speed_ratio=DEVICE.speed_ratio,
        storage_read_bytes_per_s=DEVICE.storage_read_bytes_per_s,
        dilation=dilation,
    )


async def _paced_share(measured: MeasuredDevice, plan: Plan, share: float) -> Window:
    threads = math.ceil(share)
    lasting_s = plan.pick(LONG_S if share < 0.5 else SHORT_S, 0.6)
    n_control = round(plan.pick(40, 10))
    repetitions = await _repetitions(measured, threads)
    control = RunKernel(repetitions=repetitions, threads=threads, steps=n_control)
    before = statistics.median((await measured.outside.request(control, Steps)).cpu_s)
    await measured.apply(at_speed(share))
    with watch([], measured.contended_s) as contention:
        command = RunPaced(
            device=device(threads),
            gauge=measured.gauge,
            sandbox=measured.sandbox,
            steps=max(3, round(lasting_s * share / before)),
            repetitions=repetitions,
            cost_s=before,
        )
        taken = await measured.inside.request(command, Steps)
    await measured.apply(FREE)
    after = statistics.median((await measured.outside.request(control, Steps)).cpu_s)
    cost_s = (before + after) / 2.0
    evidence = Evidence(
        wall_s=contention.wall_s,
        stolen_s=contention.stolen_s,
        contended_s=contention.contended_s,
        drift_ratio=drift(before, after),
        max_drift=MAX_DRIFT,
    )
    return Window(len(taken.wall_s) * cost_s / (taken.ended - taken.begun), evidence)


async def _repetitions(measured: MeasuredDevice, threads: int) -> int:
    """Return the number of kernel repetitions per thread and step."""
    probe = await measured.outside.request(
        RunKernel(repetitions=20, threads=threads, steps=5), Steps
    )
    return max(1, round(20 * STEP_CPU_S / statistics.median(probe.cpu_s)))


async def _steps(
    measured: MeasuredDevice, plan: Plan, cpu_s: float, share: float, is_first: bool
) -> Window:
    lasting_s = plan.pick(4.0, 0.5)
    count = min(MAX_STEPS, max(MIN_STEPS, round(lasting_s * share / cpu_s)))
    await measured.apply(at_speed(share))
    command = RunPaced(
        device=device(),
        gauge=measured.gauge,
        sandbox=measured.sandbox,
        steps=1 if is_first else count,
        sections=count if is_first else 1,
        idle_s=IDLE_S if is_first else 0.0,
        spin_s=cpu_s,
    )
    with watch([], measured.contended_s) as contention:
        taken = await measured.inside.request(command, Steps)
    await measured.apply(FREE)
    evidence = Evidence(
        wall_s=sum(taken.wall_s), stolen_s=contention.stolen_s, contended_s=contention.contended_s
    )
    return Window(statistics.median(taken.wall_s), evidence)
