"""Shaping TCP proxies, one per device, many in one process.

    device <-> listener on loopback [ rate, delay, jitter ] <-> broker

`python -m fairbed.testbed.backends.proxy.server PARENT` reads a `ProxySpec` from stdin, prints the
ports, and then changes links on order (`testbed.backends.proxy.protocol`) until stdin ends or its
parent dies. The arithmetic is in `testbed.emulation.link`.

A broker that is down means a connection that is closed at once; it works again when the broker
does. A new connection pays the round trip of its set-up before its first byte, and waits for the
end of a radio hole.

One connection has two ends; each reads from its socket into a line.

What one end reads is due at the other when the line says so. An end stops reading while its line
is full, so the sender feels the rate, and the kernel buffer in front of a slow line is kept
small. When one end closes, the other is closed after everything that was under way has arrived.
When the line changes, each end computes again when its pieces are due.

Plain asyncio protocols, because a busy device costs thousands of callbacks a second.
"""

import asyncio
import os
import select
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from random import Random

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from fairbed.testbed.backends.priority import raise_priority
from fairbed.testbed.backends.proxy.protocol import ChangeReply, LinkState, ProxySpec, Shape
from fairbed.testbed.emulation.link import QUEUE_S, LinkDirection, Piece, set_up_s
from fairbed.testbed.host.guard import die_with_parent

MAX_IN_FLIGHT_BYTES = 4 << 20
"""Bytes between the two ends of one direction; a full pipe stops the sender, as a TCP window."""

MIN_BUFFER_BYTES = 1 << 16
"""Kernel receive buffer in front of a slow line; a faster one gets what it sends in `QUEUE_S`."""


