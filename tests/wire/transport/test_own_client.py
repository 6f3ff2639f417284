"""Our own client of MQTT, where it alone can be asked: pings, nonsense, and full pipes."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
from anyio.abc import SocketStream

from fairbed.wire.errors import Disconnected, Refused
from fairbed.wire.transport.base import LinkDown, LinkUp
from fairbed.wire.transport.client import MqttTransport
from fairbed.wire.transport.protocol.packets import DISCONNECT, PINGREQ
from tests.wire.transport.drivers import up
from tests.wire.transport.test_aiomqtt_client import (
    ACCEPTED,
    GIVE_UP_S,
    SUBSCRIBED,
    broker_that,
    says,
    stays,
)

pytestmark = pytest.mark.anyio

PINGRESP = b"\xd0\x00"
MEGABYTE = bytes(1_000_000)

broker = partial(broker_that, "direct")


def link_to(url: str, *, keepalive_s: int = 15, publish_timeout_s: float = 60.0) -> MqttTransport:
    return MqttTransport(
        url,
        "me",
        keepalive_s=keepalive_s,
        publish_timeout_s=publish_timeout_s,
        backoff=lambda retry: 0.0,
    )


async def down(link: MqttTransport) -> str:
    """Wait until the link is lost; return why."""
    async for event in link.events():
        if isinstance(event, LinkDown):
            return event.reason
    raise AssertionError("the transport was left")


async def test_a_quiet_link_is_kept_alive() -> None:
    heard: list[bytes] = []
    twice = anyio.Event()

    async def talk(client: SocketStream) -> None:
        await says(ACCEPTED)(client)
        for _ in range(2):
            heard.append(await client.receive())
            await client.send(PINGRESP)
        twice.set()
        heard.append(await client.receive())

    with anyio.fail_after(GIVE_UP_S):
        async with broker(talk) as url, link_to(url, keepalive_s=1) as link:
            await up(link)
            await twice.wait()
            await anyio.wait_all_tasks_blocked()
            assert link.down_reason is None
    assert heard == [PINGREQ, PINGREQ, DISCONNECT]


async def test_a_broker_that_answers_no_ping_is_given_up() -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with (
            broker(stays(ACCEPTED), stays(ACCEPTED)) as url,
            link_to(url, keepalive_s=1) as link,
        ):
            await up(link)
            assert (await down(link)).startswith("the broker has been silent for ")
            assert await anext(link.events()) == LinkUp(2)


@pytest.mark.parametrize(
    ("nonsense", "rule"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "one that a broker sends, got type 4 with flags 8"),
        (b"\x30\x03\x00\x01\xff", "a topic must be UTF-8"),
        (b"\x34\x03\x00\x01t", "PUBLISH must be of QoS 0 or 1, got 2"),
        (ACCEPTED, "CONNACK must come once"),
        (b"\x30\xff\xff\xff\xff\x01", "a length must take at most 4 bytes"),
    ],
    ids=["http", "utf-8", "qos-2", "connack", "length"],
)
async def test_nonsense_of_a_broker_costs_the_link_and_nothing_else(
    nonsense: bytes, rule: str
) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with (
            broker(stays(ACCEPTED, nonsense), stays(ACCEPTED)) as url,
            link_to(url) as link,
        ):
            await up(link)
            with pytest.raises(Disconnected, match=rule):
                await link.publish("x", b"", qos=1)
            assert rule in await down(link)
            assert await anext(link.events()) == LinkUp(2)


@pytest.mark.parametrize(
    "first", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\x30\x04\x00\x01t!", b"\x20\x03\x00\x00\x00"]
)
async def test_what_does_not_begin_as_mqtt_does_is_no_broker(first: bytes) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with broker(says(first)) as url, link_to(url) as link:
            with pytest.raises(Refused, match=r"does an MQTT 3\.1\.1 broker listen there\?"):
                await anext(link.events())


async def test_a_user_name_that_mqtt_forbids_is_refused() -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with broker() as url, link_to(url.replace("user", "%00")) as link:
            with pytest.raises(Refused, match="a text must be without zeros"):
                await anext(link.events())


async def test_answers_that_nobody_waits_for_are_rejected() -> None:
    strays = b"\x40\x02\x00\x09" + b"\xb0\x02\x00\x09" + b"\x90\x03\x00\x09\x00" + PINGRESP
    with anyio.fail_after(GIVE_UP_S):
        async with broker(stays(ACCEPTED, strays + SUBSCRIBED)) as url, link_to(url) as link:
            await up(link)
            await link.subscribe("t")
            assert link.down_reason is None


@asynccontextmanager
async def deaf_broker(told: anyio.Event, received: list[int]) -> AsyncIterator[str]:
    """Yield the URL of a broker that lets one client in, and reads when it is told to.

    On a bare socket: streams read ahead.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)

        async def serve() -> None:
            await anyio.wait_readable(server)
            with server.accept()[0] as client:
                client.send(ACCEPTED)
                await told.wait()
                while not received or received[-1]:
                    await anyio.wait_readable(client)
                    received.append(len(client.recv(1 << 20)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            yield f"mqtt://127.0.0.1:{server.getsockname()[1]}"
            await told.wait()


async def publish(link: MqttTransport, count: int, published: list[int]) -> None:
    for number in range(count):
        await link.publish("x", MEGABYTE)
        published.append(number)


async def test_whoever_publishes_waits_for_a_broker_that_does_not_read() -> None:
    told, received, published = anyio.Event(), list[int](), list[int]()
    with anyio.fail_after(GIVE_UP_S):
        async with deaf_broker(told, received) as url, link_to(url) as link:
            await up(link)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(publish, link, 16, published)
                await anyio.wait_all_tasks_blocked()
                held = len(published)
                told.set()
    assert held < 16
    assert published == list(range(16))
    assert sum(received) > 16 * len(MEGABYTE)  # topics and a goodbye, too


async def test_a_broker_that_never_reads_costs_the_link() -> None:
    told = anyio.Event()
    with anyio.fail_after(GIVE_UP_S):
        async with deaf_broker(told, []) as url:
            async with link_to(url, publish_timeout_s=0.05) as link:
                await up(link)
                with pytest.raises(Disconnected, match="publish took longer than"):
                    await publish(link, 16, [])
                assert "publish took longer" in await down(link)
            told.set()


async def test_what_is_sent_in_one_turn_of_the_loop_leaves_together() -> None:
    heard: list[bytes] = []

    async def talk(client: SocketStream) -> None:
        await says(ACCEPTED)(client)
        heard.append(await client.receive())

    with anyio.fail_after(GIVE_UP_S):
        async with broker(talk) as url, link_to(url) as link:
            await up(link)
            for number in range(3):
                link.publish_nowait("x", bytes([number]), on_complete=lambda: None)
            await down(link)
    assert heard == [b"".join(bytes([0x30, 4, 0, 1, ord("x"), n]) for n in range(3))]
