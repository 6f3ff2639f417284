"""One shaped TCP connection: two ends, each reading from its socket into a line.

What one end reads is due at the other when the line says so. An end stops reading while its line
is full, so the sender feels the rate, and the kernel buffer in front of a slow line is kept
small. When one end closes, the other is closed after everything that was under way has arrived.

Plain asyncio protocols, because a busy device costs thousands of callbacks a second.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from testbed.emulation.link import QUEUE_S, Line

MAX_IN_FLIGHT_BYTES = 4 << 20
"""Bytes between the two ends of one direction; a full pipe stops the sender, as a TCP window."""

MIN_BUFFER_BYTES = 1 << 16
"""Kernel receive buffer in front of a slow line; a faster one gets what it sends in `QUEUE_S`."""


class RelayEnd(asyncio.BufferedProtocol):
    """One end of a connection.

    Args:
        line: Leads to the other end.
        alive: Holds this end while it is open.
        on_made: Called with this end when its socket is connected; reading waits for
            `start_reading`.
    """

    def __init__(
        self,
        line: Line,
        alive: "set[RelayEnd]",
        on_made: Callable[["RelayEnd"], None] | None = None,
    ) -> None:
        self.peer = self
        """The other end; see `connect_ends`."""
        self.is_open = False
        self._loop = asyncio.get_running_loop()
        self._line = line
        self._alive = alive
        self._on_made = on_made
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(line.chunk_bytes))
        self._not_before = 0.0
        self._under_way: deque[tuple[float, bytes | None]] = deque()
        """(due, data) for the peer; None is the end of the stream. Bounded by the line's queue
        and by `MAX_IN_FLIGHT_BYTES`; when full, reading waits."""
        self._in_flight_bytes = 0
        self._is_peer_slow = False
        self._delivery: asyncio.TimerHandle | None = None
        self._wake_up: asyncio.TimerHandle | None = None

    def start_reading(self, not_before: float = 0.0) -> None:
        """Begin; nothing that is read leaves earlier than `not_before`."""
        self._not_before = not_before
        self._go_on()

    def close(self) -> None:
        """Close this end; what was written to it is still sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close this end at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- what asyncio calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep quiet until `start_reading`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True
        self._alive.add(self)
        transport.pause_reading()
        if self._line.rate_bps is not None:
            size = max(MIN_BUFFER_BYTES, int(self._line.rate_bps * QUEUE_S / 8.0))
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, min(size, MAX_IN_FLIGHT_BYTES)
            )
        if self._on_made is not None:
            self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Read one chunk at a time: the rate then holds over every window of time."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Put a chunk on the line."""
        now = self._loop.time()
        due = self._line.send(now, nbytes, self._not_before)
        self._under_way.append((due, bytes(self._buffer[:nbytes])))
        self._in_flight_bytes += nbytes
        if due <= now:
            self._deliver(now)
        else:
            self._schedule()
        self._wait_if_full(now)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the other end close when the last byte has arrived there."""
        self.is_open = False
        self._alive.discard(self)
        if self._wake_up is not None:
            self._wake_up.cancel()
        now = self._loop.time()
        due = max(self._line.last_due, now + self._line.delay_s)
        self._under_way.append((due, None))
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
        if self._delivery is None and self._under_way and not self._is_peer_slow:
            self._delivery = self._loop.call_at(self._under_way[0][0], self._on_due)

    def _on_due(self) -> None:
        self._delivery = None
        self._deliver(self._loop.time())

    def _deliver(self, now: float) -> None:
        """Hand over what is due, and come back for the rest."""
        was_full = self._in_flight_bytes > MAX_IN_FLIGHT_BYTES
        while self._under_way and self._under_way[0][0] <= now and not self._is_peer_slow:
            _, data = self._under_way.popleft()
            if data is None:
                self.peer.close()
                return
            self._in_flight_bytes -= len(data)
            if self.peer.is_open and self.peer._transport is not None:
                self.peer._transport.write(data)
        self._schedule()
        if was_full:
            self._go_on()

    def _wait_if_full(self, now: float) -> None:
        if self._transport is None:
            return
        if self._in_flight_bytes > MAX_IN_FLIGHT_BYTES:
            self._transport.pause_reading()  # until something has been delivered
        elif self._line.is_full(now):
            self._transport.pause_reading()
            self._wake_up = self._loop.call_at(self._line.ready_at, self._go_on)

    def _go_on(self) -> None:
        """Read on, unless there is still a reason to wait."""
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()
            self._wait_if_full(self._loop.time())


def connect_ends(one: RelayEnd, other: RelayEnd) -> None:
    """Make each end the other's peer."""
    one.peer, other.peer = other, one
