"""A broker in memory: the rules of MQTT without sockets, with faults on demand.

Nothing sleeps: a packet arrives, and a lost client reconnects, in the next iteration of the event
loop. All random numbers come from one seed.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import anyio

from fairbed.wire.errors import Disconnected
from fairbed.wire.transport.base import (
    Incoming,
    LinkDown,
    LinkUp,
    OnComplete,
    Packet,
    Transport,
    Will,
)
from fairbed.wire.transport.client import Subscriptions, matches
from fairbed.wire.transport.receive_queue import ReceiveQueue


@dataclass(slots=True)
class Faults:
    """Faults of packets of QoS 0; may be changed while the broker runs."""

    loss_ratio: float = 0.0
    """Probability that a delivery is lost."""
    duplicate_ratio: float = 0.0
    """Probability that a delivery happens twice."""
    reorder_ratio: float = 0.0
    """Probability that a delivery is swapped with the next one of the same iteration."""
    delay_s: float = 0.0
    """Delay of a delivery, seconds; 0 means the next iteration of the loop."""
    is_lost: Callable[[str, Packet], bool] | None = None
    """Called for each delivery with the receiver's client id; True loses it."""


class MemoryBroker:
    """Routes packets between its transports; QoS 1 is never lost while a client is connected."""

    def __init__(self, seed: int = 0, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.retained: dict[str, bytes] = {}
        self.lost = 0
        """Deliveries lost by faults."""
        self._rng = random.Random(seed)
        self._is_up = True
        self._clients: dict[str, MemoryTransport] = {}

    def transport(self, client_id: str, will: Will | None = None) -> "MemoryTransport":
        """Return a client's link to this broker."""
        return MemoryTransport(self, client_id, will)

    def disconnect(self, client_id: str, *, reconnects: bool = True) -> None:
        """Break the link of a client: its will is published; by default it reconnects."""
        client = self._clients.get(client_id)
        if client is not None:
            client.lose("connection lost", reconnects=reconnects)

    def reconnect(self, client_id: str) -> None:
        """Reconnect a client that was disconnected for good."""
        self._clients[client_id].connect_soon()

    def stop(self) -> None:
        """Stop: every link breaks, retained messages are lost, wills are not published."""
        self._is_up = False
        self.retained.clear()
        for client in list(self._clients.values()):
            client.lose("broker is gone", reconnects=False)

    def start(self) -> None:
        """Start after `stop`; all clients reconnect."""
        self._is_up = True
        for client in list(self._clients.values()):
            client.connect_soon()

    def restart(self) -> None:
        """Stop and start, without retained messages."""
        self.stop()
        self.start()

    @property
    def is_up(self) -> bool:
        """Clients can connect."""
        return self._is_up

    def route(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        """Deliver a packet to all subscribed clients."""
        if retain:
            if payload:
                self.retained[topic] = payload
            else:
                self.retained.pop(topic, None)
        for client in list(self._clients.values()):
            granted = client.granted(topic)
            if granted is not None:
                self._deliver(client, Packet(topic, payload), min(qos, granted))

    def replay(self, client: "MemoryTransport", pattern: str, qos: int) -> None:
        """Send the retained messages of a new subscription."""
        for topic, payload in self.retained.items():
            if matches(pattern, topic):
                self._deliver(client, Packet(topic, payload, retained=True), qos)

    def attach(self, client: "MemoryTransport") -> None:
        """Add a client; an older one of the same id is disconnected, as MQTT requires."""
        other = self._clients.get(client.client_id)
        if other is not None and other is not client:
            other.evict()
        self._clients[client.client_id] = client

    def detach(self, client: "MemoryTransport") -> None:
        """Remove a client that disconnected."""
        if self._clients.get(client.client_id) is client:
            del self._clients[client.client_id]

    def _deliver(self, client: "MemoryTransport", packet: Packet, qos: int) -> None:
        faults, rng = self.faults, self._rng
        if qos > 0:
            client.accept(packet, qos, swap=False)
            return
        is_lost = faults.is_lost is not None and faults.is_lost(client.client_id, packet)
        if is_lost or rng.random() < faults.loss_ratio:
            self.lost += 1
            return
        for _ in range(1 + (rng.random() < faults.duplicate_ratio)):
            client.accept(packet, qos, swap=rng.random() < faults.reorder_ratio)


class MemoryTransport(Transport):
    """One client's link to a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, client_id: str, will: Will | None = None) -> None:
        self.client_id = client_id
        self._broker = broker
        self._will = will
        self._received = ReceiveQueue()
        self._subscriptions = Subscriptions()
        self._on_the_way: list[tuple[Packet, int]] = []
        self._is_flushing = False
        self._delayed_since = 0.0
        """When the oldest packet on the way was sent."""
        self._is_up = False
        self._is_left = False
        self._ups = 0

    async def __aenter__(self) -> "MemoryTransport":
        """Start connecting; return at once."""
        self._broker.attach(self)
        self.connect_soon()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect without firing the will."""
        self._is_left = True
        self._is_up = False
        self._broker.detach(self)
        self._received.close()

    @property
    def silent_s(self) -> float:
        """How long the broker has held back what it sends: it is never silent otherwise."""
        now = asyncio.get_running_loop().time()
        return now - self._delayed_since if self._is_flushing else 0.0

    def events(self) -> AsyncIterator[Incoming]:
        """Yield packets and link changes in order, to a single consumer."""
        return self._received

    @property
    def dropped(self) -> int:
        """Packets of QoS 0 that were dropped because the receive queue was full."""
        return self._received.dropped

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | memoryview,
        *,
        qos: int = 0,
        retain: bool = False,
        on_complete: OnComplete,
    ) -> None:
        """Publish without waiting; `on_complete` is called before this returns.

        Raises:
            Disconnected: The link is down; `on_complete` is not called.
        """
        self._check("publish")
        self._broker.route(topic, bytes(payload), qos, retain)
        on_complete()

    async def publish(
        self, topic: str, payload: bytes | memoryview, *, qos: int = 0, retain: bool = False
    ) -> None:
        """Publish.

        Raises:
            Disconnected: The link is down.
        """
        self._check("publish")
        self._broker.route(topic, bytes(payload), qos, retain)
        await anyio.lowlevel.checkpoint()

    async def subscribe(self, *filters: str, qos: int = 0) -> None:
        """Subscribe, now and after each reconnect.

        Raises:
            Disconnected: The link is down; the filters take effect after the reconnect.
        """
        self._subscriptions.add(filters, qos)
        self._check("subscribe")
        for pattern in filters:
            self._broker.replay(self, pattern, qos)
        await anyio.lowlevel.checkpoint()

    async def unsubscribe(self, *filters: str) -> None:
        """Unsubscribe, now and after each reconnect.

        Raises:
            Disconnected: The link is down; the filters are not restored after the reconnect.
        """
        self._subscriptions.discard(filters)
        self._check("unsubscribe")
        await anyio.lowlevel.checkpoint()

    def granted(self, topic: str) -> int | None:
        """Return the QoS at which `topic` is subscribed; None if it is not, or without a link."""
        return self._subscriptions.qos_of(topic) if self._is_up else None

    def accept(self, packet: Packet, qos: int, *, swap: bool) -> None:
        """Schedule the delivery of a packet to the consumer."""
        place = len(self._on_the_way) - (1 if swap and self._on_the_way else 0)
        self._on_the_way.insert(place, (packet, qos))
        if not self._is_flushing:
            self._is_flushing = True
            loop = asyncio.get_running_loop()
            self._delayed_since = loop.time()
            loop.call_later(self._broker.faults.delay_s, self._flush)

    def lose(self, reason: str, *, reconnects: bool) -> None:
        """Lose the link and all packets in flight."""
        if not self._is_up:
            return
        self._is_up = False
        self._on_the_way.clear()
        self._received.put(LinkDown(reason))
        if self._will is not None and self._broker.is_up:
            self._broker.route(self._will.topic, self._will.payload, 1, True)
        if reconnects:
            self.connect_soon()

    def evict(self) -> None:
        """Lose the link for good to another client of the same id."""
        self._is_left = True
        self.lose("another client took this id", reconnects=False)

    def connect_soon(self) -> None:
        """Connect in the next iteration of the loop."""
        asyncio.get_running_loop().call_soon(self._connect)

    def _connect(self) -> None:
        if self._is_left or self._is_up or not self._broker.is_up:
            return
        self._is_up = True
        self._ups += 1
        self._received.put(LinkUp(self._ups))
        for pattern, qos in self._subscriptions.qos.items():
            self._broker.replay(self, pattern, qos)

    def _flush(self) -> None:
        self._is_flushing = False
        arrived, self._on_the_way = self._on_the_way, []
        for packet, qos in arrived:
            if not self._received.put(packet, qos):
                self.lose("the receive queue is full of unread control messages", reconnects=True)
                return

    def _check(self, action: str) -> None:
        if not self._is_up:
            raise Disconnected(f"memory: cannot {action} while down")
