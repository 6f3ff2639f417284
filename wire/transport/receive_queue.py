"""The bounded receive queue of a transport: packets that the application has not read yet."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator

from fairbed.wire.errors import Refused
from fairbed.wire.transport.base import Incoming, Packet

MAX_WAITING_PACKETS = 10_000
"""About the messages that a thousand devices send in ten seconds."""

MAX_WAITING_BYTES = 128 * 1024 * 1024
"""Twice the bytes of all upload windows together (16 uploaders x 4 chunks x 960 KiB)."""


_log = logging.getLogger(__name__)


class ReceiveQueue(AsyncIterator[Incoming]):
    """Packets and link changes in order, for a single consumer.

    The windows of the application bound the packets in flight, so the bounds here are a last
    resort. When the queue is full, a new packet of QoS 0 is dropped and counted (chunks are
    requested again, telemetry is sent every second). A packet of QoS 1 is refused, and the
    transport closes the link: a control message is never lost without notice. Link changes are
    always queued.
    """

    def __init__(
        self, max_packets: int = MAX_WAITING_PACKETS, max_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self.dropped = 0
        """Packets of QoS 0 that were dropped because the queue was full."""
        self._max_packets = max_packets
        self._max_bytes = max_bytes
        self._waiting: deque[Incoming] = deque()
        self._waiting_bytes = 0
        self._end: Refused | None = None
        self._is_closed = False
        self._wakeup = asyncio.Event()

    def put(self, item: Incoming, qos: int = 0) -> bool:
        """Queue an item; return False if it is a packet of QoS 1 and the queue is full."""
        if isinstance(item, Packet):
            size = self._waiting_bytes + len(item.payload)
            if len(self._waiting) >= self._max_packets or size > self._max_bytes:
                if qos == 0:
                    self._drop()
                return qos == 0
            self._waiting_bytes = size
        self._waiting.append(item)
        self._wakeup.set()
        return True

    def fail(self, reason: Refused) -> None:
        """Raise `reason` in the consumer after it has read the queued items."""
        self._end = reason
        self._wakeup.set()

    def close(self) -> None:
        """End the consumer's iteration."""
        self._is_closed = True
        self._wakeup.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __aiter__(self) -> "ReceiveQueue":
        return self

    async def __anext__(self) -> Incoming:
        """Return the next item; a cancelled wait loses nothing.

        Raises:
            Refused: The broker refused this client for good.
        """
        while not self._is_closed:
            if self._waiting:
                item = self._waiting.popleft()
                if isinstance(item, Packet):
                    self._waiting_bytes -= len(item.payload)
                return item
            if self._end is not None:
                raise self._end
            self._wakeup.clear()
            await self._wakeup.wait()
        raise StopAsyncIteration

    def _drop(self) -> None:
        if self.dropped == 0:
            _log.warning("receive queue is full: packets of QoS 0 are dropped and counted")
        self.dropped += 1
