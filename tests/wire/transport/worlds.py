"""The worlds that the transport suite runs in: memory, and each real broker."""

import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol
from urllib.parse import urlsplit

from fairbed.testbed.run.broker import Broker
from fairbed.wire.transport.address import Client
from fairbed.wire.transport.base import Transport, Will
from fairbed.wire.transport.client import MqttTransport
from tests.brokers import Proxy, proxy_to
from tests.wire.transport.memory import MemoryBroker


class World(Protocol):
    """One broker, and what may happen to it."""

    @property
    def kind(self) -> str:
        """`memory`, or the kind of broker."""
        ...

    def link(
        self, client_id: str, will: Will | None = None
    ) -> AbstractAsyncContextManager[Transport]:
        """Enter a new client's link."""
        ...

    def cut(self, client_id: str) -> None:
        """Break a client's connection without a goodbye."""
        ...

    def freeze(self) -> None:
        """Let the broker answer nobody any more, without closing anything."""
        ...

    async def kill(self) -> None:
        """Kill the broker as `kill -9` does."""
        ...

    async def start(self) -> None:
        """Start it again at the same address."""
        ...


class MemoryWorld:
    """A broker in memory."""

    kind = "memory"

    def __init__(self) -> None:
        self._broker = MemoryBroker()

    @asynccontextmanager
    async def link(self, client_id: str, will: Will | None = None) -> AsyncIterator[Transport]:
        async with self._broker.transport(client_id, will) as transport:
            yield transport

    def cut(self, client_id: str) -> None:
        self._broker.disconnect(client_id)

    def freeze(self) -> None:
        """Nothing to do: a publish in memory never waits."""

    async def kill(self) -> None:
        self._broker.stop()

    async def start(self) -> None:
        self._broker.start()


class BrokerWorld:
    """A real broker; each client has a proxy of its own, so that its link can be cut."""

    def __init__(self, broker: Broker, client: Client = "direct") -> None:
        self.broker = broker
        self.client = client
        self.kind: str = broker.kind
        self._proxies: dict[str, Proxy] = {}

    @asynccontextmanager
    async def link(self, client_id: str, will: Will | None = None) -> AsyncIterator[Transport]:
        at = urlsplit(self.broker.url)
        assert at.hostname is not None
        assert at.port is not None
        async with proxy_to(at.hostname, at.port) as proxy:
            self._proxies[client_id] = proxy
            url = self.broker.url.replace(f":{at.port}", f":{proxy.port}?client={self.client}")
            # amqtt may drop a client that comes right after another one of the same id.
            name = f"{client_id}-{secrets.token_hex(4)}"
            async with MqttTransport(url, name, will=will) as transport:
                yield transport

    def cut(self, client_id: str) -> None:
        self._proxies[client_id].cut()

    def freeze(self) -> None:
        assert self.broker.pid is not None
        os.kill(self.broker.pid, signal.SIGSTOP)

    async def kill(self) -> None:
        await self.broker.kill()

    async def start(self) -> None:
        await self.broker.start()
