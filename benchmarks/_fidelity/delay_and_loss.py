"""What happens to packets on their way: delay, jitter, loss.

Messages carry the moment at which they left, on the clock that both ends share: so each direction
is measured by itself. Loss is that of datagrams; TCP would send what is lost again.
"""

import statistics

from benchmarks._fidelity import limits
from benchmarks._fidelity.arithmetic import quantile
from benchmarks._fidelity.end_commands import (
    Address,
    Arrivals,
    Delays,
    Done,
    OpenDatagrams,
    ReceiveDatagrams,
    ReceiveMessages,
    SendDatagrams,
    SendMessages,
)
from benchmarks._fidelity.end_process import both
from benchmarks._fidelity.host_contention import watch
from benchmarks._fidelity.link import Direction, ends
from benchmarks._fidelity.measure import Plan, print_row, several, windows
from benchmarks._fidelity.measured_device import FREE, MeasuredDevice
from benchmarks._fidelity.rows import QuantitySpec, Row, unknown
from benchmarks._fidelity.windows import Evidence, Window
from fairbed.testbed.emulation.conditions import Conditions, Shape

RATE_BPS = 10e6
"""Of the link on which delays are measured."""

GAP_S = 0.05
"""Between two messages: a queue of its own never builds up."""

JITTER_S = 0.005
JITTER_DELAY_S = 0.05
JITTER_GAP_S = 0.2
"""Far enough apart to be delayed independently: a jitter may remember itself for 20 times its
size."""

LOSS_RATIO = 0.02
DATAGRAMS_PER_S, DATAGRAM_BYTES = 2000.0, 100

SILENCE_S = 0.5
"""After it nothing more is under way."""

LATE_MESSAGES = 0.05
"""Of all messages, those beyond the 95th percentile. What the path waits may be the limit for each
of them: then no more than these are beyond the limit for it."""

MAX_LATENESS_SHARE = 0.5
"""Of the limit: a path that is later without any delay cannot show that one is kept."""


