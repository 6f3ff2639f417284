"""A link that follows a trace: the total volume, and the volume of each second.

Two kinds of traffic fill the link. A stream is TCP, with its behaviour after a hole. Datagrams are
sent faster than the link rate, so they show the emulation alone. A full datagram takes as much of a
link as a full TCP packet, and counts as much.
"""

import math
import os
import time
from collections.abc import Mapping
from typing import Literal, TypeAlias

import anyio
import numpy as np

from benchmarks._fidelity import limits
from benchmarks._fidelity.arithmetic import BITS, median_step_error, volume_error, volumes
from benchmarks._fidelity.delay_and_loss import send_datagrams
from benchmarks._fidelity.end_commands import Arrivals
from benchmarks._fidelity.end_process import both
from benchmarks._fidelity.host_contention import watch
from benchmarks._fidelity.link import CONTROL_S, at_rate, carried_bps, stream
from benchmarks._fidelity.measure import Plan, measured_rows, print_row
from benchmarks._fidelity.measured_device import FREE, NAME, MeasuredDevice
from benchmarks._fidelity.rows import QuantitySpec, Row, unknown
from benchmarks._fidelity.windows import Evidence, Window
from fairbed.profiles.errors import TraceError
from fairbed.profiles.series import Series
from fairbed.profiles.traces.files import TraceReader
from fairbed.profiles.tracks import LinkTracks
from fairbed.testbed.backends.schedule_driver import ScheduleDriver
from fairbed.testbed.emulation.conditions import Conditions
from fairbed.testbed.emulation.schedule import Schedule, ScheduleFollower

Traffic: TypeAlias = Literal["datagrams", "tcp"]

REAL = "data:mahimahi/ATT-LTE-driving.down"
"""A recorded trace with coverage holes of 9 s and 3 s in its first minute."""

STEPS: Mapping[float, tuple[float, float]] = {
    0.02: (20e6, 0.0),
    0.05: (20e6, 0.0),
    0.25: (16e6, 4e6),
}
"""Length of the steps of a trace, seconds, and the rates that it alternates between, bit/s. The
driver changes a link every 0.1 s: five steps, two steps, and steps that begin between two ticks."""

STEP_S = 0.1
"""Step of traces: the tick of the driver."""

WARM_S = 1.0
"""Duration of a stream before the trace starts, until it has reached its rate."""

EXCESS = 1.2
"""Rate of datagrams, relative to the highest rate of the trace."""

DATAGRAM_BYTES, COUNTED_BYTES = 1472, 1448
"""A full packet without fragments, and the payload of TCP in one."""


