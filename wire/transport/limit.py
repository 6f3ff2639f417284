"""How large a message a broker takes: found out by sending some to ourselves.

A broker drops one that is too large, or the connection with it; so this is done on a link of its
own, before anything depends on it.
"""

from collections.abc import AsyncIterator

import anyio

from wire.chunks import CHUNK_TIME_S, HEADER_BYTES
from wire.errors import Disconnected
from wire.messages import MAX_CHUNK_BYTES
from wire.transport.base import Incoming, LinkDown, LinkUp, Packet, Transport

CHUNK_SIZES = (64 * 1024, 112 * 1024, 256 * 1024, 480 * 1024, MAX_CHUNK_BYTES)
"""The smallest is what a link probe needs; the second is for brokers with 120 KiB or 128 kB."""

SLACK_BYTES = 128
"""Topics of chunks may be longer than the probe's, and some brokers count them."""

ANSWER_S = 20.0
"""Longest wait for one message to come back; 960 KiB take this at 800 kbit/s both ways."""


async def largest_chunk(transport: Transport, topic: str) -> int:
    """Return the largest chunk that the broker takes, bytes; 0 when it takes none.

    Ends early when a chunk takes so long that no larger one would be used on this link.

    Args:
        transport: A link that nothing else uses; it is entered and left.
        topic: Nobody else's.

    Raises:
        Refused: The broker refused us.
    """
    largest = 0
    async with transport:
        events = transport.events()
        with anyio.move_on_after(ANSWER_S):
            while not isinstance(await anext(events), LinkUp):
                pass
            await transport.subscribe(topic)
        for size in CHUNK_SIZES:
            started_s = anyio.current_time()
            if not await _comes_back(transport, events, topic, size):
                break
            largest = size
            if anyio.current_time() - started_s > CHUNK_TIME_S:
                break
    return largest


async def _comes_back(
    transport: Transport, events: AsyncIterator[Incoming], topic: str, chunk_bytes: int
) -> bool:
    """Send a message as large as a chunk, then a small one that overtakes nothing."""
    large = bytes(HEADER_BYTES + chunk_bytes + SLACK_BYTES)
    mark = chunk_bytes.to_bytes(4, "big")
    with anyio.move_on_after(ANSWER_S):
        try:
            await transport.publish(topic, large)
            await transport.publish(topic, mark)
        except Disconnected:
            return False
        async for event in events:
            match event:
                case LinkDown():
                    return False
                case Packet(payload=payload):
                    if len(payload) == len(large):
                        return True
                    if payload == mark:
                        return False
    return False
