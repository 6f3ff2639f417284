"""The bounded receive queue of a transport: packets that wait for the application."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from fairbed.wire.errors import Refused
from fairbed.wire.transport.base import Incoming, Packet

MAX_WAITING_PACKETS = 10_000
"""About the messages of a thousand devices in ten seconds."""

MAX_WAITING_BYTES = 128 * 1024 * 1024
"""Twice what all upload windows together allow (16 uploaders x 4 chunks x 960 KiB)."""

ItemT = TypeVar("ItemT")

_log = logging.getLogger(__name__)


class ReceiveQueue(AsyncIterator[Incoming]):
    """Packets and link changes in order, for a single consumer.

    The application's windows bound what is in flight, so the bounds here are a last resort: when
    full, the newest packet of QoS 0 is dropped and counted (chunks are asked for again, telemetry
    comes every second). A packet of QoS 1 is refused, upon which the transport cuts the link:
    control never gets lost in silence. Link changes always fit.
    """

    def __init__(
        self, max_packets: int = MAX_WAITING_PACKETS, max_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self.dropped = 0
        """Packets of QoS 0 that found the queue full."""
        self._max_packets = max_packets
        self._max_bytes = max_bytes
        self._waiting: deque[Incoming] = deque()
        self._waiting_bytes = 0
        self._end: Refused | None = None
        self._is_closed = False
        self._wakeup = asyncio.Event()

    def put(self, item: Incoming, qos: int = 0) -> bool:
        """Queue an item; return False when a packet of QoS 1 found no place."""
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
        """Raise `reason` in the consumer once it has taken what waits."""
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
        """Return what comes next; a consumer that gives up waiting may ask again.

        Raises:
            Refused: The broker said no.
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
            _log.warning("incoming queue is full: packets of QoS 0 are dropped and counted")
        self.dropped += 1


class Sink(asyncio.Queue[ItemT]):
    """Replaces a queue of a library; passes each item on at once."""

    def __init__(self, take: Callable[[ItemT], None], maxsize: int) -> None:
        super().__init__()
        self._take = take

    def put_nowait(self, item: ItemT) -> None:
        """Hand an item on at once."""
        self._take(item)
