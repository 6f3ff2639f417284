"""Real brokers for tests, and links to them that can be cut."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import get_args

import anyio
import pytest
from _pytest.mark import ParameterSet
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener

from fairbed.testbed.broker.configuration import BrokerKind
from fairbed.testbed.run.broker import find_broker
from fairbed.wire.transport.address import DEFAULT_CLIENT, Client

KINDS: tuple[BrokerKind, ...] = get_args(BrokerKind)


FAST_KIND = next((kind for kind in KINDS if find_broker(kind) is not None), KINDS[0])
"""The one kind of the fast tier."""


def _marks(kind: BrokerKind, client: Client = DEFAULT_CLIENT) -> list[pytest.MarkDecorator]:
    is_missing = find_broker(kind) is None
    skip = pytest.mark.skipif(is_missing, reason=f"{kind} is not installed")
    is_fast = kind == FAST_KIND and client == DEFAULT_CLIENT
    return [pytest.mark.broker, skip, *([] if is_fast else [pytest.mark.full])]


def _param(kind: BrokerKind) -> ParameterSet:
    return pytest.param(kind, marks=_marks(kind), id=kind)


def _pair(client: Client, kind: BrokerKind) -> ParameterSet:
    return pytest.param((client, kind), marks=_marks(kind, client), id=f"{client}-{kind}")


BROKERS = [_param(kind) for kind in KINDS]
"""Parameters for a fixture: each kind, skipped where it is not installed."""

CLIENTS_AND_BROKERS = [_pair(client, kind) for client in get_args(Client) for kind in KINDS]
"""The same for each of our clients of MQTT."""

PRODUCTION_KINDS = tuple(kind for kind in KINDS if kind != "amqtt")
"""Kinds that faults are tested on; amqtt, the last resort for a first look, keeps the contract."""

PRODUCTION_BROKERS = [_param(kind) for kind in PRODUCTION_KINDS]
CLIENTS_AND_PRODUCTION_BROKERS = [
    _pair(client, kind) for client in get_args(Client) for kind in PRODUCTION_KINDS
]


class Proxy:
    """Passes bytes on to a broker until it is told to cut; made by `proxy_to`."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        """Where clients connect, on loopback."""
        self._upstream = (host, port)
        self._open: set[anyio.CancelScope] = set()
        self._is_shut = False
        self._ended = anyio.Event()

    async def closed(self) -> None:
        """Wait until every connection has ended and its bytes are passed on."""
        while self._open:
            await self._ended.wait()

    def cut(self, *, for_good: bool = False) -> None:
        """Close all connections without a goodbye; `for_good` those that come later, too."""
        self._is_shut = for_good
        for scope in self._open:
            scope.cancel()

    async def serve(self, client: ByteStream) -> None:
        """Pass the bytes of one connection on."""
        if self._is_shut:
            await client.aclose()
            return
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                async with (
                    client,
                    await anyio.connect_tcp(*self._upstream) as broker,
                    anyio.create_task_group() as tasks,
                ):
                    tasks.start_soon(_pump, client, broker, scope)
                    tasks.start_soon(_pump, broker, client, scope)
            except OSError:
                return  # the broker is down: the client finds its connection closed
            finally:
                self._open.discard(scope)
                self._ended.set()
                self._ended = anyio.Event()


async def _pump(source: ByteReceiveStream, to: ByteSendStream, scope: anyio.CancelScope) -> None:
    try:
        async for data in source:
            await to.send(data)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    scope.cancel()


@asynccontextmanager
async def proxy_to(host: str, port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    """Yield a proxy in front of a broker; with `tls` its clients must speak TLS."""
    proxy = Proxy(host, port)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        proxy.port = listener.extra(SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks:
            served = TLSListener(listener, tls, standard_compatible=False) if tls else listener
            tasks.start_soon(served.serve, proxy.serve)
            try:
                yield proxy
            finally:
                tasks.cancel_scope.cancel()