class WorstLateness:
    """How far a process was behind its links: the worst since it was last asked."""

    def __init__(self) -> None:
        self._worst_s = 0.0

    def note(self, late_s: float) -> None:
        """Something was done `late_s` after its time."""
        if late_s > self._worst_s:
            self._worst_s = late_s

    def take(self) -> float:
        """Return the worst since the last call, seconds."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s


class ConnectionEnd(asyncio.BufferedProtocol):
    """One end of a connection.

    Args:
        line: Leads to the other end.
        alive: Holds this end until its socket is closed and all that it read has arrived.
        lateness: Records how late this end was.
        on_made: Called with this end when its socket is connected; reading waits for
            `start_reading`.
    """

    def __init__(
        self,
        line: LinkDirection,
        alive: "set[ConnectionEnd]",
        lateness: WorstLateness,
        on_made: Callable[["ConnectionEnd"], None] | None = None,
    ) -> None:
        self.peer = self
        """The other end; see `connect_ends`."""
        self.is_open = False
        self._is_lost = False
        """It was open, and never will be again."""
        self._loop = asyncio.get_running_loop()
        self._line = line
        self._alive = alive
        self._lateness = lateness
        self._on_made = on_made
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(0))
        self._not_before = 0.0
        self._in_flight: deque[tuple[Piece, bytes | None]] = deque()
        """Pieces and their data, for the peer; None is the end of the stream. Bounded by the line's
        queue and by `MAX_IN_FLIGHT_BYTES`; when full, reading waits."""
        self._in_flight_bytes = 0
        self._is_peer_slow = False
        self._is_waiting = False
        """Reading waits for the line."""
        self._kernel_bytes = 0
        self._delivery: asyncio.TimerHandle | None = None
        self._wake_up: asyncio.TimerHandle | None = None

    def start_reading(self, not_before: float = 0.0) -> None:
        """Begin; nothing that is read leaves earlier than `not_before`."""
        self._not_before = not_before
        self._resume_reading()

    def on_change(self) -> None:
        """The line has changed: what is under way has other times."""
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None
        self._schedule()
        self._grow_kernel_buffer()
        if self._is_waiting:
            self._resume_reading()

    def is_closed_by_peer(self) -> bool:
        """Return whether the other side has closed, where the system tells it before we read."""
        if self._transport is None or not hasattr(select, "POLLRDHUP"):
            return not self.is_open
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close this end; what was written to it is still sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close this end at once; what it has read and what is for it is lost."""
        self._discard()
        self.peer._discard()
        if self._transport is not None:
            self._transport.abort()

    # --- what asyncio calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep quiet until `start_reading`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True
        self._alive.add(self)
        transport.pause_reading()
        self._grow_kernel_buffer()
        if self._on_made is not None:
            self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Read one chunk at a time: the rate then holds over every window of time."""
        size = self._line.chunk_bytes
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        return self._buffer[:size]

    def buffer_updated(self, nbytes: int) -> None:
        """Put a chunk on the line."""
        now = self._loop.time()
        piece = self._line.send(now, nbytes, self._not_before)
        self._in_flight.append((piece, bytes(self._buffer[:nbytes])))
        self._in_flight_bytes += nbytes
        if piece.due <= now:
            self._deliver(now)
        else:
            self._schedule()
        self._wait_if_full(now)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the other end close when the last byte has arrived there."""
        self.is_open, self._is_lost = False, True
        if self._wake_up is not None:
            self._wake_up.cancel()
        if self.peer._is_lost:
            self._discard()
            self.peer._discard()
            return
        self._in_flight.append((self._line.send(self._loop.time(), 0), None))
        self._schedule()

    def pause_writing(self) -> None:
        """Our receiver is slow: the other end keeps what is for us."""
        self.peer._is_peer_slow = True

    def resume_writing(self) -> None:
        """Our receiver goes on."""
        self.peer._is_peer_slow = False
        self.peer._deliver(self._loop.time())

    # --- towards the peer ---------------------------------------------------------------------

    def _schedule(self) -> None:
        """Come back when the first piece is due; in a hole, `on_change` does."""
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
        """Hand over what is due, and come back for the rest."""
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
        """Nothing is delivered any more."""
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
        elif self._line.is_full(now):
            self._transport.pause_reading()
            self._is_waiting = True
            if self._wake_up is not None:
                self._wake_up.cancel()
            ready_at = self._line.ready_at  # in a hole it is never; `on_change` ends that
            self._wake_up = self._loop.call_at(ready_at, self._wake) if ready_at < inf else None

    def _wake(self) -> None:
        self._lateness.note(self._loop.time() - self._line.free_at)  # the line has run dry
        self._resume_reading()

    def _grow_kernel_buffer(self) -> None:
        """Let the kernel hold what the line sends in `QUEUE_S`; that never shrinks again."""
        if self._transport is None or not self.is_open or self._line.rate_bps is None:
            return
        size = max(MIN_BUFFER_BYTES, int(self._line.rate_bps * QUEUE_S / 8.0))
        size = min(size, MAX_IN_FLIGHT_BYTES)
        if size > self._kernel_bytes:
            self._kernel_bytes = size
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, size
            )

    def _resume_reading(self) -> None:
        """Read on, unless there is still a reason to wait."""
        self._is_waiting = False
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()
            self._wait_if_full(self._loop.time())


def connect_ends(one: ConnectionEnd, other: ConnectionEnd) -> None:
    """Make each end the other's peer."""
    one.peer, other.peer = other, one


CONNECT_TIMEOUT_S = 10.0
"""For the broker to accept; then the device's connection is closed."""

_READ_BYTES = 1 << 16


