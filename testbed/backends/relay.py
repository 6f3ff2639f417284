"""One shaped TCP connection: two ends, each reading from its socket into a line.

What one end reads is due at the other when the line says so. An end stops reading while its line
is full, so the sender feels the rate, and the kernel buffer in front of a slow line is kept
small. When one end closes, the other is closed after everything that was under way has arrived.
When the line changes, an end is told, and asks anew when its pieces are due.

Plain asyncio protocols, because a busy device costs thousands of callbacks a second.
"""

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable
from math import inf

from testbed.emulation.link import QUEUE_S, Line, Piece

MAX_IN_FLIGHT_BYTES = 4 << 20
"""Bytes between the two ends of one direction; a full pipe stops the sender, as a TCP window."""

MIN_BUFFER_BYTES = 1 << 16
"""Kernel receive buffer in front of a slow line; a faster one gets what it sends in `QUEUE_S`."""


class Delays:
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


class RelayEnd(asyncio.BufferedProtocol):
    """One end of a connection.

    Args:
        line: Leads to the other end.
        alive: Holds this end until its socket is closed and all that it read has arrived.
        delays: Told how late this end was.
        on_made: Called with this end when its socket is connected; reading waits for
            `start_reading`.
    """

    def __init__(
        self,
        line: Line,
        alive: "set[RelayEnd]",
        delays: Delays,
        on_made: Callable[["RelayEnd"], None] | None = None,
    ) -> None:
        self.peer = self
        """The other end; see `connect_ends`."""
        self.is_open = False
        self._is_lost = False
        """It was open, and never will be again."""
        self._loop = asyncio.get_running_loop()
        self._line = line
        self._alive = alive
        self._delays = delays
        self._on_made = on_made
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(0))
        self._not_before = 0.0
        self._under_way: deque[tuple[Piece, bytes | None]] = deque()
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
        self._go_on()

    def on_change(self) -> None:
        """The line has changed: what is under way has other times."""
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None
        self._schedule()
        self._widen()
        if self._is_waiting:
            self._go_on()

    def has_hung_up(self) -> bool:
        """Tell whether the other side has closed, where the system tells it before we read."""
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
        self._leave()
        self.peer._leave()
        if self._transport is not None:
            self._transport.abort()

    # --- what asyncio calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep quiet until `start_reading`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True
        self._alive.add(self)
        transport.pause_reading()
        self._widen()
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
        self._under_way.append((piece, bytes(self._buffer[:nbytes])))
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
            self._leave()
            self.peer._leave()
            return
        self._under_way.append((self._line.send(self._loop.time(), 0), None))
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
        if self._delivery is None and self._under_way and not self._is_peer_slow:
            due = self._under_way[0][0].due
            if due < inf:
                self._delivery = self._loop.call_at(due, self._on_due)

    def _on_due(self) -> None:
        self._delivery = None
        now = self._loop.time()
        if self._under_way:
            self._delays.note(now - self._under_way[0][0].due)
        self._deliver(now)

    def _deliver(self, now: float) -> None:
        """Hand over what is due, and come back for the rest."""
        was_full = self._in_flight_bytes > MAX_IN_FLIGHT_BYTES
        while self._under_way and self._under_way[0][0].due <= now and not self._is_peer_slow:
            _, data = self._under_way.popleft()
            if data is None:
                self._leave()
                self.peer.close()
                return
            self._in_flight_bytes -= len(data)
            if self.peer.is_open and self.peer._transport is not None:
                self.peer._transport.write(data)
        self._schedule()
        if was_full:
            self._go_on()

    def _leave(self) -> None:
        """Nothing is delivered any more."""
        self._under_way.clear()
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
        self._delays.note(self._loop.time() - self._line.free_at)  # the line has run dry
        self._go_on()

    def _widen(self) -> None:
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

    def _go_on(self) -> None:
        """Read on, unless there is still a reason to wait."""
        self._is_waiting = False
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()
            self._wait_if_full(self._loop.time())


def connect_ends(one: RelayEnd, other: RelayEnd) -> None:
    """Make each end the other's peer."""
    one.peer, other.peer = other, one
