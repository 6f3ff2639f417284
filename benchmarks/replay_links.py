"""Transfers over real links with loss against the model of TCP that a replay uses.

    fairbed bench replay-links [--rates 2,10] [--delays 20,60] [--losses 0.1,1,3] [--sizes 100,1000]
                               [--transfers 30] [--json] [--from FILE ...] [--write FILE ...]
    fairbed bench replay-links --cliffs [--transfers 40] [--json] [--from ...] [--write ...]
    fairbed bench replay-links --sweep 100000 [--seed 1] [--processes 2]

A cell is a rate (Mbit/s, both ways), a one-way delay (ms), a loss (%, each way) and a size (kB).
Devices in network namespaces make transfers of that size over one TCP connection each, in both
directions by turns, with a pause after each. The model repeats the same sequence of transfers, many
times. A row of the result compares the medians of one cell: of its downloads, of its uploads, and
of both together, as an exchange has one of each. The limits are those of exchanges. Cells run at
the same time, as far as this machine carries their packets. Needs root on Linux.

`--cliffs` compares transfers whose link changes while they run (`benchmarks/_link_cliffs.py`), by
their means, 95th percentiles and retransmission time-outs. `--sweep` makes so many transfers of the
model alone over hostile links, and checks the statements of `testbed/emulation/tcp_transfer.py` at
each event (`benchmarks/_tcp_sweep.py`); it needs no root.
"""

import argparse
import os
import random
import secrets
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from math import ceil, nan
from pathlib import Path

import anyio
import msgspec

from benchmarks import _link_cliffs, _tcp_sweep
from benchmarks._fidelity.host_contention import HostContention, children, watch
from benchmarks._link_transfers import Transfers, markdown_table, measure, plain_table
from benchmarks._pages import page, require_place, write_place
from fairbed.profiles import LinkQueue
from fairbed.testbed.backends.network.network import open_network
from fairbed.testbed.emulation.conditions import Shape
from fairbed.testbed.emulation.queues import depth_bytes
from fairbed.testbed.emulation.tcp import TcpPath, TcpSender
from fairbed.testbed.emulation.tcp_transfer import transfer_end

PAUSE_S = 0.7
"""After a transfer: more than a retransmission time-out, as in an exchange."""

MODELLED, MODELLED_BYTES = 1000, 4e8
"""Transfers of a cell and direction by the model, and their data, at least: half of the small
transfers lose no packet, so the median of a thousand differs by a tenth between two seeds."""

DIRECTIONS = ("down", "up")
EXCHANGE = "exchange"
"""A download and the upload after it."""

DEVICES = 20
"""Devices of a cell, at most. The transfers of one device are not independent: a connection keeps
its window."""

BUDGET_BPS = 24e6
"""Data of all devices at a time: a relay takes 50 to 75 us of a core per packet."""

MAX_WAIT_SHARE = 0.05
"""A process on the path that waited longer for a processor makes a measurement invalid."""

LIMITS = ((0.011, 0.1), (0.031, 0.2))
"""Greatest error of the median of exchanges, by loss."""

MARK, CLIFFS_MARK = "replay links", "cliffs"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of link, and the size of the transfers over it."""

    rate_bps: float
    delay_s: float
    loss_ratio: float
    n_bytes: int

    def path(self, direction: str) -> TcpPath:
        """Return the path of the model in a direction."""
        return TcpPath.constant(
            self.rate_bps,
            self.delay_s,
            self.loss_ratio,
            queue_bytes=depth_bytes(LinkQueue(), self.rate_bps),
            is_lossy_first=direction == "up",
        )


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The transfers of a cell; durations in seconds."""

    cell: Cell
    direction: str
    """`down`, `up` or `exchange`."""
    transfers: Transfers
    """Of each device."""
    count: int
    """Of all devices."""
    live_s: float
    """Median of the measured durations."""
    live_p95_s: float
    model_s: float = nan
    model_p95_s: float = nan
    error: float = nan
    """Of the median of the model, relative."""
    limit: float | None = None
    ok: bool | None = None
    """None if the row has no limit, or the measurement is not valid."""
    waited: float
    """Greatest share of the time that a process on the path waited for a processor."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Devices of one cell that are measured at the same time as those of other cells."""

    cell: Cell
    devices: int
    transfers: Transfers
    bps: float
    """Data of all its devices, on average."""


