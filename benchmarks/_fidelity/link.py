"""Links: the rate of a stream in each direction, and the transfer time of a block.

A stream is TCP, and its rate is that of its payload. Before each window a stream without limits
shows the capacity of the same path.
"""

from typing import Literal, TypeAlias

import anyio

from benchmarks._fidelity import limits
from benchmarks._fidelity.arithmetic import BITS, goodput_bps
from benchmarks._fidelity.end_commands import (
    Arrivals,
    Done,
    Instant,
    ReceiveBlock,
    ReceiveStream,
    SendBlock,
    SendStream,
)
from benchmarks._fidelity.end_process import EndPipe, both
from benchmarks._fidelity.host_contention import watch
from benchmarks._fidelity.measure import Plan, measured_row
from benchmarks._fidelity.measured_device import FREE, MeasuredDevice
from benchmarks._fidelity.rows import QuantitySpec, Row
from benchmarks._fidelity.windows import Evidence, Window
from fairbed.testbed.emulation.conditions import Conditions, Shape
from fairbed.testbed.emulation.queues import FRAME_BYTES

Direction: TypeAlias = Literal["down", "up"]

CONTROL_S, CONTROL_WARM_S = 0.3, 0.1

WARM_S, LONG_WARM_S, SLOW_BPS = 0.5, 2.5, 1e6
"""Time until a stream has reached its rate: it starts with too many packets, and lost ones arrive
late. This takes longer at `SLOW_BPS` and below, and over a link with a delay."""

QUICK_WARM_S = 1.0
"""The same in a quick measurement, which shows that there is a limit, not how exact it is."""

WARM_PACKETS = 60
"""Packets until losses at the start have been repaired: 47 at 0.1 Mbit/s."""

GAP_PACKETS, LEAST_GAP_S = 1.5, 5e-3
"""Greatest gap between packets of a steady stream, in packets and at least in seconds."""

FAR_RATES_BPS, FAR_S = (1e6, 10e6, 50e6), 0.02
"""Rates, and the one-way delay."""

TRANSFER_RATES_BPS = (1e6, 10e6, 100e6)

PAUSE_S = 0.3
"""Pause before each block: the link is idle, its queue empty."""


