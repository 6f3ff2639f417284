"""Transfers of the simulated TCP over hostile links, with its statements checked at each event.

A connection has a link of one of these kinds and makes transfers one after the other:

    constant     one rate, delay and loss
    cliffs       the rate changes by up to a factor of 1000 at random instants
    outages      cliffs with holes, of which one in five lasts for minutes
    drive        a recorded drive, from a random second on (`FAIRBED_DATA`)

Queues hold up to 60 s of the fastest rate, losses are from 0 to 30 %, sizes from one packet to 4.5
MB. All numbers of a connection follow from the seed and its number.
"""

import csv
import lzma
import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate, pairwise
from math import inf
from pathlib import Path

import msgspec

from experiments.processes import fresh_processes
from fairbed.testbed.emulation.tcp import WIRE_BYTES, PathState, TcpPath, TcpSender
from fairbed.testbed.emulation.tcp_transfer import BrokenInvariantError, transfer_end

DRIVES = "traces/us_drives_2023.csv.xz"
"""Drives with Starlink and three mobile operators, Mbit/s each second, in `FAIRBED_DATA`."""

KINDS = ("constant", "cliffs", "outages", "drive")

TRANSFERS = 20
"""Of a connection, unless fewer are left."""

PACKET_BITS = 8.0 * 1448
MAX_PACKETS = 3000

BLOCK = 50
"""Connections of one task of a process."""


class Swept(msgspec.Struct, kw_only=True):
    """Result of a sweep."""

    transfers: Counter[str] = msgspec.field(default_factory=Counter)
    """By kind of link."""
    never: int = 0
    """Transfers that did not end within their limit."""
    timeouts: int = 0
    """Retransmission time-outs."""
    broken: list[str] = msgspec.field(default_factory=list)
    """Statements that did not hold, and the connections."""
    took_s: float = 0.0

    def add(self, other: "Swept") -> None:
        """Add the numbers of another part."""
        self.transfers += other.transfers
        self.never += other.never
        self.timeouts += other.timeouts
        self.broken += other.broken

    def text(self) -> str:
        """Return the result in a few lines."""
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(self.transfers.items()))
        return "\n".join(
            [
                f"{self.transfers.total():,} transfers ({kinds}) in {self.took_s:.0f} s: "
                f"{len(self.broken)} broken statements",
                f"{self.never:,} did not end within their limit; {self.timeouts:,} time-outs",
                *self.broken[:10],
            ]
        )


@cache
def drives(data: Path | None) -> Sequence[Sequence[float]]:
    """Return the rates of each drive in a folder of data, bit/s by second; empty without it."""
    file = None if data is None else data / DRIVES
    if file is None or not file.is_file():
        return ()
    found: dict[str, list[float]] = {}
    with lzma.open(file, "rt", newline="", encoding="utf-8") as table:
        for row in csv.DictReader(table):
            found.setdefault(row["trace"], []).append(1e6 * float(row["mbps"]))
    return list(found.values())


