"""Transfers whose link changes while they run: over real connections, and by the model of TCP.

All devices of a cell begin a transfer at the same instant, and their links change at the same
instants after it. `python -m benchmarks._link_cliffs PARENT HOST` holds the sockets of the devices.

    machine   d ------>  device                   down: n_bytes follow; the device answers with the
                                                  instant of the last byte
    machine   u ------>  device                   up: n_bytes come back; the device sends the
              r ------>                           instant of the first byte, and its counters

The kernel of the sender counts its retransmission time-outs (`TCP_INFO`, from Linux 6.7 on).
"""

import os
import random
import secrets
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import ceil, inf
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from benchmarks._fidelity.host_contention import children, watch
from benchmarks._link_transfers import OPEN_S, markdown_table, plain_table, receive
from benchmarks._tcp_sweep import stepped
from fairbed.testbed.backends.network.enter import enter, identity
from fairbed.testbed.backends.network.network import Network, open_network
from fairbed.testbed.emulation.conditions import Conditions, Shape
from fairbed.testbed.emulation.tcp import PathState, TcpPath, TcpSender
from fairbed.testbed.emulation.tcp_transfer import transfer_end
from fairbed.testbed.host.guard import die_with_parent

PAUSE_S = 2.0
"""Before a transfer, at its first rate: queues drain."""

DEVICES = 5

MODELLED = 1000
"""Transfers of a cell and direction by the model."""

REPORT = struct.Struct(">di")
"""Instant, and the time-outs of a sender in this transfer."""

_BYTE_BITS, _REPORT_BITS = 8.0, 8.0 * REPORT.size
"""Of the messages between two transfers."""

TIMEOUTS_AT = 240
"""Place of `tcpi_total_rto` in `TCP_INFO`."""

DIRECTIONS = ("down", "up")


class Cliff(msgspec.Struct, frozen=True, kw_only=True):
    """A link that changes during a transfer; rates are those of both directions."""

    name: str
    rates_bps: tuple[float, ...]
    """One after the other; 0 is a hole in the coverage."""
    changes_s: tuple[float, ...]
    """Instant of each change, seconds after the begin of a turn; an upload begins a delay later."""
    delay_s: float = 0.03
    loss_ratio: float = 0.005
    queue_bytes: int = 400_000
    n_bytes: int

    def shape(self, rate_bps: float) -> Shape:
        """Return the link at one of its rates."""
        return Shape(
            down_bps=rate_bps,
            up_bps=rate_bps,
            delay_s=self.delay_s,
            loss_ratio=self.loss_ratio,
            down_queue_bytes=self.queue_bytes,
            up_queue_bytes=self.queue_bytes,
        )

    def path(self, start: float, direction: str) -> TcpPath:
        """Return the path of a transfer that starts at `start`."""
        ends = [*(start + at for at in self.changes_s), inf]
        states = [
            PathState(rate_bps, self.delay_s, 0.0, self.loss_ratio, end)
            for rate_bps, end in zip(self.rates_bps, ends, strict=True)
        ]
        return stepped(states, self.queue_bytes, is_lossy_first=direction == "up")


CLIFFS = (
    Cliff(name="8 to 0.4", rates_bps=(8e6, 4e5), changes_s=(0.3,), n_bytes=400_000),
    Cliff(
        name="8 to 0.4, no loss",
        rates_bps=(8e6, 4e5),
        changes_s=(0.3,),
        loss_ratio=0.0,
        n_bytes=400_000,
    ),
    Cliff(name="8 to 0.04", rates_bps=(8e6, 4e4), changes_s=(0.2,), n_bytes=120_000),
    Cliff(
        name="8 to 0.04, no loss",
        rates_bps=(8e6, 4e4),
        changes_s=(0.2,),
        loss_ratio=0.0,
        n_bytes=120_000,
    ),
    Cliff(name="8, 0.4, 8", rates_bps=(8e6, 4e5, 8e6), changes_s=(0.3, 3.3), n_bytes=1_000_000),
    Cliff(name="8, hole, 8", rates_bps=(8e6, 0.0, 8e6), changes_s=(0.5, 2.0), n_bytes=1_000_000),
)
"""Rates in Mbit/s. At 0.04 Mbit/s a packet takes 0.3 s, longer than the time-out of 0.26 s."""


