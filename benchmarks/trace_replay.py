"""Accuracy of a link that follows a trace.

    fairbed bench trace-replay [--trace NAME] [--seconds 120] [--json]

One device follows a trace in real time, behind the proxy of the process backend, while greedy
senders fill its link in both directions. The results compare the volume, the volume of each
second, and the silence in a hole. Without `--trace` (a file, or `data:SET/TRACE` under
FAIRBED_DATA) the trace is synthetic: rates of a cellular link, 10 per second, with holes of 3 s.

A second is valid only if neither this process nor the proxy was late by more than 50 ms: otherwise
this machine was contended.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import msgspec
import numpy as np
from anyio.abc import SocketAttribute, SocketStream

from fairbed.profiles.series import Series
from fairbed.profiles.traces import TraceReader
from fairbed.profiles.tracks import LinkTracks
from fairbed.testbed.backends.apply_conditions import link_state
from fairbed.testbed.backends.proxy.links import ShapedLinks, shaped_links
from fairbed.testbed.backends.proxy.protocol import Shape
from fairbed.testbed.backends.schedule_driver import ScheduleDriver
from fairbed.testbed.emulation.conditions import Conditions
from fairbed.testbed.emulation.link import LinkDirection
from fairbed.testbed.emulation.schedule import Schedule, ScheduleFollower

NAME = "device"

DELAY_S = 0.02

LATE_LIMIT_S = 0.05
"""Greatest lateness of a valid second, seconds."""

VOLUME_LIMIT, SECOND_LIMIT, HOLE_LIMIT = 0.03, 0.1, 0.1

ROUNDING_S = 1e-6

LEAST_SECONDS = 5
"""Least number of valid seconds."""

FLOOD = bytes(1 << 16)

Direction = Literal["down", "up"]
DIRECTIONS: tuple[Direction, ...] = ("down", "up")


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of the link."""

    backend: str
    quantity: str
    target: float
    achieved: float | None
    """None without valid seconds."""
    error: float | None
    limit: float
    ok: bool


