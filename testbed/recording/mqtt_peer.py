"""A broker as the peer of a link probe; any broker that accepts the login will do.

up      chunks at QoS 1; the broker acknowledges each when it has received it
down    retained chunks; the broker sends them all after a subscription

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
"""A size within the message limit of every common broker."""

MAX_BYTES = 4 << 20
"""Limit of the retained chunks."""

IN_FLIGHT = 8
"""Chunks in flight without an acknowledgement."""

CONNECT_S = 10.0
CLEAR_S = 10.0


class MqttPeer:
    """The client of a broker; made by `mqtt_peer`."""

    max_bytes = MAX_BYTES

    def __init__(self, transport: MqttTransport, root: str) -> None:
        self.name = transport.url
        self._transport, self._root = transport, root
        self._payload = os.urandom(CHUNK_BYTES)
        self._retained = 0
        """Chunks that the broker retains."""

    async def round_trip(self) -> float:
        """Publish an empty message and wait for the acknowledgement."""
        began = time.perf_counter()
        await self._transport.publish(f"{self._root}/ping", b"", qos=1)
        return time.perf_counter() - began

    async def up(self, n_bytes: int) -> float:
        """Send chunks until all are acknowledged."""
        began = time.perf_counter()
        await self._publish(n_bytes, retain=False)
        return time.perf_counter() - began

    async def down(self, n_bytes: int) -> float:
        """Receive retained chunks from the broker."""
        if n_bytes > self._retained * CHUNK_BYTES:
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
        """Clear the retained chunks."""
        for number in range(self._retained):
            await self._transport.publish(self._topic(number), b"", qos=1, retain=True)

    def _topic(self, number: int) -> str:
        return f"{self._root}/{number}"

    async def _publish(self, n_bytes: int, *, retain: bool) -> None:
        in_flight = anyio.CapacityLimiter(IN_FLIGHT)

        async def send(number: int) -> None:
            size = min(CHUNK_BYTES, n_bytes - number * CHUNK_BYTES)
            topic = self._topic(number) if retain else f"{self._root}/up"
            async with in_flight:
                await self._transport.publish(topic, self._payload[:size], qos=1, retain=retain)

        if retain:
            self._retained = max(self._retained, _chunks(n_bytes))
        async with anyio.create_task_group() as group:
            for number in range(_chunks(n_bytes)):
                group.start_soon(send, number, name=f"probe.chunk-{number}")


@asynccontextmanager
async def mqtt_peer(url: str) -> AsyncIterator[MqttPeer]:
    """Connect to a broker; clear all retained chunks at the end.

    Raises:
        TransportError: The broker cannot be reached, or refuses the login.
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