class CliffRow(msgspec.Struct, frozen=True, kw_only=True):
    """The transfers of a cell in one direction; seconds."""

    cliff: Cliff
    direction: str
    count: int
    changed_s: tuple[float, ...]
    """Mean instant of each change as measured, after the first byte of a transfer: half way between
    the request and its success."""
    live_mean_s: float
    live_p95_s: float
    live_timeouts: float | None
    """Retransmission time-outs of a transfer; None if the kernel does not count them."""
    waited: float
    """Greatest share of the time that a process on the path waited for a processor."""
    model_mean_s: float = 0.0
    model_p95_s: float = 0.0
    model_timeouts: float = 0.0


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    n_bytes: int
    namespaces: list[str]


def measured(cliffs: Iterable[Cliff], transfers: int) -> list[CliffRow]:
    """Make transfers over real links, and compare them with the model."""
    return [compared(row) for cliff in cliffs for row in anyio.run(_measured, cliff, transfers)]


def compared(row: CliffRow) -> CliffRow:
    """Return a row with the transfers of the model as it is now."""
    turns = ceil(row.count / DEVICES)
    cliff = msgspec.structs.replace(row.cliff, changes_s=row.changed_s)
    took_s, timeouts = modelled(cliff, row.direction, turns, MODELLED)
    return msgspec.structs.replace(
        row,
        model_mean_s=statistics.mean(took_s),
        model_p95_s=p95(took_s),
        model_timeouts=timeouts / len(took_s),
    )


def modelled(cliff: Cliff, direction: str, turns: int, least: int) -> tuple[list[float], int]:
    """Return durations by the model, and the time-outs in these transfers.

    Devices repeat what `_measured` does: the transfers and messages of both directions by turns, of
    which each ends with the last device.
    """
    rng, found, timeouts = random.Random(repr((cliff, direction))), list[float](), 0
    while len(found) < least:
        senders = [{one: TcpSender() for one in DIRECTIONS} for _ in range(DEVICES)]
        t = 0.0
        for _ in range(turns):
            for one in DIRECTIONS:
                t += PAUSE_S
                made = [_modelled_turn(cliff, one, each, t, rng) for each in senders]
                t = max(ended for _, _, ended in made)
                if one == direction:
                    found += [took_s for took_s, _, _ in made]
                    timeouts += sum(count for _, count, _ in made)
    return found, timeouts


