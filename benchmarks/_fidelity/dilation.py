"""Time that runs slower: what a device reports must not depend on it.

The same device with its time dilated and not: its numbers, each in seconds of the device, have to
agree. The machine gives a k-th of the speed and of the rates, and k times the delay.
"""

import statistics
from collections.abc import Awaitable, Callable

from benchmarks._fidelity import limits
from benchmarks._fidelity.cpu import STEP_SHARE, at_speed, device
from benchmarks._fidelity.delay_and_loss import one_way_s
from benchmarks._fidelity.end_commands import RunPaced, Steps
from benchmarks._fidelity.host_contention import watch
from benchmarks._fidelity.link import at_rate, block_s
from benchmarks._fidelity.measure import Plan, windows
from benchmarks._fidelity.measured_device import FREE, MeasuredDevice
from benchmarks._fidelity.rows import QuantitySpec, Row
from benchmarks._fidelity.windows import Evidence, Window

K = 4.0

STEP_CPU_S = 0.020
RATE_BPS, N_BYTES = 20e6, 256 << 10
DELAY_S = 0.02


async def steps(rig: MeasuredDevice, plan: Plan) -> list[Row]:
    """Compare the time of a step, and of a stretch of them."""

    async def measure(k: float) -> Window:
        await rig.apply(at_speed(STEP_SHARE, k))
        command = RunPaced(
            device=device(dilation=k),
            gauge=rig.gauge,
            sandbox=rig.sandbox,
            steps=round(plan.pick(20, 5)),
            spin_s=STEP_CPU_S,
        )
        with watch([], rig.contended_s) as host:
            taken = await rig.device.request(command, Steps, 120.0)
        await rig.apply(FREE)
        mean_s = (taken.ended - taken.begun) / len(taken.wall_s)
        evidence = Evidence(
            wall_s=host.wall_s, stolen_s=host.stolen_s, contended_s=host.contended_s
        )
        return Window(mean_s, evidence)

    return await _compared(rig, plan, "step 20 ms", limits.STEP, True, measure)


async def transfers(rig: MeasuredDevice, plan: Plan) -> list[Row]:
    """Compare the time of a transfer."""

    async def measure(k: float) -> Window:
        await rig.apply(at_rate(RATE_BPS, dilation=k))
        with watch(rig.path(), rig.contended_s) as host:
            took_s = await block_s(rig, N_BYTES, "down")
        await rig.apply(FREE)
        evidence = Evidence(wall_s=took_s, stolen_s=host.stolen_s, waited_s=host.waited_s)
        return Window(took_s / k, evidence)

    return await _compared(rig, plan, "256 KB at 20 Mbit/s", limits.TRANSFER, True, measure)


async def delays(rig: MeasuredDevice, plan: Plan) -> list[Row]:
    """Compare the delay of a message."""

    async def measure(k: float) -> Window:
        await rig.apply(at_rate(RATE_BPS, DELAY_S, k))
        with watch(rig.path(), rig.contended_s) as host:
            heard = await one_way_s(rig, "down", round(plan.pick(60, 10)), 0.02 * k)
        await rig.apply(FREE)
        evidence = Evidence(wall_s=host.wall_s, stolen_s=host.stolen_s, waited_s=host.waited_s)
        return Window(statistics.median(heard) / k, evidence)

    limit_s = limits.DELAY_S[rig.backend]
    return await _compared(rig, plan, "delay 20 ms", limit_s, False, measure)


async def _compared(
    rig: MeasuredDevice,
    plan: Plan,
    name: str,
    limit: float,
    is_relative: bool,
    measure: Callable[[float], Awaitable[Window]],
) -> list[Row]:
    """Measure without dilation, and with it against that."""
    plain = await windows(
        plan,
        QuantitySpec(backend=rig.backend, quantity=f"{name}, not dilated", target=None, unit="s"),
        lambda: measure(1.0),
    )
    spec = QuantitySpec(
        backend=rig.backend,
        quantity=f"{name}, dilated {K:g} times",
        target=plain.achieved,
        unit="s",
        limit=limit,
        is_relative=is_relative,
    )
    return [plain, await windows(plan, spec, lambda: measure(K))]