@dataclass(slots=True)
class Record:
    """Arrivals and lateness, on the run's clock."""

    arrived: dict[Direction, list[tuple[float, int]]] = field(
        default_factory=lambda: {"down": [], "up": []}
    )
    late: list[tuple[float, float]] = field(default_factory=list)
    """(until, seconds late) since the previous entry."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench trace-replay", description=__doc__)
    parser.add_argument("--trace", help="a file, or data:SET/TRACE")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rates = synthetic() if options.trace is None else recorded(options.trace)
    rows = anyio.run(measure, rates, options.seconds)
    if options.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    for row in rows:
        if row.achieved is None or row.error is None:
            print(f"{row.quantity:<32}  unknown: this machine was contended")
        else:
            mark = "ok" if row.ok else f"beyond {row.limit:.0%}"
            numbers = f"{row.target:12.5g}{row.achieved:12.5g}{row.error:+10.2%}"
            print(f"{row.quantity:<32}{numbers}  {mark}")
    return 0


def synthetic(
    seed: int = 7, step_s: float = 0.1, hole_every_s: float = 20.0
) -> dict[Direction, Series]:
    """Return both rates of a cellular link for a minute: log-normal, correlated, with holes."""
    steps, hole = round(60.0 / step_s), round(hole_every_s / step_s)
    rates: dict[Direction, Series] = {}
    for direction, median_bps in (("down", 6e6), ("up", 2e6)):
        noise = np.random.default_rng((seed, len(direction))).standard_normal(steps)
        scores = np.empty(steps)
        last = 0.0
        for index, shock in enumerate(noise.tolist()):
            scores[index] = last = 0.95 * last + (1.0 - 0.95**2) ** 0.5 * shock
        values = np.clip(median_bps * np.exp(0.9 * scores), 2e5, 4e7)
        values[np.arange(steps) % hole >= hole - round(3.0 / step_s)] = 0.0
        rates["down" if direction == "down" else "up"] = Series.sampled(values.tolist(), step_s)
    return rates


def recorded(name: str) -> dict[Direction, Series]:
    """Return both rates of a trace."""
    read = TraceReader(os.environ)
    return {"down": read(name, "down_bps"), "up": read(name, "up_bps")}


async def measure(rates: Mapping[Direction, Series], seconds: int) -> list[Row]:
    """Follow a trace for some seconds and compare the volumes with those of the trace."""
    record = Record()
    steady = LinkTracks(
        down_bps=rates["down"],
        up_bps=rates["up"],
        delay_s=Series.constant(DELAY_S),
        jitter_s=Series.constant(0.0),
        loss_ratio=Series.constant(0.0),
    )
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        log = Path(folder) / "proxy.log"
        shapes = {NAME: Shape(delay_s=DELAY_S, down_bps=1e6, up_bps=1e6)}
        async with (
            _server(record) as port,
            shaped_links("127.0.0.1", port, shapes, log, lambda _: None) as links,
        ):
            begun = anyio.current_time()
            driver = ScheduleDriver(
                _Links(links, record, begun), {NAME: ScheduleFollower(Schedule(link=steady))}
            )
            with anyio.move_on_after(seconds + 0.5):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(driver.run)
                    tasks.start_soon(_watch, record, begun)
                    for direction in DIRECTIONS:
                        tasks.start_soon(_device, links.ports[NAME], direction, record)
            _shift(record, begun)
    return [
        row
        for direction in DIRECTIONS
        for row in _rows(rates[direction], record, direction, seconds)
    ]


class _Links:
    """Passes conditions to the proxy and records its lateness."""

    def __init__(self, links: ShapedLinks, record: Record, begun: float) -> None:
        self._links, self._record, self._begun = links, record, begun

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        requested = anyio.current_time()
        await self._links.change({name: link_state(now) for name, now in conditions.items()})
        now = anyio.current_time()
        late_s = max(self._links.late_s, now - requested)
        self._record.late.append((now - self._begun, late_s))

    def cpu_s(self, name: str) -> float | None:
        return None


async def _watch(record: Record, begun: float) -> None:
    """Record the lateness of this process, which is sender and receiver."""
    while True:
        wanted = anyio.current_time() + 0.02
        await anyio.sleep_until(wanted)
        now = anyio.current_time()
        record.late.append((now - begun, now - wanted))


@asynccontextmanager
async def _server(record: Record) -> AsyncIterator[int]:
    async def serve(stream: SocketStream) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with stream:
                if await stream.receive(1) == b"d":
                    await _flood(stream)
                await _count(stream, "up", record)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield int(listener.extra(SocketAttribute.local_port))
        tasks.cancel_scope.cancel()


async def _device(port: int, direction: Direction, record: Record) -> None:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(direction[:1].encode())
        if direction == "up":
            await _flood(stream)
        await _count(stream, "down", record)


async def _flood(stream: SocketStream) -> None:
    while True:
        await stream.send(FLOOD)


async def _count(stream: SocketStream, direction: Direction, record: Record) -> None:
    while True:
        data = await stream.receive()
        record.arrived[direction].append((anyio.current_time(), len(data)))


def _shift(record: Record, begun: float) -> None:
    """Convert arrival times to the instants at which bits left the link, on the run's clock."""
    for direction in DIRECTIONS:
        record.arrived[direction] = [
            (at - begun - DELAY_S, n) for at, n in record.arrived[direction]
        ]


