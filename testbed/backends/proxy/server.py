"""Shaping TCP proxies, one per device, many in one process.

    device <-> listener on loopback [ rate, delay, jitter ] <-> broker

`python -m fairbed.testbed.backends.proxy.server PARENT` reads a `ProxySpec` from stdin, prints the
ports, and then changes links on request (`testbed.backends.proxy.protocol`) until stdin ends or the
parent ends. Times are computed by `testbed.emulation.link`.

While the broker is down, a new connection is closed at once. A new connection waits for coverage,
and sends its first byte one round trip later, the time of its set-up.

A connection has two ends. Each end reads from its socket and sends over one direction of the link
to the other end, which writes the data when it is due. An end stops reading while its link is full,
and the kernel buffer in front of a slow link is small, so that the sender is slowed to the rate.
When one end closes, the other closes after all data in flight has arrived. When the link changes,
each end computes new due times for its data.

Plain asyncio protocols are used because a busy device causes thousands of callbacks per second.
"""

import asyncio
import mmap
import os
import select
import socket
import sys
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from math import inf
from pathlib import Path
from random import Random

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from fairbed.testbed.backends.priority import raise_priority
from fairbed.testbed.backends.proxy.protocol import (
    Cell,
    ChangeReply,
    LinkState,
    Membership,
    ProxySpec,
    Shape,
)
from fairbed.testbed.emulation.cell import Direction, Sharer
from fairbed.testbed.emulation.link import QUEUE_S, LinkDirection, Piece, set_up_s
from fairbed.testbed.emulation.shared_link import SharedLinks
from fairbed.testbed.host.guard import die_with_parent

MAX_IN_FLIGHT_BYTES = 4 << 20
"""Bytes in flight in one direction; at this limit the sender waits, as with a full TCP window."""

MIN_BUFFER_BYTES = 1 << 16
"""Kernel receive buffer in front of a slow link; a fast link has a buffer of `QUEUE_S`."""