class _DeviceLink:
    """The access link of one device: two lines, shared by all its connections."""

    def __init__(
        self,
        shape: Shape,
        address: tuple[str, int],
        tasks: TaskGroup,
        lateness: WorstLateness,
        random: Random,
    ) -> None:
        self._state = LinkState(shape=shape)
        self._address, self._tasks, self._lateness = address, tasks, lateness
        self._gauss = random.gauss
        self._ends: set[ConnectionEnd] = set()
        self._covered = asyncio.Event()
        self._covered.set()
        self._make_links()

    def accept(self) -> ConnectionEnd:
        """Return the protocol of a new connection of the device."""
        if not self._state.is_plugged:
            return ConnectionEnd(self._up, self._ends, self._lateness, on_made=ConnectionEnd.abort)
        device = ConnectionEnd(self._up, self._ends, self._lateness, on_made=self._start_connecting)
        connect_ends(device, ConnectionEnd(self._down, self._ends, self._lateness))
        return device

    def change(self, state: LinkState) -> None:
        """Be another link from now on."""
        now, shape = asyncio.get_running_loop().time(), state.shape
        self._state = state
        if not state.is_plugged:
            self.disconnect()
            self._make_links()
        down_bps, up_bps = (shape.down_bps, shape.up_bps) if state.is_covered else (0.0, 0.0)
        self._up.change(now, up_bps, shape.delay_s, shape.jitter_s)
        self._down.change(now, down_bps, shape.delay_s, shape.jitter_s)
        for end in list(self._ends):
            end.on_change()
        if state.is_covered:
            self._covered.set()
        else:
            self._covered.clear()

    def disconnect(self) -> None:
        """Break all connections."""
        for end in list(self._ends):
            end.abort()

    def _make_links(self) -> None:
        shape = self._state.shape
        self._up = LinkDirection(shape.up_bps, shape.delay_s, shape.jitter_s, self._standard_normal)
        self._down = LinkDirection(
            shape.down_bps, shape.delay_s, shape.jitter_s, self._standard_normal
        )

    def _standard_normal(self) -> float:
        return self._gauss(0.0, 1.0)

    def _start_connecting(self, device: ConnectionEnd) -> None:
        self._tasks.start_soon(self._connect, device, name="proxy.connect")

    async def _connect(self, device: ConnectionEnd) -> None:
        await self._covered.wait()
        if device.is_closed_by_peer():  # it gave up in the hole: the broker never hears of it
            device.abort()
            return
        loop = asyncio.get_running_loop()
        opened_at = loop.time() + set_up_s(self._up.delay_s)
        try:
            with anyio.fail_after(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: device.peer, *self._address)
        except (OSError, TimeoutError):
            device.close()
            return
        if not device.is_open:
            device.peer.close()
            return
        device.start_reading(not_before=opened_at)
        device.peer.start_reading()


class Proxies:
    """The links of several devices; made by `proxies`."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        """Of each device, on loopback."""
        self._devices: dict[str, _DeviceLink] = {}
        self._lateness = WorstLateness()

    async def open(self, spec: ProxySpec, tasks: TaskGroup, servers: AsyncExitStack) -> None:
        """Listen for each device.

        Raises:
            OSError: A port cannot be opened.
        """
        loop = asyncio.get_running_loop()
        address = (spec.host, spec.port)
        for name, shape in spec.devices.items():
            random = Random(f"{spec.seed} {name}")
            device = _DeviceLink(shape, address, tasks, self._lateness, random)
            server = await loop.create_server(device.accept, "127.0.0.1", 0)
            servers.callback(server.close)
            self._devices[name] = device
            self.ports[name] = server.sockets[0].getsockname()[1]

    def change(self, changes: dict[str, LinkState]) -> ChangeReply:
        """Change links, all of them at once."""
        for name, state in changes.items():
            self._devices[name].change(state)
        return ChangeReply(late_s=self._lateness.take())

    def disconnect_all(self) -> None:
        """Break all connections of all devices."""
        for device in self._devices.values():
            device.disconnect()


@asynccontextmanager
async def proxies(spec: ProxySpec) -> AsyncIterator[Proxies]:
    """Serve one proxy per device on loopback.

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
                await checkpoint()  # asyncio closes an aborted socket in its next turn


class _Requests:
    """Reads orders from stdin while the loop runs, and answers each one."""

    def __init__(self, opened: Proxies) -> None:
        self.parent_left = asyncio.Event()
        self._opened = opened
        self._decoder = msgspec.json.Decoder(dict[str, LinkState])
        self._pending = b""
        asyncio.get_running_loop().add_reader(0, self._read)

    def _read(self) -> None:
        data = os.read(0, _READ_BYTES)
        if not data:
            self.parent_left.set()
        for line in self._lines(data):
            _send_reply(self._opened.change(self._decoder.decode(line)))

    def _lines(self, data: bytes) -> Iterator[bytes]:
        *lines, self._pending = (self._pending + data).split(b"\n")
        yield from lines


def _send_reply(answer: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


async def _serve(spec: ProxySpec) -> None:
    async with proxies(spec) as opened:
        orders = _Requests(opened)
        _send_reply(opened.ports)
        await orders.parent_left.wait()


def main() -> None:
    """Serve a `ProxySpec` from stdin; the first argument is our parent's process id."""
    die_with_parent(int(sys.argv[1]))
    raise_priority()
    anyio.run(_serve, msgspec.json.decode(sys.stdin.buffer.readline(), type=ProxySpec))


if __name__ == "__main__":
    main()
