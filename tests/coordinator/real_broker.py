"""Links through a real broker that can be cut, and that damage chunks at random."""

import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

from fairbed.testbed.run.broker import Broker
from fairbed.wire.transport.base import Incoming, OnComplete, Packet, Transport, Will
from fairbed.wire.transport.client import MqttTransport
from tests.brokers import Proxy, proxy_to


@dataclass(slots=True)
class ChunkFaults:
    """Probabilities of faults of a chunk, on either side of the broker."""

    loss_ratio: float = 0.0
    duplicate_ratio: float = 0.0
    reorder_ratio: float = 0.0
    """The chunk arrives after the next one."""
    corruption_ratio: float = 0.0
    """One bit of the chunk is flipped."""


def is_bulk(topic: str) -> bool:
    """Return whether a topic carries chunks."""
    return "/c/" in topic or "/u/" in topic or topic.endswith("/data")


class RealBroker:
    """A real broker, with links to it."""

    def __init__(self, broker: Broker, faults: ChunkFaults | None = None, seed: int = 0) -> None:
        self.broker = broker
        self.faults = faults or ChunkFaults()
        self.rng = random.Random(seed)
        self.n_faults = 0
        """Number of chunks with a fault."""
        self.on_publish: Callable[[str, str, bytes], None] = lambda client, topic, payload: None
        """Called before each publish; may raise the errors of a publish."""
        self._links: dict[str, CuttableLink] = {}

    def transport(self, client_id: str, will: Will | None = None) -> Transport:
        """Return a client's link."""
        link = CuttableLink(self, client_id, will)
        self._links[client_id] = link
        return link

    def disconnect(self, client_id: str, *, reconnects: bool = True) -> None:
        """Break a client's link without a goodbye."""
        self._links[client_id].cut(for_good=not reconnects)


class CuttableLink(Transport):
    """A link through a proxy, so that it can be cut."""

    def __init__(self, broker: RealBroker, client_id: str, will: Will | None) -> None:
        self._broker = broker
        self._client_id = client_id
        self._will = will
        self._stack = AsyncExitStack()
        self._proxy: Proxy
        self._link: MqttTransport
        self._late: list[Packet] = []

    async def __aenter__(self) -> "CuttableLink":
        at = urlsplit(self._broker.broker.url)
        assert at.hostname is not None
        assert at.port is not None
        self._proxy = await self._stack.enter_async_context(proxy_to(at.hostname, at.port))
        url = self._broker.broker.url.replace(f":{at.port}", f":{self._proxy.port}")
        # amqtt may drop a client that comes right after another one of the same id.
        name = f"{self._client_id}-{secrets.token_hex(4)}"
        rng = self._broker.rng
        self._link = await self._stack.enter_async_context(
            MqttTransport(url, name, will=self._will, backoff=lambda n: rng.uniform(0.01, 0.03))
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def cut(self, *, for_good: bool) -> None:
        """Break the connection."""
        self._proxy.cut(for_good=for_good)

    async def events(self) -> AsyncIterator[Incoming]:
        async for event in self._link.events():
            if not isinstance(event, Packet) or not is_bulk(event.topic) or not event.payload:
                yield event
                continue
            for packet in self._with_faults(event):
                yield packet

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | memoryview,
        *,
        qos: int = 0,
        retain: bool = False,
        on_complete: OnComplete,
    ) -> None:
        self._broker.on_publish(self._client_id, topic, bytes(payload))
        self._link.publish_nowait(topic, payload, qos=qos, retain=retain, on_complete=on_complete)

    async def publish(
        self, topic: str, payload: bytes | memoryview, *, qos: int = 0, retain: bool = False
    ) -> None:
        self._broker.on_publish(self._client_id, topic, bytes(payload))
        await self._link.publish(topic, payload, qos=qos, retain=retain)

    async def subscribe(self, *filters: str, qos: int = 0) -> None:
        await self._link.subscribe(*filters, qos=qos)

    async def unsubscribe(self, *filters: str) -> None:
        await self._link.unsubscribe(*filters)

    def _with_faults(self, packet: Packet) -> list[Packet]:
        """Return the packets that are delivered instead of a packet: delayed ones come last."""
        broker, faults = self._broker, self._broker.faults
        late, self._late = self._late, []
        got = [packet]
        if broker.rng.random() < faults.loss_ratio:
            got = []
        elif broker.rng.random() < faults.duplicate_ratio:
            got = [packet, packet]
        elif broker.rng.random() < faults.corruption_ratio:
            broken = bytearray(packet.payload)
            broken[broker.rng.randrange(len(broken))] ^= 1 << broker.rng.randrange(8)
            got = [Packet(packet.topic, bytes(broken), packet.retained)]
        elif broker.rng.random() < faults.reorder_ratio:
            got, self._late = [], [packet]
        broker.n_faults += got != [packet]
        return got + late