def _modelled_turn(
    cliff: Cliff, direction: str, senders: Mapping[str, TcpSender], t: float, rng: random.Random
) -> tuple[float, int, float]:
    """Return duration and time-outs of a transfer that its turn begins at `t`, and its end."""

    def sent(way: str, bits: float, at: float) -> float:
        path = cliff.path(start, way)
        return transfer_end(path, at, bits, rng, senders[way], give_up_s=600.0)

    sender = senders[direction]
    start = t + cliff.delay_s if direction == "up" else t
    if direction == "up":
        sent("down", _BYTE_BITS, t)
    before = sender.timeouts
    end = sent(direction, 8.0 * cliff.n_bytes, start)
    count = sender.timeouts - before
    if direction == "up":
        return end - start, count, sent("up", _REPORT_BITS, sent("down", _BYTE_BITS, end))
    return end - start, count, sent("up", _REPORT_BITS, end)


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile of a sample."""
    return sorted(values)[ceil(0.95 * len(values)) - 1]


async def _measured(cliff: Cliff, transfers: int) -> list[CliffRow]:
    names = [f"d{n}" for n in range(DEVICES)]
    shapes = {name: cliff.shape(cliff.rates_bps[0]) for name in names}
    found: dict[str, list[tuple[float, int]]] = {direction: [] for direction in DIRECTIONS}
    changed: dict[str, list[list[float]]] = {direction: [] for direction in DIRECTIONS}
    async with open_network(
        f"bench-{secrets.token_hex(4)}", shapes, seed=secrets.randbits(32)
    ) as network:
        namespaces = [str(network.namespace(name)) for name in names]
        with (
            _devices(network.hub_address, namespaces, cliff.n_bytes) as connections,
            watch([os.getpid(), *children()], lambda: 0.0) as contention,
        ):
            for _ in range(ceil(transfers / DEVICES)):
                for direction in DIRECTIONS:
                    made, at_s = await _turn(network, names, cliff, connections, direction)
                    found[direction] += made
                    changed[direction].append(at_s)
    waited = max(contention.waited_s, contention.stolen_s) / contention.wall_s
    return [_row(cliff, one, of, changed[one], waited) for one, of in found.items()]


def _row(
    cliff: Cliff,
    direction: str,
    found: Sequence[tuple[float, int]],
    changed: Sequence[Sequence[float]],
    waited: float,
) -> CliffRow:
    took_s, timeouts = [took_s for took_s, _ in found], [count for _, count in found]
    return CliffRow(
        cliff=cliff,
        direction=direction,
        count=len(found),
        changed_s=tuple(statistics.mean(instants) for instants in zip(*changed, strict=True)),
        live_mean_s=statistics.mean(took_s),
        live_p95_s=p95(took_s),
        live_timeouts=None if min(timeouts) < 0 else statistics.mean(timeouts),
        waited=waited,
    )


async def _turn(
    network: Network,
    names: Sequence[str],
    cliff: Cliff,
    connections: Sequence[socket.socket],
    direction: str,
) -> tuple[list[tuple[float, int]], list[float]]:
    """Make one transfer of each device.

    Returns:
        Durations, and the time-outs of the senders; and when the link changed, after the mean
        begin of a transfer.
    """

    async def change(rate_bps: float) -> None:
        hole = Conditions(None, cliff.shape(cliff.rates_bps[0]), outage="coverage")
        wanted = hole if rate_bps == 0.0 else Conditions(None, cliff.shape(rate_bps))
        await network.apply(dict.fromkeys(names, wanted))

    await change(cliff.rates_bps[0])
    await anyio.sleep(PAUSE_S)
    make = partial(_download if direction == "down" else _upload, n_bytes=cliff.n_bytes)
    found, changed = list[tuple[float, float, int]](), list[float]()
    begun = time.monotonic()
    async with anyio.create_task_group() as group:

        async def transfers() -> None:
            found.extend(await anyio.to_thread.run_sync(_at_once, make, connections))

        group.start_soon(transfers)
        for at, rate_bps in zip(cliff.changes_s, cliff.rates_bps[1:], strict=True):
            await anyio.sleep(max(begun + at - time.monotonic(), 0.0))
            requested = time.monotonic()
            await change(rate_bps)
            changed.append((requested + time.monotonic()) / 2.0)
    first = statistics.mean(start for start, _, _ in found)
    return [(took_s, count) for _, took_s, count in found], [at - first for at in changed]


def _at_once(
    make: Callable[[socket.socket], tuple[float, float, int]], connections: Sequence[socket.socket]
) -> list[tuple[float, float, int]]:
    """Make a transfer of each connection; return begin, duration and time-outs of each."""
    found: list[tuple[float, float, int]] = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(make(each))) for each in connections
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found) != len(connections):
        raise EOFError("a transfer must end, its connection has closed")
    return found


def _download(connection: socket.socket, n_bytes: int) -> tuple[float, float, int]:
    before, begun = timeouts_of(connection), time.monotonic()
    connection.sendall(b"d" + bytes(n_bytes))
    ended, _ = REPORT.unpack(_exactly(connection, REPORT.size))
    return begun, ended - begun, timeouts_of(connection) - before if before >= 0 else -1


def _upload(connection: socket.socket, n_bytes: int) -> tuple[float, float, int]:
    connection.sendall(b"u")
    receive(connection, n_bytes)
    ended = time.monotonic()
    connection.sendall(b"r")
    begun, timeouts = REPORT.unpack(_exactly(connection, REPORT.size))
    return begun, ended - begun, timeouts


def timeouts_of(connection: socket.socket) -> int:
    """Return the retransmission time-outs of a sender so far; -1 if the kernel does not count."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < TIMEOUTS_AT + 2:
        return -1
    return int.from_bytes(info[TIMEOUTS_AT : TIMEOUTS_AT + 2], sys.byteorder)