async def delays(rig: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the median and the 95th percentile of the delay of single messages, each way."""
    rows = []
    limit_s = limits.DELAY_S[rig.backend]
    for delay_s in limits.DELAYS_S[:1] if plan.is_quick else limits.DELAYS_S:
        for direction in _directions():
            spec = [
                QuantitySpec(
                    backend=rig.backend,
                    quantity=f"delay {1e3 * delay_s:g} ms {direction}, {name}",
                    target=delay_s,
                    unit="s",
                    limit=limit_s,
                    is_relative=False,
                )
                for name in ("p50", "p95")
            ]

            async def measure(
                delay_s: float = delay_s, direction: Direction = direction
            ) -> list[Window]:
                heard, evidence = await _heard(
                    rig,
                    direction,
                    Shape(down_bps=RATE_BPS, up_bps=RATE_BPS, delay_s=delay_s),
                    round(plan.pick(100, 20)),
                    GAP_S,
                    limit_s,
                )
                return [Window(quantile(heard, share), evidence) for share in (0.5, 0.95)]

            rows += await several(plan, spec, measure)
    return rows


async def jitters(rig: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the standard deviation of the delay of messages that are far apart."""
    rows = []
    for direction in _directions()[: 1 if plan.is_quick else 2]:
        spec = QuantitySpec(
            backend=rig.backend,
            quantity=f"jitter {1e3 * JITTER_S:g} ms {direction}",
            target=JITTER_S,
            unit="s",
        )

        async def measure(direction: Direction = direction) -> Window:
            shape = Shape(delay_s=JITTER_DELAY_S, jitter_s=JITTER_S)
            heard, evidence = await _heard(
                rig, direction, shape, round(plan.pick(100, 10)), JITTER_GAP_S, JITTER_S / 2.0
            )
            return Window(statistics.stdev(heard), evidence)

        rows.append(await windows(plan, spec, measure))
    return rows


async def losses(rig: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the share of datagrams that do not arrive."""
    rows = []
    for direction in _directions()[: 1 if plan.is_quick else 2]:
        spec = QuantitySpec(
            backend=rig.backend,
            quantity=f"loss {100 * LOSS_RATIO:g} % {direction}",
            target=LOSS_RATIO,
            unit="ratio",
            limit=None if plan.is_quick else limits.LOSS,  # too few to tell 10 %
        )
        if rig.backend == "process":
            rows.append(unknown(spec, "not emulated: a proxy relays TCP and loses nothing"))
            print_row(rows[-1])
            continue

        async def measure(direction: Direction = direction) -> Window:
            return await _lost(rig, direction, round(plan.pick(20_000, 1000)))

        rows.append(await windows(plan, spec, measure))
    return rows


def _directions() -> tuple[Direction, Direction]:
    return ("down", "up")


async def _heard(
    rig: MeasuredDevice,
    direction: Direction,
    shape: Shape,
    count: int,
    gap_s: float,
    tolerance_s: float,
) -> tuple[list[float], Evidence]:
    await rig.apply(FREE)
    control = await one_way_s(rig, direction, 20, 0.01)
    await rig.apply(Conditions(speed_ratio=None, shape=shape))
    with watch(rig.path(), rig.contended_s) as host:
        heard = await one_way_s(rig, direction, count, gap_s)
    await rig.apply(FREE)
    evidence = Evidence(
        wall_s=host.wall_s,
        stolen_s=host.stolen_s,
        waited_s=host.waited_s,
        max_waited=LATE_MESSAGES * count * tolerance_s / host.wall_s,
        lateness_s=quantile(control, 0.95),
        max_lateness_s=MAX_LATENESS_SHARE * tolerance_s,
    )
    return heard, evidence


async def one_way_s(
    rig: MeasuredDevice, direction: Direction, count: int, gap_s: float
) -> list[float]:
    """Return how long each of some messages was under way, seconds."""
    sender, receiver = ends(rig, direction)
    await rig.connect()
    limit_s = count * gap_s + 30.0
    heard, _ = await both(
        receiver.request(ReceiveMessages(count=count, limit_s=limit_s), Delays, limit_s + 30.0),
        sender.request(SendMessages(count=count, gap_s=gap_s), Done, limit_s + 30.0),
    )
    return heard.seconds


async def send_datagrams(
    rig: MeasuredDevice,
    direction: Direction,
    count: int,
    per_second: float,
    n_bytes: int,
    silence_s: float = SILENCE_S,
) -> Arrivals:
    """Send datagrams; return when they came, until none has for `silence_s`."""
    sender, receiver = ends(rig, direction)
    outside = await rig.outside.request(
        OpenDatagrams(towards=(rig.reach.host, rig.reach.port)), Address
    )
    device = await rig.device.request(
        OpenDatagrams(towards=(rig.reach.host, rig.reach.port)), Address
    )
    to = device if direction == "down" else outside
    limit_s = count / per_second + 2.0
    counted, _ = await both(
        receiver.request(
            ReceiveDatagrams(silence_s=silence_s, limit_s=limit_s), Arrivals, limit_s + 30.0
        ),
        sender.request(
            SendDatagrams(
                host=to.host, port=to.port, count=count, per_second=per_second, n_bytes=n_bytes
            ),
            Done,
            limit_s + 30.0,
        ),
    )
    return counted


async def _lost(rig: MeasuredDevice, direction: Direction, count: int) -> Window:
    await rig.apply(FREE)
    control = await send_datagrams(rig, direction, count // 10, DATAGRAMS_PER_S, DATAGRAM_BYTES)
    await rig.apply(Conditions(speed_ratio=None, shape=Shape(loss_ratio=LOSS_RATIO)))
    with watch(rig.path(), rig.contended_s) as host:
        came = await send_datagrams(rig, direction, count, DATAGRAMS_PER_S, DATAGRAM_BYTES)
    await rig.apply(FREE)
    lost_without = 1.0 - len(control.times) / (count // 10)
    evidence = Evidence(
        wall_s=host.wall_s,
        stolen_s=host.stolen_s,
        waited_s=host.waited_s,
        drift_ratio=lost_without,
    )
    return Window(1.0 - len(came.times) / count, evidence)