async def traces(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Replay a synthetic trace and, if available, a recorded one."""
    lasting_s = plan.pick(60.0, 2.0)
    rows = await _replayed(measured, plan, "synthetic", synthetic(), lasting_s, has_holes=False)
    try:
        real = TraceReader(os.environ, STEP_S)(REAL, "down_bps")
    except TraceError as exc:
        for spec in _specs(measured, "LTE driving", "tcp", has_holes=True):
            rows.append(unknown(spec, str(exc)))
            print_row(rows[-1])
        return rows
    return rows + await _replayed(measured, plan, "LTE driving", real, lasting_s, has_holes=True)


async def short_steps(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Replay traces whose steps are not those of the driver."""
    rows: list[Row] = []
    for step_s in (0.05,) if plan.is_quick else STEPS:
        series = Series.sampled(STEPS[step_s], step_s)
        name, lasting_s = f"{1e3 * step_s:g} ms steps", plan.pick(10.0, 2.0)
        rows += await _replayed(measured, plan, name, series, lasting_s, has_holes=False)
    return rows


def synthetic(seconds: float = 60.0, seed: int = 4) -> Series:
    """Return a cellular link as a random walk of its logarithm around 8 Mbit/s, without holes."""
    rng = np.random.default_rng(seed)
    x, values = 0.0, []
    for _ in range(round(seconds / STEP_S)):
        x += 0.1 * (0.0 - x) + 0.25 * rng.standard_normal()
        values.append(min(max(8e6 * math.exp(x), 0.5e6), 40e6))
    return Series.sampled(values, STEP_S)


def _specs(
    measured: MeasuredDevice, name: str, traffic: Traffic, *, has_holes: bool
) -> list[QuantitySpec]:
    is_promised = traffic == "datagrams" or measured.backend == "process" or not has_holes
    promised = (limits.TRACE_VOLUME, limits.TRACE_SECOND) if is_promised else (None, None)
    return [
        QuantitySpec(
            backend=measured.backend,
            quantity=f"trace {name}, {traffic}, volume",
            target=1.0,
            unit="ratio",
            limit=promised[0],
        ),
        QuantitySpec(
            backend=measured.backend,
            quantity=f"trace {name}, {traffic}, median of a second",
            target=None,
            unit="ratio",
            limit=promised[1],
            is_bound=True,
        ),
    ]


async def _replayed(
    measured: MeasuredDevice,
    plan: Plan,
    name: str,
    series: Series,
    lasting_s: float,
    *,
    has_holes: bool,
) -> list[Row]:
    rows = []
    for traffic in _traffic(measured):

        async def measure(traffic: Traffic = traffic) -> list[Window]:
            return await _replay(measured, series, lasting_s, traffic)

        rows += await measured_rows(
            plan, _specs(measured, name, traffic, has_holes=has_holes), measure
        )
    return rows


def _traffic(measured: MeasuredDevice) -> tuple[Traffic, ...]:
    return ("tcp",) if measured.backend == "process" else ("datagrams", "tcp")


async def _replay(
    measured: MeasuredDevice, series: Series, lasting_s: float, traffic: Traffic
) -> list[Window]:
    highest = max(series.at(i * STEP_S) for i in range(round(lasting_s / STEP_S)))
    carried = await carried_bps(measured, "down")
    await measured.apply(at_rate(series.at(0.0)))
    filled_s = WARM_S + lasting_s + CONTROL_S

    async def fill() -> Arrivals:
        if traffic == "tcp":
            return await stream(measured, "down", filled_s)
        per_second = EXCESS * highest / BITS / COUNTED_BYTES
        count = round(filled_s * per_second)
        came = await send_datagrams(measured, "down", count, per_second, DATAGRAM_BYTES, filled_s)
        return Arrivals(times=came.times, totals=[COUNTED_BYTES * n for n in came.totals])

    async def drive() -> float:
        await anyio.sleep(WARM_S)
        begun = time.monotonic()
        with anyio.move_on_after(lasting_s):
            await ScheduleDriver(
                _DrivenDevice(measured), {NAME: ScheduleFollower(schedule(series))}
            ).run()
        return begun

    with watch(measured.path(), measured.contended_s) as contention:
        arrivals, begun = await both(fill(), drive())
    await measured.apply(FREE)
    evidence = Evidence(
        wall_s=contention.wall_s,
        stolen_s=contention.stolen_s,
        waited_s=contention.waited_s,
        carried_ratio=carried / highest,
    )
    seconds = max(1, int(lasting_s))
    wanted = [series.integral(i, i + 1.0) / BITS for i in range(seconds)]
    got = volumes(arrivals.times, arrivals.totals, begun, 1.0, seconds)
    return [
        Window(1.0 + volume_error(got, wanted), evidence),
        Window(median_step_error(got, wanted), evidence),
    ]


def schedule(down: Series) -> Schedule:
    """Return the schedule of a device whose downlink follows a series."""
    zero = Series.constant(0.0)
    up = Series.constant(10e6)
    return Schedule(
        link=LinkTracks(down_bps=down, up_bps=up, delay_s=zero, jitter_s=zero, loss_ratio=zero)
    )


class _DrivenDevice:
    """A measured device with the interface that a driver needs."""

    def __init__(self, measured: MeasuredDevice) -> None:
        self._rig = measured

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change the device."""
        await self._rig.apply(conditions[NAME])

    def cpu_s(self, name: str) -> float | None:
        """Return None: the device has no heat model."""
        return None
