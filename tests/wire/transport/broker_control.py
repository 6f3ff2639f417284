"""Control of the brokers of the transport tests: in memory, and each real broker."""

import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol
from urllib.parse import urlsplit

import anyio

from fairbed.testbed.run.broker import Broker
from fairbed.wire.transport.address import Client
from fairbed.wire.transport.base import Transport, Will
from fairbed.wire.transport.client import MqttTransport
from tests.brokers import Proxy, proxy_to
from tests.wire.transport.memory import MemoryBroker

GOODBYE_S = 1.0
"""How long a proxy may pass on the last bytes of a client; a frozen broker takes none."""


class BrokerControl(Protocol):
    """One broker, its links and its failures."""

    @property
    def kind(self) -> str:
        """`memory`, or the kind of broker."""
        ...

    def link(
        self, client_id: str, will: Will | None = None
    ) -> AbstractAsyncContextManager[Transport]:
        """Enter a new client's link."""
        ...

    def disconnect(self, client_id: str) -> None:
        """Close the connection of a client without DISCONNECT."""
        ...

    def freeze(self) -> None:
        """Stop the broker from answering, without closing connections."""
        ...

    async def kill(self) -> None:
        """Kill the broker as `kill -9` does."""
        ...

    async def start(self) -> None:
        """Start the broker again at the same address."""
        ...


class MemoryBrokerControl:
    """A broker in memory."""

    kind = "memory"

    def __init__(self) -> None:
        self._broker = MemoryBroker()

    @asynccontextmanager
    async def link(self, client_id: str, will: Will | None = None) -> AsyncIterator[Transport]:
        async with self._broker.transport(client_id, will) as transport:
            yield transport

    def disconnect(self, client_id: str) -> None:
        self._broker.disconnect(client_id)

    def freeze(self) -> None:
        """Nothing to do: a publish in memory never waits."""

    async def kill(self) -> None:
        self._broker.stop()

    async def start(self) -> None:
        self._broker.start()


class RealBrokerControl:
    """A real broker; each client has a proxy of its own, which can close its link."""

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
            # amqtt may drop a client that connects right after another one of the same id.
            name = f"{client_id}-{secrets.token_hex(4)}"
            async with MqttTransport(url, name, will=will) as transport:
                yield transport
            with anyio.move_on_after(GOODBYE_S):  # a proxy that goes first loses a DISCONNECT
                await proxy.closed()

    def disconnect(self, client_id: str) -> None:
        self._proxies[client_id].cut()

    def freeze(self) -> None:
        assert self.broker.pid is not None
        os.kill(self.broker.pid, signal.SIGSTOP)

    async def kill(self) -> None:
        await self.broker.kill()

    async def start(self) -> None:
        await self.broker.start()