def sweep(
    transfers: int,
    seed: int,
    data: Path | None = None,
    processes: int = 1,
    kinds: Sequence[str] = KINDS,
) -> Swept:
    """Make at least so many transfers, and check each.

    Args:
        transfers: Transfers of all connections.
        seed: Seed of the connections, which have the numbers from 0 on.
        data: Folder of `DRIVES`; without it that kind of link is left out.
        processes: Processes that share the connections; the result does not depend on it.
        kinds: Kinds of links, by turns.
    """
    began, found = time.perf_counter(), Swept()
    numbers = range(-(-transfers // TRANSFERS))
    blocks = [numbers[at : at + BLOCK] for at in range(0, len(numbers), BLOCK)]
    if processes == 1:
        for block in blocks:
            found.add(swept(block, seed, data, kinds))
    else:
        with fresh_processes(processes) as pool:
            for part in pool.map(partial(swept, seed=seed, data=data, kinds=kinds), blocks):
                found.add(part)
    found.took_s = time.perf_counter() - began
    return found


def swept(connections: Iterable[int], seed: int, data: Path | None, kinds: Sequence[str]) -> Swept:
    """Make the transfers of these connections."""
    found, recorded = Swept(), drives(data)
    kinds = [kind for kind in kinds if recorded or kind != "drive"]
    for number in connections:
        kind = kinds[number % len(kinds)]
        rng = random.Random(f"{seed} {number}")
        path, sender, t = _path(kind, rng, recorded), TcpSender(), rng.uniform(0.0, 600.0)
        for n in range(TRANSFERS):
            bits = PACKET_BITS * min(
                rng.uniform(0.05, 1.0) * 10 ** rng.uniform(0.0, 3.6), MAX_PACKETS
            )
            limit_s = rng.choice([30.0, 300.0, inf])
            try:
                end = transfer_end(path, t, bits, rng, sender, give_up_s=limit_s, checks=True)
            except (BrokenInvariantError, IndexError, ValueError, ArithmeticError) as exc:
                found.broken.append(f"{kind}, seed {seed}, connection {number}, {n}: {exc!r}")
                break
            found.transfers[kind] += 1
            found.never += end == inf
            t = (t + min(limit_s, 300.0) if end == inf else end) + rng.choice([0.0, 0.7, 30.0])
        found.timeouts += sender.timeouts
    return found


def _path(kind: str, rng: random.Random, recorded: Sequence[Sequence[float]]) -> TcpPath:
    rates, lasting_s = _rates(kind, rng, recorded)
    states = _states(rates, lasting_s, rng)
    queue_s = 10 ** rng.uniform(-2.0, 1.78)  # to 60 s
    queue_bytes = max(2 * WIRE_BYTES, queue_s * max(rates) / 8.0)
    if rng.random() < 0.05:
        queue_bytes = inf
    return stepped(states, queue_bytes, is_lossy_first=rng.random() < 0.5)


def _rates(
    kind: str, rng: random.Random, recorded: Sequence[Sequence[float]]
) -> tuple[list[float], list[float]]:
    """Return rates, bit/s, and how long each lasts, seconds; the last one for ever."""
    if kind == "constant":
        return [10 ** rng.uniform(4.5, 8.5)], [1.0]
    if kind == "drive":
        drive = rng.choice(recorded)
        first = rng.randrange(len(drive))
        rates = [*drive[first:], *drive[:first]]
        return [*rates, max(rates)], [1.0] * (len(rates) + 1)
    fastest, rates, lasting_s = 10 ** rng.uniform(5.5, 8.0), list[float](), list[float]()
    for _ in range(200):
        is_hole = kind == "outages" and rng.random() < 0.3
        rates.append(0.0 if is_hole else fastest * 10 ** rng.uniform(-3.0, 0.0))
        is_long = rng.random() < 0.2
        lasting_s.append(rng.uniform(30.0, 300.0) if is_long else 10 ** rng.uniform(-1.5, 1.3))
    return [*rates, fastest], [*lasting_s, 1.0]


def _states(
    rates: Sequence[float], lasting_s: Sequence[float], rng: random.Random
) -> list[PathState]:
    delay_s, jitter_s = 10 ** rng.uniform(-3.0, -0.2), rng.choice([0.0, 0.0, 0.001, 0.02])
    losses = [0.0, 0.001, 0.01, 0.05, 0.3] if rng.random() < 0.5 else [rng.uniform(0.0, 0.3)]
    ends = [*accumulate(lasting_s[:-1]), inf]
    loss, found = rng.choice(losses), list[PathState]()
    for rate_bps, end in zip(rates, ends, strict=True):
        if rng.random() < 0.05:
            loss = rng.choice(losses)
        found.append(PathState(rate_bps, delay_s, jitter_s, loss, end))
    return found


def stepped(
    states: Sequence[PathState], queue_bytes: float, *, is_lossy_first: bool = False
) -> TcpPath:
    """Return a path with these states, one after the other."""
    ends = [state.until for state in states]
    assert all(one < other for one, other in pairwise(ends)), "each state ends after the one before"
    return TcpPath(
        at=lambda t: states[bisect_right(ends, t)],
        queue_bytes=queue_bytes,
        is_lossy_first=is_lossy_first,
    )


def folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of `FAIRBED_DATA`; None without it."""
    return Path(environ["FAIRBED_DATA"]) if environ.get("FAIRBED_DATA") else None