class WorstLateness:
    """The largest lateness of a process since it was last read."""

    def __init__(self) -> None:
        self._worst_s = 0.0

    def note(self, late_s: float) -> None:
        """Record that an event was handled `late_s` after its due time."""
        if late_s > self._worst_s:
            self._worst_s = late_s

    def take(self) -> float:
        """Return the largest lateness since the last call, seconds."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s


class ConnectionEnd(asyncio.BufferedProtocol):
    """One end of a proxied connection.

    Args:
        link: The direction of the link towards the other end.
        alive: Contains this end until its socket is closed and all data that it read has arrived.
        lateness: Records the lateness of this end.
        on_made: Called with this end when its socket is connected; reading waits for
            `start_reading`.
        on_sent: Called with the current time when a chunk was sent over a link in a cell; may
            change the link.
    """

    def __init__(
        self,
        link: LinkDirection,
        alive: "set[ConnectionEnd]",
        lateness: WorstLateness,
        on_made: Callable[["ConnectionEnd"], None] | None = None,
        on_sent: Callable[[float], None] | None = None,
    ) -> None:
        self.peer = self
        """The other end; see `connect_ends`."""
        self.is_open = False
        self._is_lost = False
        """Whether it was open and is now closed."""
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._alive = alive
        self._lateness = lateness
        self._on_made, self._on_sent = on_made, on_sent
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(0))
        self._not_before = 0.0
        self._in_flight: deque[tuple[Piece, bytes | None]] = deque()
        """Pieces and their data, for the peer; None is the end of the stream. Bounded by the link's
        queue and by `MAX_IN_FLIGHT_BYTES`; at the limit reading waits."""
        self._in_flight_bytes = 0
        self._is_peer_slow = False
        self._has_started = False
        """Whether `start_reading` was called."""
        self._is_waiting = False
        """Whether reading waits for the link."""
        self._kernel_bytes = 0
        self._delivery: asyncio.TimerHandle | None = None
        self._wake_up: asyncio.TimerHandle | None = None

    def start_reading(self, not_before: float = 0.0) -> None:
        """Start to read; no data is sent before `not_before`."""
        self._not_before = not_before
        self._has_started = True
        self._resume_reading()

    def on_change(self) -> None:
        """Recompute the timers after a change of the link."""
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None
        self._schedule()
        self._grow_kernel_buffer()
        if self._is_waiting:
            self._resume_reading()

    def is_closed_by_peer(self) -> bool:
        """Return whether the remote side has closed, if the system reports that before a read."""
        if self._transport is None or not hasattr(select, "POLLRDHUP"):
            return not self.is_open
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close this end after sending all data that was written to it."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close this end at once; drop all data in flight in both directions."""
        self._discard()
        self.peer._discard()
        if self._transport is not None:
            self._transport.abort()

    # --- called by asyncio --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register this end; reading is paused until `start_reading`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True
        self._alive.add(self)
        transport.pause_reading()
        self._loop.call_soon(self._stay_paused)
        self._grow_kernel_buffer()
        if self._on_made is not None:
            self._on_made(self)

    def _stay_paused(self) -> None:
        """Pause again.

        Some Pythons, such as the 3.11.2 of Debian 12, read after `connection_made` all the same.
        """
        if self._transport is not None and not self._has_started:
            self._transport.resume_reading()
            self._transport.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return a buffer of one chunk, so that the rate holds over every time window."""
        size = self._link.chunk_bytes
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        return self._buffer[:size]

    def buffer_updated(self, nbytes: int) -> None:
        """Send a chunk over the link."""
        now = self._loop.time()
        piece = self._link.send(now, nbytes, self._not_before)
        self._in_flight.append((piece, bytes(self._buffer[:nbytes])))
        self._in_flight_bytes += nbytes
        if self._on_sent is not None:
            self._on_sent(now)
        if piece.due <= now:
            self._deliver(now)
        else:
            self._schedule()
        self._wait_if_full(now)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other end when the last byte has arrived there."""
        self.is_open, self._is_lost = False, True
        self._buffer = memoryview(b"")  # the ends are in a cycle, and collections are rare
        if self._wake_up is not None:
            self._wake_up.cancel()
        if self.peer._is_lost:
            self._discard()
            self.peer._discard()
            return
        self._in_flight.append((self._link.send(self._loop.time(), 0), None))
        self._schedule()

    def pause_writing(self) -> None:
        """Stop deliveries to this end: its receiver is slow."""
        self.peer._is_peer_slow = True

    def resume_writing(self) -> None:
        """Continue deliveries to this end."""
        self.peer._is_peer_slow = False
        self.peer._deliver(self._loop.time())

    # --- towards the peer ---------------------------------------------------------------------

    def _schedule(self) -> None:
        """Set a timer for the first due time; in an outage `on_change` sets it."""
        if self._delivery is None and self._in_flight and not self._is_peer_slow:
            due = self._in_flight[0][0].due
            if due < inf:
                self._delivery = self._loop.call_at(due, self._on_due)

    def _on_due(self) -> None:
        self._delivery = None
        now = self._loop.time()
        if self._in_flight:
            self._lateness.note(now - self._in_flight[0][0].due)
        self._deliver(now)

    def _deliver(self, now: float) -> None:
        """Write the data that is due to the peer, and set a timer for the rest."""
        was_full = self._in_flight_bytes > MAX_IN_FLIGHT_BYTES
        while self._in_flight and self._in_flight[0][0].due <= now and not self._is_peer_slow:
            _, data = self._in_flight.popleft()
            if data is None:
                self._discard()
                self.peer.close()
                return
            self._in_flight_bytes -= len(data)
            if self.peer.is_open and self.peer._transport is not None:
                self.peer._transport.write(data)
        self._schedule()
        if was_full:
            self._resume_reading()

    def _discard(self) -> None:
        """Drop all data in flight and unregister this end."""
        self._in_flight.clear()
        self._alive.discard(self)
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None

    def _wait_if_full(self, now: float) -> None:
        if self._transport is None:
            return
        if self._in_flight_bytes > MAX_IN_FLIGHT_BYTES:
            self._transport.pause_reading()  # until something has been delivered
        elif self._link.is_full(now):
            self._transport.pause_reading()
            self._is_waiting = True
            if self._wake_up is not None:
                self._wake_up.cancel()
            ready_at = self._link.ready_at  # `inf` in an outage, which `on_change` ends
            self._wake_up = self._loop.call_at(ready_at, self._wake) if ready_at < inf else None

    def _wake(self) -> None:
        self._lateness.note(self._loop.time() - self._link.free_at)  # the link is idle
        self._resume_reading()

    def _grow_kernel_buffer(self) -> None:
        """Grow the kernel buffer to the data of `QUEUE_S`; it never shrinks."""
        if self._transport is None or not self.is_open or self._link.rate_bps is None:
            return
        size = max(MIN_BUFFER_BYTES, int(self._link.rate_bps * QUEUE_S / 8.0))
        size = min(size, MAX_IN_FLIGHT_BYTES)
        if size > self._kernel_bytes:
            self._kernel_bytes = size
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, size
            )

    def _resume_reading(self) -> None:
        """Continue to read unless the link or the peer is still full."""
        self._is_waiting = False
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()
            self._wait_if_full(self._loop.time())


def connect_ends(one: ConnectionEnd, other: ConnectionEnd) -> None:
    """Make each end the other's peer."""
    one.peer, other.peer = other, one


