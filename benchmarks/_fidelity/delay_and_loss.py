"""Delay, jitter and loss of packets.

Messages contain the instant of sending, on the clock that both ends share, so each direction is
measured separately. Loss is that of datagrams, because TCP retransmits lost packets.
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
from benchmarks._fidelity.measure import Plan, measured_row, measured_rows, print_row
from benchmarks._fidelity.measured_device import FREE, MeasuredDevice
from benchmarks._fidelity.rows import QuantitySpec, Row, unknown
from benchmarks._fidelity.windows import Evidence, Window
from fairbed.testbed.emulation.conditions import Conditions, Shape

RATE_BPS = 10e6
"""Rate of the link on which delays are measured."""

GAP_S = 0.05
"""Time between two messages: they never build a queue."""

JITTER_S = 0.005
JITTER_DELAY_S = 0.05
JITTER_GAP_S = 0.2
"""Time between two messages that are delayed independently: jitter may be correlated over 20 times
its size."""

DENSE_GAP_S = 0.5e-3
"""Time between two messages of a dense stream: far below the jitter."""

DENSE_START_S = 1.0
"""TCP has found the rate of the stream by then, seconds."""

LOSS_RATIO = 0.02
DATAGRAMS_PER_S, DATAGRAM_BYTES = 2000.0, 100

SILENCE_S = 0.5
"""Silence after which no datagram is in transit."""

LATE_MESSAGES = 0.05
"""Share of messages beyond the 95th percentile. The path may wait as long as the limit for each of
them: then at most this share exceeds the limit because of it."""

MAX_LATENESS_SHARE = 0.5
"""Greatest lateness of the path without a delay, as a share of the limit."""


async def delays(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the median and 95th percentile of the delay of single messages, per direction."""
    rows = []
    limit_s = limits.DELAY_S[measured.backend]
    for delay_s in limits.DELAYS_S[:1] if plan.is_quick else limits.DELAYS_S:
        for direction in _directions():
            specs = [
                QuantitySpec(
                    backend=measured.backend,
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
                delays_s, evidence = await _measured_delays(
                    measured,
                    direction,
                    Shape(down_bps=RATE_BPS, up_bps=RATE_BPS, delay_s=delay_s),
                    round(plan.pick(100, 20)),
                    GAP_S,
                    limit_s,
                )
                return [Window(quantile(delays_s, share), evidence) for share in (0.5, 0.95)]

            rows += await measured_rows(plan, specs, measure)
    return rows


async def jitters(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the standard deviation of the delay of independent messages."""
    rows = []
    for direction in _directions()[: 1 if plan.is_quick else 2]:
        spec = QuantitySpec(
            backend=measured.backend,
            quantity=f"jitter {1e3 * JITTER_S:g} ms {direction}",
            target=JITTER_S,
            unit="s",
        )

        async def measure(direction: Direction = direction) -> Window:
            shape = Shape(delay_s=JITTER_DELAY_S, jitter_s=JITTER_S)
            delays_s, evidence = await _measured_delays(
                measured, direction, shape, round(plan.pick(100, 10)), JITTER_GAP_S, JITTER_S / 2.0
            )
            return Window(statistics.stdev(delays_s), evidence)

        rows.append(await measured_row(plan, spec, measure))
    return rows


async def dense(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the mean delay of a dense stream on a link with jitter: order must not add to it."""
    rows = []
    for direction in _directions()[: 1 if plan.is_quick else 2]:
        spec = QuantitySpec(
            backend=measured.backend,
            quantity=f"mean delay of a dense stream, 50 +- 5 ms {direction}",
            target=JITTER_DELAY_S,
            unit="s",
            is_relative=False,
        )

        async def measure(direction: Direction = direction) -> Window:
            shape = Shape(delay_s=JITTER_DELAY_S, jitter_s=JITTER_S)
            seconds = DENSE_START_S + plan.pick(8.0, 1.0)
            delays_s, evidence = await _measured_delays(
                measured,
                direction,
                shape,
                round(seconds / DENSE_GAP_S),
                DENSE_GAP_S,
                JITTER_S / 2.0,
            )
            return Window(statistics.mean(delays_s[round(DENSE_START_S / DENSE_GAP_S) :]), evidence)

        rows.append(await measured_row(plan, spec, measure))
    return rows


async def losses(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the share of datagrams that do not arrive."""
    rows = []
    for direction in _directions()[: 1 if plan.is_quick else 2]:
        spec = QuantitySpec(
            backend=measured.backend,
            quantity=f"loss {100 * LOSS_RATIO:g} % {direction}",
            target=LOSS_RATIO,
            unit="ratio",
            limit=None if plan.is_quick else limits.LOSS,  # too few to resolve 10 %
        )
        if measured.backend == "process":
            rows.append(unknown(spec, "not emulated: a proxy relays TCP and loses nothing"))
            print_row(rows[-1])
            continue

        async def measure(direction: Direction = direction) -> Window:
            return await _lost(measured, direction, round(plan.pick(20_000, 1000)))

        rows.append(await measured_row(plan, spec, measure))
    return rows


def _directions() -> tuple[Direction, Direction]:
    return ("down", "up")


async def _measured_delays(
    measured: MeasuredDevice,
    direction: Direction,
    shape: Shape,
    count: int,
    gap_s: float,
    tolerance_s: float,
) -> tuple[list[float], Evidence]:
    await measured.apply(FREE)
    control = await one_way_s(measured, direction, 20, 0.01)
    await measured.apply(Conditions(speed_ratio=None, shape=shape))
    with watch(measured.path(), measured.contended_s) as contention:
        delays_s = await one_way_s(measured, direction, count, gap_s)
    await measured.apply(FREE)
    evidence = Evidence(
        wall_s=contention.wall_s,
        stolen_s=contention.stolen_s,
        waited_s=contention.waited_s,
        max_waited=LATE_MESSAGES * count * tolerance_s / contention.wall_s,
        lateness_s=quantile(control, 0.95),
        max_lateness_s=MAX_LATENESS_SHARE * tolerance_s,
    )
    return delays_s, evidence


async def one_way_s(
    measured: MeasuredDevice, direction: Direction, count: int, gap_s: float
) -> list[float]:
    """Return the one-way delay of each of `count` messages over a new connection, seconds."""
    await measured.connect()
    return await message_delays_s(measured, direction, count, gap_s)


async def message_delays_s(
    measured: MeasuredDevice, direction: Direction, count: int, gap_s: float
) -> list[float]:
    """Return the one-way delay of each of `count` messages, seconds."""
    sender, receiver = ends(measured, direction)
    limit_s = count * gap_s + 30.0
    delays_s, _ = await both(
        receiver.request(ReceiveMessages(count=count, limit_s=limit_s), Delays, limit_s + 30.0),
        sender.request(SendMessages(count=count, gap_s=gap_s), Done, limit_s + 30.0),
    )
    return delays_s.seconds


async def send_datagrams(
    measured: MeasuredDevice,
    direction: Direction,
    count: int,
    per_second: float,
    n_bytes: int,
    silence_s: float = SILENCE_S,
) -> Arrivals:
    """Send datagrams; return the arrivals until a silence of `silence_s`."""
    sender, receiver = ends(measured, direction)
    outside = await measured.outside.request(
        OpenDatagrams(towards=(measured.outside_address.host, measured.outside_address.port)),
        Address,
    )
    device = await measured.inside.request(
        OpenDatagrams(towards=(measured.outside_address.host, measured.outside_address.port)),
        Address,
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


async def _lost(measured: MeasuredDevice, direction: Direction, count: int) -> Window:
    await measured.apply(FREE)
    control = await send_datagrams(
        measured, direction, count // 10, DATAGRAMS_PER_S, DATAGRAM_BYTES
    )
    await measured.apply(Conditions(speed_ratio=None, shape=Shape(loss_ratio=LOSS_RATIO)))
    with watch(measured.path(), measured.contended_s) as contention:
        came = await send_datagrams(measured, direction, count, DATAGRAMS_PER_S, DATAGRAM_BYTES)
    await measured.apply(FREE)
    lost_without = 1.0 - len(control.times) / (count // 10)
    evidence = Evidence(
        wall_s=contention.wall_s,
        stolen_s=contention.stolen_s,
        waited_s=contention.waited_s,
        drift_ratio=lost_without,
    )
    return Window(1.0 - len(came.times) / count, evidence)