def _exactly(connection: socket.socket, n_bytes: int) -> bytes:
    found = b""
    while len(found) < n_bytes:
        got = connection.recv(n_bytes - len(found))
        if not got:
            raise EOFError("the other end closed the connection")
        found += got
    return found


@contextmanager
def _devices(host: str, namespaces: list[str], n_bytes: int) -> Iterator[list[socket.socket]]:
    """Start the process of the devices; yield a connection to each of them."""
    command = [sys.executable, "-m", "benchmarks._link_cliffs", str(os.getpid()), identity()]
    with (
        socket.create_server((host, 0), backlog=len(namespaces)) as listener,
        subprocess.Popen(command, stdin=subprocess.PIPE) as process,
    ):
        assert process.stdin is not None
        port = listener.getsockname()[1]
        plan = _Plan(host=host, port=port, n_bytes=n_bytes, namespaces=namespaces)
        process.stdin.write(msgspec.json.encode(plan))
        process.stdin.close()
        listener.settimeout(OPEN_S)
        connections = [listener.accept()[0] for _ in namespaces]
        try:
            for each in connections:
                each.settimeout(None)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connections
        finally:
            for each in connections:
                each.close()


def _be_device(connection: socket.socket, n_bytes: int) -> None:
    block = bytes(n_bytes)
    with connection:
        while command := connection.recv(1):
            if command == b"d":
                receive(connection, n_bytes)
                connection.sendall(REPORT.pack(time.monotonic(), 0))
                continue
            before, begun = timeouts_of(connection), time.monotonic()
            connection.sendall(block)
            _exactly(connection, 1)
            timeouts = timeouts_of(connection) - before if before >= 0 else -1
            connection.sendall(REPORT.pack(begun, timeouts))


HEADER = ("Mbit/s", "at", "loss", "size", "of", "n", "measured", "model", "error", "time-outs")
"""Columns of the table: means, with 95th percentiles in brackets; time-outs of a transfer, measured
and by the model."""


def cells(row: CliffRow) -> list[str]:
    """Return the cells of a row of the table."""
    cliff = row.cliff
    return [
        cliff.name.removesuffix(", no loss"),
        ", ".join(f"{at:.2f} s" for at in row.changed_s),
        f"{100 * cliff.loss_ratio:g} %",
        f"{cliff.n_bytes / 1e3:g} kB",
        row.direction,
        str(row.count),
        f"{row.live_mean_s:.2f} s ({row.live_p95_s:.2f})",
        f"{row.model_mean_s:.2f} s ({row.model_p95_s:.2f})",
        f"{100 * (row.model_mean_s / row.live_mean_s - 1.0):+.0f} %",
        f"{'?' if row.live_timeouts is None else f'{row.live_timeouts:.2f}'}, "
        f"{row.model_timeouts:.2f}",
    ]


def plain(rows: Sequence[CliffRow]) -> str:
    """Return the rows as text."""
    waited = max((row.waited for row in rows), default=0.0)
    return plain_table([HEADER, *map(cells, rows)], waited)


def markdown(rows: Sequence[CliffRow]) -> str:
    """Return the rows as a table of a document."""
    return markdown_table("fairbed bench replay-links --cliffs", [HEADER, *map(cells, rows)])


def main() -> None:
    """Be all devices: open a connection in each namespace, and do as commanded."""
    parent, host = sys.argv[1:]
    die_with_parent(int(parent))
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=_Plan)
    threads = []
    for namespace in plan.namespaces:
        enter(Path(namespace), host)
        connection = socket.create_connection((plan.host, plan.port), OPEN_S)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threads.append(threading.Thread(target=_be_device, args=(connection, plan.n_bytes)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