def _rows(rate: Series, record: Record, direction: Direction, seconds: int) -> list[Row]:
    """Compare all seconds but the first, in which connections are opened."""
    carried = np.zeros(seconds)
    for at, n_bytes in record.arrived[direction]:
        if 0.0 <= at < seconds:
            carried[int(at)] += 8 * n_bytes
    wanted = np.array([rate.integral(t, t + 1.0) for t in range(seconds)])
    counts = _free(record.late, seconds)
    counts[0] = False
    errors = [
        abs(got - bits) / bits
        for got, bits, is_free in zip(carried, wanted, counts, strict=True)
        if is_free and bits > 0.0
    ]
    rows = [_volume(carried[counts], wanted[counts], direction), _second(errors, direction)]
    holes = _holes(rate, seconds)
    silences = [
        (end - start + _piece_s(rate, start, end), silence)
        for start, end in holes
        if counts[int(start) : int(end) + 2].all()
        and (silence := _silence(record.arrived[direction], start, end)) is not None
    ]
    if holes:
        rows.append(_hole(silences, direction))
    return rows


def _free(late: Sequence[tuple[float, float]], seconds: int) -> "np.typing.NDArray[np.bool_]":
    counts = np.ones(seconds, dtype=np.bool_)
    before = 0.0
    for until, late_s in sorted(late):
        if late_s > LATE_LIMIT_S:
            counts[int(max(0.0, min(before, until - late_s))) : int(until) + 2] = False
        before = until
    return counts


def _holes(rate: Series, seconds: int) -> list[tuple[float, float]]:
    holes, t = [], 0.0
    while (change := rate.next_change(t)) is not None and change < seconds - 2:
        t = change + ROUNDING_S  # else the same change may be found again
        if rate.at(t) == 0.0:
            end = rate.next_change(t)
            if end is not None and end < seconds - 2:
                holes.append((change, end))
    return holes


def _piece_s(rate: Series, start: float, end: float) -> float:
    """Return the usual time between two arrivals around a hole: one piece is in transit in it."""
    around = (rate.at(max(0.0, start - 1e-6)), rate.at(end + 1e-6))
    return statistics.fmean(8.0 * LinkDirection(bps, 0.0).chunk_bytes / bps for bps in around)


def _silence(arrived: Sequence[tuple[float, int]], start: float, end: float) -> float | None:
    """Return the longest time without an arrival around a hole."""
    before = [at for at, _ in arrived if at < (start + end) / 2.0]
    after = [at for at, _ in arrived if at >= (start + end) / 2.0]
    return after[0] - before[-1] if before and after else None


def _volume(
    carried: "np.typing.NDArray[np.float64]",
    wanted: "np.typing.NDArray[np.float64]",
    direction: Direction,
) -> Row:
    target = float(wanted.sum()) / 8e6
    if len(wanted) < LEAST_SECONDS or target == 0.0:
        return _never(f"volume {direction}, MB", target, VOLUME_LIMIT)
    achieved = float(carried.sum()) / 8e6
    return _row(f"volume {direction}, MB", target, achieved, achieved / target - 1.0, VOLUME_LIMIT)


def _second(errors: Sequence[float], direction: Direction) -> Row:
    if len(errors) < LEAST_SECONDS:
        return _never(f"error of a second {direction}, median", 0.0, SECOND_LIMIT)
    error = float(statistics.median(errors))
    return _row(f"error of a second {direction}, median", 0.0, error, error, SECOND_LIMIT)


def _hole(silences: Sequence[tuple[float, float]], direction: Direction) -> Row:
    if not silences:
        return _never(f"silence in a hole {direction}, s", 0.0, HOLE_LIMIT)
    target = statistics.median(expected for expected, _ in silences)
    ratio = statistics.median(silence / expected for expected, silence in silences)
    return _row(
        f"silence in a hole {direction}, s", target, target * ratio, ratio - 1.0, HOLE_LIMIT
    )


def _row(quantity: str, target: float, achieved: float, error: float, limit: float) -> Row:
    is_ok = abs(error) <= limit
    return Row("process", quantity, target, achieved, error, limit, ok=is_ok)


def _never(quantity: str, target: float, limit: float) -> Row:
    return Row("process", quantity, target, None, None, limit, ok=False)
