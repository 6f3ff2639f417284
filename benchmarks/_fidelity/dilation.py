"""Time dilation: the reports of a device must not depend on it.

The same device is measured with and without dilation k; its numbers, in seconds of the device,
must agree. The machine provides 1/k of the speed and of the rates, and k times the delay.
"""

import statistics
from collections.abc import Awaitable, Callable

from benchmarks._fidelity import limits
from benchmarks._fidelity.cpu import STEP_SHARE, at_speed, device
from benchmarks._fidelity.delay_and_loss import one_way_s
from benchmarks._fidelity.end_commands import RunPaced, Steps
from benchmarks._fidelity.host_contention import watch
from benchmarks._fidelity.link import at_rate, block_s
from benchmarks._fidelity.measure import Plan, measured_row
from benchmarks._fidelity.measured_device import FREE, MeasuredDevice
from benchmarks._fidelity.rows import QuantitySpec, Row
from benchmarks._fidelity.windows import Evidence, Window

K = 4.0

STEP_CPU_S = 0.020
RATE_BPS, N_BYTES = 20e6, 256 << 10
DELAY_S = 0.02


async def steps(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Compare the mean time of a step."""

    async def measure(k: float) -> Window:
        await measured.apply(at_speed(STEP_SHARE, k))
        command = RunPaced(
            device=device(dilation=k),
            gauge=measured.gauge,
            sandbox=measured.sandbox,
            steps=round(plan.pick(20, 5)),
            spin_s=STEP_CPU_S,
        )
        with watch([], measured.contended_s) as contention:
            taken = await measured.inside.request(command, Steps, 120.0)
        await measured.apply(FREE)
        mean_s = (taken.ended - taken.begun) / len(taken.wall_s)
        evidence = Evidence(
            wall_s=contention.wall_s,
            stolen_s=contention.stolen_s,
            contended_s=contention.contended_s,
        )
        return Window(mean_s, evidence)

    return await _compared(measured, plan, "step 20 ms", limits.STEP, True, measure)


async def transfers(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Compare the time of a transfer."""

    async def measure(k: float) -> Window:
        await measured.apply(at_rate(RATE_BPS, dilation=k))
        with watch(measured.path(), measured.contended_s) as contention:
            took_s = await block_s(measured, N_BYTES, "down")
        await measured.apply(FREE)
        evidence = Evidence(
            wall_s=took_s, stolen_s=contention.stolen_s, waited_s=contention.waited_s
        )
        return Window(took_s / k, evidence)

    return await _compared(measured, plan, "256 KB at 20 Mbit/s", limits.TRANSFER, True, measure)


async def delays(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Compare the delay of a message."""

    async def measure(k: float) -> Window:
        await measured.apply(at_rate(RATE_BPS, DELAY_S, k))
        with watch(measured.path(), measured.contended_s) as contention:
            heard = await one_way_s(measured, "down", round(plan.pick(60, 10)), 0.02 * k)
        await measured.apply(FREE)
        evidence = Evidence(
            wall_s=contention.wall_s, stolen_s=contention.stolen_s, waited_s=contention.waited_s
        )
        return Window(statistics.median(heard) / k, evidence)

    limit_s = limits.DELAY_S[measured.backend]
    return await _compared(measured, plan, "delay 20 ms", limit_s, False, measure)


async def _compared(
    measured: MeasuredDevice,
    plan: Plan,
    name: str,
    limit: float,
    is_relative: bool,
    measure: Callable[[float], Awaitable[Window]],
) -> list[Row]:
    """Measure without dilation, then with dilation; compare the second with the first."""
    plain = await measured_row(
        plan,
        QuantitySpec(
            backend=measured.backend, quantity=f"{name}, not dilated", target=None, unit="s"
        ),
        lambda: measure(1.0),
    )
    spec = QuantitySpec(
        backend=measured.backend,
        quantity=f"{name}, dilated {K:g} times",
        target=plain.achieved,
        unit="s",
        limit=limit,
        is_relative=is_relative,
    )
    return [plain, await measured_row(plan, spec, lambda: measure(K))]