async def goodputs(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the rate of a stream that fills the link."""
    rows = []
    for rate_bps in (1e6, 50e6) if plan.is_quick else limits.RATES_BPS:
        for direction in _directions():
            spec = QuantitySpec(
                backend=measured.backend,
                quantity=f"goodput {rate_bps / 1e6:g} Mbit/s {direction}",
                target=rate_bps,
                unit="bit/s",
                limit=limits.goodput(measured.backend, rate_bps),
            )

            async def measure(
                rate_bps: float = rate_bps, direction: Direction = direction
            ) -> Window:
                return await _goodput(measured, plan, rate_bps, direction)

            rows.append(await measured_row(plan, spec, measure))
    return rows


async def far_goodputs(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the same over a link with a delay, which packets pass by another path."""
    rows = []
    for rate_bps in FAR_RATES_BPS[1:2] if plan.is_quick else FAR_RATES_BPS:
        for direction in _directions():
            spec = QuantitySpec(
                backend=measured.backend,
                quantity=f"goodput {rate_bps / 1e6:g} Mbit/s {direction}, {1e3 * FAR_S:g} ms away",
                target=rate_bps,
                unit="bit/s",
                limit=limits.goodput(measured.backend, rate_bps),
            )

            async def measure(
                rate_bps: float = rate_bps, direction: Direction = direction
            ) -> Window:
                return await _goodput(measured, plan, rate_bps, direction, FAR_S)

            rows.append(await measured_row(plan, spec, measure))
    return rows


async def transfers(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the transfer time of a block on an idle link."""
    rows = []
    for rate_bps in (10e6,) if plan.is_quick else TRANSFER_RATES_BPS:
        for n_bytes in limits.BLOCKS[:2] if plan.is_quick else limits.BLOCKS:
            for direction in _directions():
                spec = QuantitySpec(
                    backend=measured.backend,
                    quantity=f"{n_bytes >> 10} KB at {rate_bps / 1e6:g} Mbit/s {direction}",
                    target=BITS * n_bytes / rate_bps,
                    unit="s",
                    limit=limits.transfer(measured.backend, n_bytes),
                )

                async def measure(
                    rate_bps: float = rate_bps,
                    n_bytes: int = n_bytes,
                    direction: Direction = direction,
                ) -> Window:
                    return await _transfer(measured, rate_bps, n_bytes, direction)

                rows.append(await measured_row(plan, spec, measure))
    return rows


def ends(measured: MeasuredDevice, direction: Direction) -> tuple[EndPipe, EndPipe]:
    """Return the sending and the receiving end."""
    return (
        (measured.outside, measured.inside)
        if direction == "down"
        else (measured.inside, measured.outside)
    )


async def stream(measured: MeasuredDevice, direction: Direction, lasting_s: float) -> Arrivals:
    """Fill the link for a time; return the arrivals."""
    sender, receiver = ends(measured, direction)
    await measured.connect()
    arrivals, _ = await both(
        receiver.request(ReceiveStream(lasting_s=lasting_s), Arrivals, lasting_s + 60.0),
        sender.request(SendStream(limit_s=lasting_s + 2.0), Done, lasting_s + 60.0),
    )
    return arrivals


async def carried_bps(measured: MeasuredDevice, direction: Direction) -> float:
    """Return the rate of the path without limits."""
    await measured.apply(FREE)
    arrivals = await stream(measured, direction, CONTROL_S)
    return goodput_bps(arrivals.times, arrivals.totals, CONTROL_WARM_S)


def at_rate(rate_bps: float | None, delay_s: float = 0.0, dilation: float = 1.0) -> Conditions:
    """Return the conditions of a device whose link has this rate in each direction."""
    shape = Shape(down_bps=rate_bps, up_bps=rate_bps, delay_s=delay_s)
    return Conditions(speed_ratio=None, shape=shape).dilated(dilation)


def _directions() -> tuple[Direction, Direction]:
    return ("down", "up")


async def _goodput(
    measured: MeasuredDevice,
    plan: Plan,
    rate_bps: float,
    direction: Direction,
    delay_s: float = 0.0,
) -> Window:
    carried = await carried_bps(measured, direction)
    await measured.apply(at_rate(rate_bps, delay_s))
    packet_s = BITS * FRAME_BYTES / rate_bps
    is_long = rate_bps <= SLOW_BPS or delay_s > 0.0
    warm_s = plan.pick(LONG_WARM_S, QUICK_WARM_S) if is_long else WARM_S
    warm_s = max(warm_s, WARM_PACKETS * packet_s)
    with watch(measured.path(), measured.contended_s) as contention:
        arrivals = await stream(measured, direction, warm_s + plan.pick(5.0, 0.7))
    await measured.apply(FREE)
    evidence = Evidence(
        wall_s=contention.wall_s,
        stolen_s=contention.stolen_s,
        waited_s=contention.waited_s,
        carried_ratio=carried / rate_bps,
    )
    gap_s = max(LEAST_GAP_S, GAP_PACKETS * packet_s)
    return Window(goodput_bps(arrivals.times, arrivals.totals, warm_s, gap_s), evidence)


async def block_s(measured: MeasuredDevice, n_bytes: int, direction: Direction) -> float:
    """Return the transfer time of a block on an idle link, over a used connection."""
    sender, receiver = ends(measured, direction)
    await measured.connect()
    took_s = 0.0
    for size in (16 << 10, n_bytes):
        await anyio.sleep(PAUSE_S)
        end, begin = await both(
            receiver.request(ReceiveBlock(n_bytes=size, limit_s=120.0), Instant, 150.0),
            sender.request(SendBlock(n_bytes=size), Instant, 150.0),
        )
        took_s = end.at - begin.at
    return took_s


async def _transfer(
    measured: MeasuredDevice, rate_bps: float, n_bytes: int, direction: Direction
) -> Window:
    carried = await carried_bps(measured, direction)
    await measured.apply(at_rate(rate_bps))
    with watch(measured.path(), measured.contended_s) as contention:
        took_s = await block_s(measured, n_bytes, direction)
    await measured.apply(FREE)
    evidence = Evidence(
        wall_s=took_s,
        stolen_s=contention.stolen_s,
        waited_s=contention.waited_s,
        carried_ratio=carried / rate_bps,
    )
    return Window(took_s, evidence)
