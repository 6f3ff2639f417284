"""A broker as the peer of a link probe: any broker that accepts our login.

up      chunks at QoS 1; the broker acknowledges each when it has received it
down    retained chunks; the broker sends them all when we subscribe

The topics are random, and the retained chunks are cleared at the end.
"""

import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from fairbed.wire.errors import TransportError
from fairbed.wire.transport.base import LinkUp, Packet
from fairbed.wire.transport.client import MqttTransport

CHUNK_BYTES = 64 * 1024
"""What brokers with a small limit take, too."""

MAX_BYTES = 4 << 20
"""What the broker keeps for us at most."""

IN_FLIGHT = 8
"""Chunks that are sent without waiting for an acknowledgement."""

CONNECT_S = 10.0
CLEAR_S = 10.0


class MqttPeer:
    """The asking end; made by `mqtt_peer`."""

    max_bytes = MAX_BYTES

    def __init__(self, transport: MqttTransport, root: str) -> None:
        self.name = transport.url
        self._transport, self._root = transport, root
        self._payload = os.urandom(CHUNK_BYTES)
        self._kept = 0
        """Chunks that the broker keeps."""

    async def round_trip(self) -> float:
        """Have one empty message acknowledged."""
        began = time.perf_counter()
        await self._transport.publish(f"{self._root}/ping", b"", qos=1)
        return time.perf_counter() - began

    async def up(self, n_bytes: int) -> float:
        """Send chunks until all are acknowledged."""
        began = time.perf_counter()
        await self._publish(n_bytes, retain=False)
        return time.perf_counter() - began

    async def down(self, n_bytes: int) -> float:
        """Have the broker send what it keeps."""
        if n_bytes > self._kept * CHUNK_BYTES:
            await self._publish(n_bytes, retain=True)
        topics = [self._topic(number) for number in range(_chunks(n_bytes))]
        began = time.perf_counter()
        await self._transport.subscribe(*topics)
        missing = set(topics)
        async for event in self._transport.events():
            if isinstance(event, Packet):
                missing.discard(event.topic)
            if not missing:
                break
        elapsed_s = time.perf_counter() - began
        await self._transport.unsubscribe(*topics)
        return elapsed_s

    async def clear(self) -> None:
        """Have the broker forget what it keeps."""
        for number in range(self._kept):
            await self._transport.publish(self._topic(number), b"", qos=1, retain=True)

    def _topic(self, number: int) -> str:
        return f"{self._root}/{number}"

    async def _publish(self, n_bytes: int, *, retain: bool) -> None:
        places = anyio.CapacityLimiter(IN_FLIGHT)

        async def send(number: int) -> None:
            size = min(CHUNK_BYTES, n_bytes - number * CHUNK_BYTES)
            topic = self._topic(number) if retain else f"{self._root}/up"
            async with places:
                await self._transport.publish(topic, self._payload[:size], qos=1, retain=retain)

        if retain:
            self._kept = max(self._kept, _chunks(n_bytes))
        async with anyio.create_task_group() as group:
            for number in range(_chunks(n_bytes)):
                group.start_soon(send, number, name=f"probe.chunk-{number}")


@asynccontextmanager
async def mqtt_peer(url: str) -> AsyncIterator[MqttPeer]:
    """Connect to a broker; leave nothing there.

    Raises:
        TransportError: It cannot be reached, or refuses us.
    """
    name = secrets.token_hex(6)
    transport = MqttTransport(url, f"fairbed-record-{name}")
    async with transport:
        try:
            with anyio.fail_after(CONNECT_S):
                async for event in transport.events():
                    if isinstance(event, LinkUp):
                        break
        except TimeoutError as exc:
            why = transport.down_reason or "no answer"
            raise TransportError(f"no link within {CONNECT_S:g} s: {why}") from exc
        peer = MqttPeer(transport, f"fairbed-record/{name}")
        try:
            yield peer
        finally:
            with anyio.move_on_after(CLEAR_S, shield=True):
                await peer.clear()


def _chunks(n_bytes: int) -> int:
    return -(-n_bytes // CHUNK_BYTES)