def main(arguments: list[str]) -> int:
    """Measure and compare, or read earlier rows; print them and return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench replay-links", description=__doc__)
    add = parser.add_argument
    add("--rates", type=_numbers, default=[2.0, 10.0], help="Mbit/s")
    add("--delays", type=_numbers, default=[20.0, 60.0], help="one way, ms")
    add("--losses", type=_numbers, default=[0.1, 1.0, 3.0], help="each way, %%")
    add("--sizes", type=_numbers, default=[100.0, 1000.0], help="kB")
    add("--transfers", type=int, default=30, help="of each cell and direction, at least")
    add("--json", action="store_true")
    add(
        "--from",
        dest="sources",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="rows of earlier measurements (--json), compared with the model as it is now",
    )
    add("--write", nargs="+", type=page, default=[], metavar="FILE")
    add("--cliffs", action="store_true", help="links that change during a transfer")
    add("--sweep", type=int, metavar="N", help="check N transfers of the model alone")
    add("--seed", type=int, default=1, help="of the sweep")
    add("--processes", type=int, default=os.cpu_count() or 1, help="of the sweep")
    options = parser.parse_args(arguments)
    for name in ("transfers", "processes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: must be at least 1, got {getattr(options, name)}")
    if options.sweep is not None:
        return _swept(options)
    require_place(options.write, CLIFFS_MARK if options.cliffs else MARK)
    if options.cliffs:
        return _cliffs(options)
    if options.sources:
        rows = [
            compared(row)
            for source in options.sources
            for row in msgspec.json.decode(source.read_bytes(), type=list[Row])
        ]
    else:
        grid = product(options.rates, options.delays, options.losses, options.sizes)
        cells = [
            Cell(
                rate_bps=1e6 * rate,
                delay_s=1e-3 * delay,
                loss_ratio=0.01 * loss,
                n_bytes=int(1e3 * size),
            )
            for rate, delay, loss, size in grid
        ]
        rows = [row for batch in batches(cells, options.transfers) for row in measured(batch)]
    rows.sort(key=lambda row: (msgspec.structs.astuple(row.cell), row.direction))
    print(msgspec.json.encode(rows).decode() if options.json else plain(rows))
    for path in options.write:
        write_place(path, MARK, markdown(rows))
    return 0


def _swept(options: argparse.Namespace) -> int:
    """Check transfers of the model; return 1 if a statement does not hold."""
    data = _tcp_sweep.folder(os.environ)
    if not _tcp_sweep.drives(data):
        print(f"no drives: FAIRBED_DATA/{_tcp_sweep.DRIVES} does not exist", file=sys.stderr)
    found = _tcp_sweep.sweep(options.sweep, options.seed, data, options.processes)
    print(msgspec.json.encode(found).decode() if options.json else found.text())
    return 1 if found.broken else 0


def _cliffs(options: argparse.Namespace) -> int:
    """Measure links that change, or read earlier rows; print them."""
    if options.sources:
        rows = [
            _link_cliffs.compared(row)
            for source in options.sources
            for row in msgspec.json.decode(source.read_bytes(), type=list[_link_cliffs.CliffRow])
        ]
    else:
        rows = _link_cliffs.measured(_link_cliffs.CLIFFS, options.transfers)
    print(msgspec.json.encode(rows).decode() if options.json else _link_cliffs.plain(rows))
    for path in options.write:
        write_place(path, CLIFFS_MARK, _link_cliffs.markdown(rows))
    return 0


def batches(cells: Iterable[Cell], transfers: int) -> Iterator[list[Measurement]]:
    """Group the cells so that the devices of a group together stay within the budget."""
    batch: list[Measurement] = []
    planned = sorted((_planned(cell, transfers) for cell in cells), key=lambda m: m.bps)
    for one in planned:
        if batch and sum(each.bps for each in batch) + one.bps > BUDGET_BPS:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def _planned(cell: Cell, transfers: int) -> Measurement:
    took_s = statistics.median(
        modelled(cell, "down", Transfers(n_bytes=cell.n_bytes, count=5, pause_s=PAUSE_S))
    )
    bps = 8.0 * cell.n_bytes / (took_s + PAUSE_S)
    devices = max(1, min(DEVICES, transfers, int(BUDGET_BPS / bps)))
    each = Transfers(n_bytes=cell.n_bytes, count=ceil(transfers / devices), pause_s=PAUSE_S)
    return Measurement(cell, devices, each, devices * bps)


@cache
def modelled(cell: Cell, direction: str, transfers: Transfers, least: int = 20) -> Sequence[float]:
    """Return durations by the model: as many connections as give `least` transfers."""
    if direction == EXCHANGE:
        return _exchanges(*(modelled(cell, one, transfers, least) for one in DIRECTIONS))
    path, rng, found = cell.path(direction), random.Random(repr((cell, direction))), list[float]()
    while len(found) < least:
        sender, t = TcpSender(), 0.0
        for _ in range(transfers.count):
            end = transfer_end(path, t, 8.0 * cell.n_bytes, rng, sender)
            found.append(end - t)
            # The other direction has its turn in between.
            t = end + 2.0 * transfers.pause_s + found[-1]
    return found


def measured(batch: Sequence[Measurement]) -> list[Row]:
    """Measure the cells of a batch at the same time, and compare them with the model."""
    live, waited = anyio.run(_measured, batch)
    return [
        _row(each, direction, durations, waited)
        for each, (down, up) in zip(batch, live, strict=True)
        for direction, durations in (("down", down), ("up", up), (EXCHANGE, _exchanges(down, up)))
    ]


def _exchanges(down: Sequence[float], up: Sequence[float]) -> list[float]:
    return [sum(pair) for pair in zip(down, up, strict=True)]


async def _measured(
    batch: Sequence[Measurement],
) -> tuple[list[tuple[list[float], list[float]]], float]:
    """Return the durations of each cell, down and up, and the share of `Row.waited`."""
    of = {f"d{n}-{k}": n for n, each in enumerate(batch) for k in range(each.devices)}
    shapes = {name: _shape(batch[number].cell) for name, number in of.items()}
    seed = secrets.randbits(32)
    async with open_network(f"bench-{secrets.token_hex(4)}", shapes, seed=seed) as network:
        run = partial(
            measure,
            network.hub_address,
            [str(network.namespace(name)) for name in of],
            [batch[number].transfers for number in of.values()],
        )
        with watch([os.getpid(), *children()], lambda: 0.0) as contention:
            times = await anyio.to_thread.run_sync(run)
    live = [(list[float](), list[float]()) for _ in batch]
    for number, each in zip(of.values(), times, strict=True):
        down, up = live[number]
        down += each.down
        up += each.up
    return live, _waited_share(contention)


def _waited_share(contention: HostContention) -> float:
    return max(contention.waited_s, contention.stolen_s) / contention.wall_s


def _shape(cell: Cell) -> Shape:
    return Shape(
        down_bps=cell.rate_bps,
        up_bps=cell.rate_bps,
        delay_s=cell.delay_s,
        loss_ratio=cell.loss_ratio,
    )


def _row(measurement: Measurement, direction: str, live: list[float], waited: float) -> Row:
    return compared(
        Row(
            cell=measurement.cell,
            direction=direction,
            transfers=measurement.transfers,
            count=len(live),
            live_s=statistics.median(live),
            live_p95_s=_p95(live),
            waited=waited,
        )
    )


def compared(row: Row) -> Row:
    """Return a row with the durations of the model, which repeats the same transfers."""
    cell = row.cell
    least = max(MODELLED, ceil(MODELLED_BYTES / cell.n_bytes))
    model = modelled(cell, row.direction, row.transfers, least)
    error = statistics.median(model) / row.live_s - 1.0
    limits = (limit for loss, limit in LIMITS if cell.loss_ratio <= loss)
    limit = next(limits, None) if row.direction == EXCHANGE else None
    is_judged = limit is not None and row.waited <= MAX_WAIT_SHARE
    return msgspec.structs.replace(
        row,
        model_s=statistics.median(model),
        model_p95_s=_p95(model),
        error=error,
        limit=limit,
        ok=abs(error) <= limit if is_judged and limit is not None else None,
    )


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[ceil(0.95 * len(values)) - 1]


HEADER = ("Mbit/s", "delay", "loss", "size", "of", "n", "measured", "model", "error", "")
"""Columns of the tables; medians, with 95th percentiles in brackets."""


def _cells(row: Row) -> list[str]:
    cell = row.cell
    word = {True: "ok", False: "**missed**", None: "not valid" if row.limit else ""}[row.ok]
    return [
        f"{cell.rate_bps / 1e6:g}",
        f"{1e3 * cell.delay_s:g} ms",
        f"{100 * cell.loss_ratio:g} %",
        f"{cell.n_bytes / 1e3:g} kB",
        row.direction,
        str(row.count),
        f"{row.live_s:.3f} s ({row.live_p95_s:.3f})",
        f"{row.model_s:.3f} s ({row.model_p95_s:.3f})",
        f"{100 * row.error:+.1f} %",
        word,
    ]


def plain(rows: Sequence[Row]) -> str:
    """Return the rows as text."""
    waited = max((row.waited for row in rows), default=0.0)
    return plain_table([HEADER, *map(_cells, rows)], waited)


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a table of a document."""
    return markdown_table("fairbed bench replay-links", [HEADER, *map(_cells, rows)])


def _numbers(text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError as exc:
        raise argparse.ArgumentTypeError(
            f"must be numbers with commas, got {text!r}; for example 1,10"
        ) from exc
    if min(found) < 0.0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {text!r}")
    return found