CONNECT_TIMEOUT_S = 10.0
"""Longest wait for the broker to accept; then the device's connection is closed; seconds."""

_READ_BYTES = 1 << 16


class _CellDirection:
    """One direction of the cells of a process: timers around `emulation.shared_link`."""

    def __init__(self, cells: Mapping[str, Cell], direction: Direction) -> None:
        self.links = SharedLinks(cells, direction)
        self._on_change: dict[str, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.on_time: Callable[[], None] | None = None
        """Called when a link may have become idle."""

    def add(
        self, name: str, link: LinkDirection, sharer: Sharer, on_change: Callable[[], None]
    ) -> None:
        """Add a device; `on_change` is called after each change of its link."""
        self.links.add(name, link, sharer)
        self._on_change[name] = on_change

    def on_sent(self, name: str, now: float) -> None:
        """Note that data was sent over a link."""
        self._changed(self.links.on_sent(name, now))

    def change(self, name: str, now: float, own_bps: float | None, shape: Shape) -> None:
        """Change the own link of a device."""
        self._changed(self.links.change(name, now, own_bps, shape.delay_s, shape.jitter_s))

    def _changed(self, names: Iterable[str]) -> None:
        for name in names:
            self._on_change[name]()
        at = self.links.next_at
        if at < inf and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._changed(self.links.update(asyncio.get_running_loop().time()))
        if self.on_time is not None:
            self.on_time()


class _DeviceLink:
    """The access link of one device: two directions, shared by all its connections.

    In a cell, the rates of both are its shares.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        nodes: Sequence[tuple[str, int]],
        tasks: TaskGroup,
        lateness: WorstLateness,
        random: Random,
        cells: "tuple[_CellDirection, _CellDirection]",
        member: Membership | None = None,
    ) -> None:
        self._name, self._member = name, member
        self._cells = cells
        """Directions down and up of the cells; not used without a cell."""
        self._state = LinkState(shape=shape)
        self._nodes, self._tasks, self._lateness = nodes, tasks, lateness
        self._node = zlib.crc32(name.encode()) % len(nodes)
        self._gauss = random.gauss
        self._ends: set[ConnectionEnd] = set()
        self._covered = asyncio.Event()
        self._covered.set()
        self._make_links()

    def accept(self) -> ConnectionEnd:
        """Return the protocol of a new connection of the device."""
        if not self._state.is_plugged:
            return ConnectionEnd(self._up, self._ends, self._lateness, on_made=ConnectionEnd.abort)
        down_sent = up_sent = None
        if self._member is not None:
            down_sent, up_sent = (partial(one.on_sent, self._name) for one in self._cells)
        device = ConnectionEnd(
            self._up, self._ends, self._lateness, on_made=self._start_connecting, on_sent=up_sent
        )
        broker = ConnectionEnd(self._down, self._ends, self._lateness, on_sent=down_sent)
        connect_ends(device, broker)
        return device

    def change(self, state: LinkState) -> None:
        """Change the link from now on."""
        now, shape = asyncio.get_running_loop().time(), state.shape
        self._state = state
        if not state.is_plugged:
            self.disconnect()
            self._make_links()
        down_bps, up_bps = (shape.down_bps, shape.up_bps) if state.is_covered else (0.0, 0.0)
        self._up.queue_bytes = shape.up_queue_bytes
        self._down.queue_bytes = shape.down_queue_bytes
        if self._member is not None:
            for cells, own_bps in zip(self._cells, (down_bps, up_bps), strict=True):
                cells.change(self._name, now, own_bps, shape)
        else:
            self._up.change(now, up_bps, shape.delay_s, shape.jitter_s)
            self._down.change(now, down_bps, shape.delay_s, shape.jitter_s)
        self._on_change()
        if state.is_covered:
            self._covered.set()
        else:
            self._covered.clear()

    def disconnect(self) -> None:
        """Close all connections at once."""
        for end in list(self._ends):
            end.abort()

    def _make_links(self) -> None:
        shape, normal = self._state.shape, self._standard_normal
        delay_s, jitter_s = shape.delay_s, shape.jitter_s
        self._up = LinkDirection(shape.up_bps, delay_s, jitter_s, normal, shape.up_queue_bytes)
        self._down = LinkDirection(
            shape.down_bps, delay_s, jitter_s, normal, shape.down_queue_bytes
        )
        if self._member is None:
            return
        member, links = self._member, (self._down, self._up)
        for cells, link in zip(self._cells, links, strict=True):
            own_bps = inf if link.rate_bps is None else link.rate_bps
            sharer = Sharer(member.cell, own_bps, member.priority)
            cells.add(self._name, link, sharer, self._on_change)

    def _on_change(self) -> None:
        for end in list(self._ends):
            end.on_change()

    def _standard_normal(self) -> float:
        return self._gauss(0.0, 1.0)

    def _start_connecting(self, device: ConnectionEnd) -> None:
        self._tasks.start_soon(self._connect, device, name="proxy.connect")

    async def _connect(self, device: ConnectionEnd) -> None:
        await self._covered.wait()
        if device.is_closed_by_peer():  # the device gave up during the outage
            device.abort()
            return
        loop = asyncio.get_running_loop()
        opened_at = loop.time() + set_up_s(self._up.delay_s)
        if not await self._connect_to_node(device.peer):
            device.close()
            return
        if not device.is_open:
            device.peer.close()
            return
        device.start_reading(not_before=opened_at)
        device.peer.start_reading()

    async def _connect_to_node(self, end: ConnectionEnd) -> bool:
        """Connect to the current node, or else to the next ones; return whether one accepted."""
        loop = asyncio.get_running_loop()
        for _ in self._nodes:
            try:
                with anyio.fail_after(CONNECT_TIMEOUT_S):
                    await loop.create_connection(lambda: end, *self._nodes[self._node])
                    return True
            except (OSError, TimeoutError):
                self._node = (self._node + 1) % len(self._nodes)
        return False


def _open_waits(path: str) -> "memoryview[float]":
    with Path(path).open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("d")


class Proxies:
    """The links of several devices; see `proxies`."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        """Port of each device, at `ProxySpec.listen_host`."""
        self._devices: dict[str, _DeviceLink] = {}
        self._lateness = WorstLateness()

    async def open(self, spec: ProxySpec, tasks: TaskGroup, servers: AsyncExitStack) -> None:
        """Listen for each device.

        Raises:
            OSError: A port cannot be opened.
        """
        loop = asyncio.get_running_loop()
        cells = _CellDirection(spec.cells, "down"), _CellDirection(spec.cells, "up")
        for name, shape in spec.devices.items():
            random = Random(f"{spec.seed} {name}")
            member = spec.members.get(name)
            device = _DeviceLink(
                name, shape, spec.nodes, tasks, self._lateness, random, cells, member
            )
            server = await loop.create_server(device.accept, spec.listen_host, 0)
            servers.callback(server.close)
            self._devices[name] = device
            self.ports[name] = server.sockets[0].getsockname()[1]
        if spec.waits is not None:
            waits = _open_waits(spec.waits)

            def write() -> None:
                for number, member in enumerate(spec.members):
                    waits[number] = sum(one.links.lost_s(member) for one in cells)

            for one in cells:
                one.on_time = write

    def change(self, changes: dict[str, LinkState]) -> ChangeReply:
        """Change links in one step."""
        for name, state in changes.items():
            self._devices[name].change(state)
        return ChangeReply(late_s=self._lateness.take())

    def disconnect_all(self) -> None:
        """Close all connections of all devices at once."""
        for device in self._devices.values():
            device.disconnect()


@asynccontextmanager
async def proxies(spec: ProxySpec) -> AsyncIterator[Proxies]:
    """Serve one proxy per device.

    Raises:
        OSError: A port cannot be opened.
    """
    opened = Proxies()
    async with anyio.create_task_group() as tasks, AsyncExitStack() as servers:
        await opened.open(spec, tasks, servers)
        try:
            yield opened
        finally:
            tasks.cancel_scope.cancel()
            opened.disconnect_all()
            with anyio.CancelScope(shield=True):
                await checkpoint()  # asyncio closes an aborted socket in its next iteration


class _Requests:
    """Reads changes from stdin while the loop runs, and replies to each."""

    def __init__(self, opened: Proxies) -> None:
        self.parent_ended = asyncio.Event()
        self._opened = opened
        self._decoder = msgspec.json.Decoder(dict[str, LinkState])
        self._pending = b""
        asyncio.get_running_loop().add_reader(0, self._read)

    def _read(self) -> None:
        data = os.read(0, _READ_BYTES)
        if not data:
            self.parent_ended.set()
        for line in self._lines(data):
            _send_reply(self._opened.change(self._decoder.decode(line)))

    def _lines(self, data: bytes) -> Iterator[bytes]:
        *lines, self._pending = (self._pending + data).split(b"\n")
        yield from lines


def _send_reply(reply: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


async def _serve(spec: ProxySpec) -> None:
    async with proxies(spec) as opened:
        requests = _Requests(opened)
        _send_reply(opened.ports)
        await requests.parent_ended.wait()


def main() -> None:
    """Serve a `ProxySpec` from stdin; the first argument is the parent's process id."""
    die_with_parent(int(sys.argv[1]))
    raise_priority()
    anyio.run(_serve, msgspec.json.decode(sys.stdin.buffer.readline(), type=ProxySpec))


if __name__ == "__main__":
    main()
