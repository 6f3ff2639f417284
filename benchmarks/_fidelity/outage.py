"""Holes in a link: the bytes that pass, and the time until a stream resumes.

In a coverage hole packets vanish, and TCP retransmits after doubled intervals. So a stream resumes
up to the length of the hole after its end, as on a real device. A proxy holds the bytes instead,
and continues at once. An unplugged device refuses new connections; an open stream behaves as in a
coverage hole.
"""

import time
from typing import Literal, TypeAlias

import anyio
from msgspec import structs

from benchmarks._fidelity import limits
from benchmarks._fidelity.arithmetic import resumed_s, volumes
from benchmarks._fidelity.end_process import both
from benchmarks._fidelity.host_contention import watch
from benchmarks._fidelity.link import at_rate, stream
from benchmarks._fidelity.measure import Plan, measured_rows, print_row
from benchmarks._fidelity.measured_device import FREE, MeasuredDevice
from benchmarks._fidelity.rows import QuantitySpec, Row, unknown
from benchmarks._fidelity.windows import Evidence, Window

Kind: TypeAlias = Literal["coverage", "unplugged"]

RATE_BPS = 5e6

BEFORE_S = 1.0
"""Duration of the stream before the hole."""

SETTLE_S = 0.15
"""Time after the start of the hole in which data in transit arrive."""


async def outages(measured: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure the bytes in the hole, and the time after it until the stream resumes."""
    lasting_s = plan.pick(3.0, 0.6)
    rows = []
    for kind in _kinds():
        specs = [
            QuantitySpec(
                backend=measured.backend,
                quantity=f"{kind} for {lasting_s:g} s, bytes in it",
                target=0.0,
                unit="bytes",
                limit=0.0,
                is_relative=False,
            ),
            QuantitySpec(
                backend=measured.backend,
                quantity=f"{kind} for {lasting_s:g} s, resumes after",
                target=None,
                unit="s",
                limit=lasting_s + limits.RETRY_S,
                is_bound=True,
            ),
        ]
        if measured.backend == "process" and kind == "unplugged":
            rows += [
                unknown(one, "the proxy cuts connections: no stream can resume") for one in specs
            ]
            for row in rows[-2:]:
                print_row(row)
            continue

        async def measure(kind: Kind = kind) -> list[Window]:
            return await _hole(measured, kind, lasting_s)

        rows += await measured_rows(plan, specs, measure)
    return rows


def _kinds() -> tuple[Kind, Kind]:
    return ("coverage", "unplugged")


async def _hole(measured: MeasuredDevice, kind: Kind, lasting_s: float) -> list[Window]:
    """Stream down through a hole; return the windows of the two quantities."""
    await measured.apply(at_rate(RATE_BPS))

    async def hole() -> tuple[float, float]:
        await anyio.sleep(BEFORE_S)
        await measured.apply(structs.replace(at_rate(RATE_BPS), outage=kind))
        begun = time.monotonic()
        await anyio.sleep(lasting_s)
        ended = time.monotonic()
        await measured.apply(at_rate(RATE_BPS))
        return begun, ended

    with watch(measured.path(), measured.contended_s) as contention:
        streaming = stream(measured, "down", BEFORE_S + 2.5 * lasting_s + 1.0)
        arrivals, (begun, ended) = await both(streaming, hole())
    await measured.apply(FREE)
    evidence = Evidence(
        wall_s=contention.wall_s, stolen_s=contention.stolen_s, waited_s=contention.waited_s
    )
    times, totals = arrivals.times, arrivals.totals
    (inside,) = volumes(times, totals, begun + SETTLE_S, ended - begun - SETTLE_S, 1)
    resumed = resumed_s(times, ended)
    if resumed is None:
        raise ValueError(f"the stream did not resume within {1.5 * lasting_s + 1.0:g} s")
    return [Window(inside, evidence), Window(resumed, evidence)]
