"""Queues: the delay of a small message beside a stream that fills the link.

The message has a connection of its own, so it waits in the queue of the link and nowhere else. The
queue is drop-tail and the stream is CUBIC: its window falls to 0.7 of the full queue after a loss
and stays close to it for most of the time, so that most messages wait for almost the full depth.
"""

import anyio

from benchmarks._fidelity import limits
from benchmarks._fidelity.arithmetic import BITS, quantile
from benchmarks._fidelity.delay_and_loss import message_delays_s
from benchmarks._fidelity.end_commands import CloseLoad, Done, OpenLoad
from benchmarks._fidelity.host_contention import watch
from benchmarks._fidelity.link import Direction, ends
from benchmarks._fidelity.measure import Plan, measured_rows
from benchmarks._fidelity.measured_device import FREE, MeasuredDevice
from benchmarks._fidelity.rows import QuantitySpec, Row
from benchmarks._fidelity.windows import Evidence, Window
from fairbed.profiles import LinkQueue
from fairbed.testbed.emulation.conditions import Conditions, Shape
from fairbed.testbed.emulation.queues import PAYLOAD_BYTES, depth_bytes

RATE_BPS = 8e6

GAP_S = 0.05
"""Time between two messages."""

CUBIC_C = 0.4
"""Packets per cubed second: a window that starts at 0 reaches W packets after (W / C)^(1/3) s."""

WARM_MARGIN, LEAST_WARM_S = 1.3, 1.0


async def under_load(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the delay of messages under load, per direction and depth of the queue."""
    rows = []
    for depth_s in limits.QUEUES_S[:1] if plan.is_quick else limits.QUEUES_S:
        for direction in _directions()[: 1 if plan.is_quick else 2]:
            specs = [
                QuantitySpec(
                    backend=measured.backend,
                    quantity=f"queue {1e3 * depth_s:g} ms under load {direction}, {name}",
                    target=depth_s,
                    unit="s",
                    limit=None if plan.is_quick else limits.QUEUE,  # the queue is not full yet
                )
                for name in ("p50", "p95")
            ]

            async def measure(
                depth_s: float = depth_s, direction: Direction = direction
            ) -> list[Window]:
                return await _under_load(measured, plan, depth_s, direction)

            rows += await measured_rows(plan, specs, measure)
    return rows


def _directions() -> tuple[Direction, Direction]:
    return ("down", "up")


async def _under_load(
    measured: MeasuredDevice, plan: Plan, depth_s: float, direction: Direction
) -> list[Window]:
    size = depth_bytes(LinkQueue(depth_s=depth_s), RATE_BPS)
    shape = Shape(down_bps=RATE_BPS, up_bps=RATE_BPS, down_queue_bytes=size, up_queue_bytes=size)
    await measured.apply(Conditions(speed_ratio=None, shape=shape))
    await measured.connect()
    address = measured.outside_address
    sender, _ = ends(measured, direction)
    towards = (address.host, address.port)
    await measured.inside.request(OpenLoad(sends=sender is measured.inside, towards=towards), Done)
    await measured.outside.request(OpenLoad(sends=sender is measured.outside), Done)
    packets = RATE_BPS * depth_s / (BITS * PAYLOAD_BYTES)
    full_s = WARM_MARGIN * (packets / CUBIC_C) ** (1.0 / 3.0)
    await anyio.sleep(LEAST_WARM_S + plan.pick(full_s, 0.0))
    with watch(measured.path(), measured.contended_s) as contention:
        delays_s = await message_delays_s(measured, direction, round(plan.pick(200, 20)), GAP_S)
    for end in (measured.inside, measured.outside):
        await end.request(CloseLoad(), Done)
    await measured.apply(FREE)
    evidence = Evidence(
        wall_s=contention.wall_s, stolen_s=contention.stolen_s, waited_s=contention.waited_s
    )
    return [Window(quantile(delays_s, share), evidence) for share in (0.5, 0.95)]
