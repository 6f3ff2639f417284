"""Tests of our own MQTT client only: pings, malformed packets, and full buffers."""

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
    SUBSCRIBED,
    TIMEOUT_S,
    cluster_url,
    replies,
    replies_and_stays,
    scripted_broker,
)

pytestmark = pytest.mark.anyio

PINGRESP = b"\xd0\x00"
MEGABYTE = bytes(1_000_000)

broker = partial(scripted_broker, "direct")


def link_to(url: str, *, keepalive_s: int = 15, publish_timeout_s: float = 60.0) -> MqttTransport:
    return MqttTransport(
        url,
        "me",
        keepalive_s=keepalive_s,
        publish_timeout_s=publish_timeout_s,
        backoff=lambda retry: 0.0,
    )


async def down(link: MqttTransport) -> str:
    """Wait until the link is lost; return the reason."""
    async for event in link.events():
        if isinstance(event, LinkDown):
            return event.reason
    raise AssertionError("the transport was left")


async def test_a_quiet_link_is_kept_alive() -> None:
    received_bytes: list[bytes] = []
    twice = anyio.Event()

    async def script(client: SocketStream) -> None:
        await replies(ACCEPTED)(client)
        for _ in range(2):
            received_bytes.append(await client.receive())
            await client.send(PINGRESP)
        twice.set()
        received_bytes.append(await client.receive())

    with anyio.fail_after(TIMEOUT_S):
        async with broker(script) as url, link_to(url, keepalive_s=1) as link:
            await up(link)
            await twice.wait()
            await anyio.wait_all_tasks_blocked()
            assert link.down_reason is None
    assert received_bytes == [PINGREQ, PINGREQ, DISCONNECT]


async def test_the_link_ends_when_a_ping_gets_no_answer() -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with (
            broker(replies_and_stays(ACCEPTED), replies_and_stays(ACCEPTED)) as url,
            link_to(url, keepalive_s=1) as link,
        ):
            await up(link)
            assert (await down(link)).startswith("the broker has been silent for ")
            assert await anext(link.events()) == LinkUp(2)


async def test_a_silent_node_of_a_cluster_is_left_sooner_than_a_silent_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairbed.wire.transport.client.NODE_PING_S", 0.1)
    stays = replies_and_stays(ACCEPTED)
    with anyio.fail_after(TIMEOUT_S):
        async with (
            broker(stays) as one,
            broker(stays) as other,
            link_to(cluster_url(one, other), keepalive_s=2) as link,
        ):
            await up(link)
            started_s = anyio.current_time()
            assert (await down(link)).startswith("the broker has been silent for ")
            assert anyio.current_time() - started_s < 2.5, "1 s to the ping, then 0.1 s"
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
async def test_malformed_packets_of_a_broker_end_only_the_link(nonsense: bytes, rule: str) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with (
            broker(replies_and_stays(ACCEPTED, nonsense), replies_and_stays(ACCEPTED)) as url,
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
async def test_a_server_of_another_protocol_is_refused(first: bytes) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with broker(replies(first)) as url, link_to(url) as link:
            with pytest.raises(Refused, match=r"must be an MQTT 3\.1\.1 broker, got another"):
                await anext(link.events())


async def test_a_client_id_that_mqtt_forbids_is_refused() -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with broker() as url, MqttTransport(url, "me\0") as link:
            with pytest.raises(Refused, match="a text must be without zeros"):
                await anext(link.events())


async def test_unexpected_answers_are_ignored() -> None:
    unexpected = b"\x40\x02\x00\x09" + b"\xb0\x02\x00\x09" + b"\x90\x03\x00\x09\x00" + PINGRESP
    with anyio.fail_after(TIMEOUT_S):
        async with (
            broker(replies_and_stays(ACCEPTED, unexpected + SUBSCRIBED)) as url,
            link_to(url) as link,
        ):
            await up(link)
            await link.subscribe("t")
            assert link.down_reason is None


@asynccontextmanager
async def unread_broker(may_read: anyio.Event, received: list[int]) -> AsyncIterator[str]:
    """Yield the URL of a broker that accepts one client, and reads only after `may_read`.

    It uses a plain socket, as streams read ahead.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)

        async def serve() -> None:
            await anyio.wait_readable(server)
            with server.accept()[0] as client:
                client.send(ACCEPTED)
                await may_read.wait()
                while not received or received[-1]:
                    await anyio.wait_readable(client)
                    received.append(len(client.recv(1 << 20)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            yield f"mqtt://127.0.0.1:{server.getsockname()[1]}"
            await may_read.wait()


async def publish(link: MqttTransport, count: int, published: list[int]) -> None:
    for number in range(count):
        await link.publish("x", MEGABYTE)
        published.append(number)


async def test_publishers_wait_for_a_broker_that_does_not_read() -> None:
    may_read, received, published = anyio.Event(), list[int](), list[int]()
    with anyio.fail_after(TIMEOUT_S):
        async with unread_broker(may_read, received) as url, link_to(url) as link:
            await up(link)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(publish, link, 16, published)
                await anyio.wait_all_tasks_blocked()
                held = len(published)
                may_read.set()
    assert held < 16
    assert published == list(range(16))
    assert sum(received) > 16 * len(MEGABYTE)  # topics and DISCONNECT, too


async def test_a_broker_that_never_reads_ends_the_link() -> None:
    may_read = anyio.Event()
    with anyio.fail_after(TIMEOUT_S):
        async with unread_broker(may_read, []) as url:
            async with link_to(url, publish_timeout_s=0.05) as link:
                await up(link)
                with pytest.raises(Disconnected, match="publish took longer than"):
                    await publish(link, 16, [])
                assert "publish took longer" in await down(link)
            may_read.set()


async def test_packets_of_one_loop_iteration_are_sent_in_one_write() -> None:
    received_bytes: list[bytes] = []

    async def script(client: SocketStream) -> None:
        await replies(ACCEPTED)(client)
        received_bytes.append(await client.receive())

    with anyio.fail_after(TIMEOUT_S):
        async with broker(script) as url, link_to(url) as link:
            await up(link)
            for number in range(3):
                link.publish_nowait("x", bytes([number]), on_complete=lambda: None)
            await down(link)
    assert received_bytes == [b"".join(bytes([0x30, 4, 0, 1, ord("x"), n]) for n in range(3))]
