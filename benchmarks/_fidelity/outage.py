"""Holes in a link: does anything pass, and how soon does a stream go on afterwards?

In a radio hole packets vanish, and TCP finds out by trying again, each time after twice as long:
so a stream goes on up to the length of the hole after its end, here as on a real device. A proxy
holds the bytes instead, and goes on at once. What is unplugged refuses new connections; a stream
that was under way finds out as in a radio hole.
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
from benchmarks._fidelity.measure import Plan, print_row, several
from benchmarks._fidelity.measured_device import FREE, MeasuredDevice
from benchmarks._fidelity.rows import QuantitySpec, Row, unknown
from benchmarks._fidelity.windows import Evidence, Window

Kind: TypeAlias = Literal["coverage", "unplugged"]

RATE_BPS = 5e6

BEFORE_S = 1.0
"""Of the stream, until the hole."""

SETTLE_S = 0.15
"""After the hole begins: what is under way arrives."""


async def outages(rig: MeasuredDevice, plan: Plan) -> list[Row]:
    """Measure how many bytes come in the hole, and how long after it the stream goes on."""
    lasting_s = plan.pick(3.0, 0.6)
    rows = []
    for kind in _kinds():
        spec = [
            QuantitySpec(
                backend=rig.backend,
                quantity=f"{kind} for {lasting_s:g} s, bytes in it",
                target=0.0,
                unit="bytes",
                limit=0.0,
                is_relative=False,
            ),
            QuantitySpec(
                backend=rig.backend,
                quantity=f"{kind} for {lasting_s:g} s, goes on after",
                target=None,
                unit="s",
                limit=lasting_s + limits.RETRY_S,
                is_bound=True,
            ),
        ]
        if rig.backend == "process" and kind == "unplugged":
            rows += [
                unknown(one, "the proxy cuts connections: there is no stream to go on")
                for one in spec
            ]
            for row in rows[-2:]:
                print_row(row)
            continue

        async def measure(kind: Kind = kind) -> list[Window]:
            return await _hole(rig, kind, lasting_s)

        rows += await several(plan, spec, measure)
    return rows


def _kinds() -> tuple[Kind, Kind]:
    return ("coverage", "unplugged")


async def _hole(rig: MeasuredDevice, kind: Kind, lasting_s: float) -> list[Window]:
    """Stream down through a hole; return the windows of the two quantities."""
    await rig.apply(at_rate(RATE_BPS))

    async def hole() -> tuple[float, float]:
        await anyio.sleep(BEFORE_S)
        await rig.apply(structs.replace(at_rate(RATE_BPS), outage=kind))
        begun = time.monotonic()
        await anyio.sleep(lasting_s)
        ended = time.monotonic()
        await rig.apply(at_rate(RATE_BPS))
        return begun, ended

    with watch(rig.path(), rig.contended_s) as host:
        streaming = stream(rig, "down", BEFORE_S + 2.5 * lasting_s + 1.0)
        arrivals, (begun, ended) = await both(streaming, hole())
    await rig.apply(FREE)
    evidence = Evidence(wall_s=host.wall_s, stolen_s=host.stolen_s, waited_s=host.waited_s)
    times, totals = arrivals.times, arrivals.totals
    (inside,) = volumes(times, totals, begun + SETTLE_S, ended - begun - SETTLE_S, 1)
    resumed = resumed_s(times, ended)
    if resumed is None:
        raise ValueError(f"the stream did not go on within {1.5 * lasting_s + 1.0:g} s")
    return [Window(inside, evidence), Window(resumed, evidence)]
