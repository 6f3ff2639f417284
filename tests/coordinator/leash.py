"""Links through a real broker that can be cut, and on which packets get lost."""

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
class Mishaps:
    """What happens to a packet of bulk on either side of the broker, each with a probability."""

    loss_ratio: float = 0.0
    duplicate_ratio: float = 0.0
    reorder_ratio: float = 0.0
    """It comes after the next one."""
    corruption_ratio: float = 0.0
    """One bit of it is another."""


def is_bulk(topic: str) -> bool:
    """Tell whether chunks travel on a topic."""
    return "/c/" in topic or "/u/" in topic or topic.endswith("/data")


class RealBroker:
    """Gives out links to one real broker."""

    def __init__(self, broker: Broker, mishaps: Mishaps | None = None, seed: int = 0) -> None:
        self.broker = broker
        self.mishaps = mishaps or Mishaps()
        self.dice = random.Random(seed)
        self.struck = 0
        """Packets that met a mishap."""
        self.on_publish: Callable[[str, str, bytes], None] = lambda client, topic, payload: None
        """Told of each publish before it goes out; may raise what a publish raises."""
        self._links: dict[str, Leash] = {}

    def transport(self, client_id: str, will: Will | None = None) -> Transport:
        """Return a client's link."""
        link = Leash(self, client_id, will)
        self._links[client_id] = link
        return link

    def disconnect(self, client_id: str, *, reconnects: bool = True) -> None:
        """Break a client's link without a goodbye."""
        self._links[client_id].cut(for_good=not reconnects)


class Leash(Transport):
    """A link whose connection runs through a proxy of its own."""

    def __init__(self, home: RealBroker, client_id: str, will: Will | None) -> None:
        self._home = home
        self._client_id = client_id
        self._will = will
        self._stack = AsyncExitStack()
        self._proxy: Proxy
        self._link: MqttTransport
        self._late: list[Packet] = []

    async def __aenter__(self) -> "Leash":
        at = urlsplit(self._home.broker.url)
        assert at.hostname is not None
        assert at.port is not None
        self._proxy = await self._stack.enter_async_context(proxy_to(at.hostname, at.port))
        url = self._home.broker.url.replace(f":{at.port}", f":{self._proxy.port}")
        # amqtt may drop a client that comes right after another one of the same id.
        name = f"{self._client_id}-{secrets.token_hex(4)}"
        dice = self._home.dice
        self._link = await self._stack.enter_async_context(
            MqttTransport(url, name, will=self._will, backoff=lambda n: dice.uniform(0.01, 0.03))
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
            for packet in self._suffer(event):
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
        self._home.on_publish(self._client_id, topic, bytes(payload))
        self._link.publish_nowait(topic, payload, qos=qos, retain=retain, on_complete=on_complete)

    async def publish(
        self, topic: str, payload: bytes | memoryview, *, qos: int = 0, retain: bool = False
    ) -> None:
        self._home.on_publish(self._client_id, topic, bytes(payload))
        await self._link.publish(topic, payload, qos=qos, retain=retain)

    async def subscribe(self, *filters: str, qos: int = 0) -> None:
        await self._link.subscribe(*filters, qos=qos)

    async def unsubscribe(self, *filters: str) -> None:
        await self._link.unsubscribe(*filters)

    def _suffer(self, packet: Packet) -> list[Packet]:
        """Return what becomes of a packet, and of those that were held back."""
        home, mishaps = self._home, self._home.mishaps
        late, self._late = self._late, []
        got = [packet]
        if home.dice.random() < mishaps.loss_ratio:
            got = []
        elif home.dice.random() < mishaps.duplicate_ratio:
            got = [packet, packet]
        elif home.dice.random() < mishaps.corruption_ratio:
            broken = bytearray(packet.payload)
            broken[home.dice.randrange(len(broken))] ^= 1 << home.dice.randrange(8)
            got = [Packet(packet.topic, bytes(broken), packet.retained)]
        elif home.dice.random() < mishaps.reorder_ratio:
            got, self._late = [], [packet]
        home.struck += got != [packet]
        return got + late
