"""Both MQTT clients against faulty brokers, each a few scripted bytes on a socket.

Both clients must survive and report the same.
"""

import logging
import os
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import cast, get_args

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from fairbed.testbed.run.broker import start_broker
from fairbed.wire.errors import Disconnected, Refused
from fairbed.wire.transport.address import Client, parse_url
from fairbed.wire.transport.base import LinkDown, LinkUp, Packet
from fairbed.wire.transport.client import REFUSED_CAP_S, MqttTransport, backoff_s
from fairbed.wire.transport.protocol.packets import publish_head
from tests.brokers import BROKERS
from tests.wire.transport.drivers import up

pytestmark = pytest.mark.anyio

TIMEOUT_S = 60.0

ACCEPTED = bytes([0x20, 2, 0, 0])
PROTOCOL, CLIENT_ID, UNAVAILABLE, PASSWORD, NOT_ALLOWED = (
    bytes([0x20, 2, 0, code]) for code in range(1, 6)
)
SUBSCRIBED = bytes([0x90, 3, 0, 1, 0])
NOT_SUBSCRIBED = bytes([0x90, 3, 0, 1, 0x80])

Script = Callable[[SocketStream], Awaitable[None]]


@asynccontextmanager
async def scripted_broker(client: Client, *scripts: Script) -> AsyncIterator[str]:
    """Yield the URL of a broker that runs one script for each connection, in order."""
    waiting = list(scripts)

    async def serve(client: SocketStream) -> None:
        async with client:
            await waiting.pop(0)(client)

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, serve)
        yield f"mqtt://user:secret@127.0.0.1:{listener.extra(SocketAttribute.local_port)}?client={client}"
        tasks.cancel_scope.cancel()


def replies(*answers: bytes) -> Script:
    """Return a script: one answer for each received packet; then close the connection."""

    async def script(client: SocketStream) -> None:
        for answer in answers:
            await client.receive()
            await client.send(answer)

    return script


def replies_and_stays(*answers: bytes) -> Script:
    """Return a script that sends its answers, then reads until the client disconnects."""

    async def script(client: SocketStream) -> None:
        await replies(*answers)(client)
        async for _ in client:
            pass

    return script


@pytest.fixture(params=get_args(Client))
def client(request: pytest.FixtureRequest) -> Client:
    """Return the MQTT client under test."""
    return cast("Client", request.param)


def link_to(url: str, **options: float) -> MqttTransport:
    timeout_s = options.get("publish_timeout_s", TIMEOUT_S)
    return MqttTransport(url, "me", publish_timeout_s=timeout_s, backoff=lambda retry: 0.0)


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (PROTOCOL, "correct host and port, or start a broker"),
        (CLIENT_ID, "choose another client id"),
        (PASSWORD, "check user and password"),
        (NOT_ALLOWED, "check the password and the permissions of this user"),
    ],
    ids=["protocol", "client-id", "password", "not-allowed"],
)
async def test_a_refusal_is_final_and_gives_advice(
    client: Client, answer: bytes, rule: str
) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with scripted_broker(client, replies(answer)) as url, link_to(url) as link:
            with pytest.raises(Refused, match=rule) as caught:
                await anext(link.events())
            assert "secret" not in str(caught.value)
            with pytest.raises(Disconnected, match=rule):
                await link.publish("x", b"")


async def test_an_oversized_message_is_acknowledged_and_dropped(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A message of 140 MiB, of any client, ended the link of the coordinator (issue #20, M6)."""
    n_bytes, topic = 1_200_000, "fairbed/main/d/a/up"
    huge = publish_head(topic, n_bytes, qos=1, packet_id=9) + bytes(n_bytes)
    small = publish_head(topic, 1, qos=1, packet_id=10) + b"x"
    acknowledged = b""

    async def script(client: SocketStream) -> None:
        nonlocal acknowledged
        await replies(ACCEPTED, SUBSCRIBED)(client)
        await client.send(huge + huge + small)
        async for data in client:
            acknowledged += data

    with anyio.fail_after(TIMEOUT_S):
        async with scripted_broker(client, script) as url, link_to(url) as link:
            await up(link)
            await link.subscribe(topic)
            assert await anext(link.events()) == Packet(topic, b"x")
            assert link.down_reason is None
    assert acknowledged.startswith(b"\x40\x02\x00\x09" * 2 + b"\x40\x02\x00\x0a")
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [line for line in lines if "it is dropped" in line]
    assert f"got {n_bytes} on {topic}; it is dropped" in line


async def test_connecting_to_a_broker_that_is_not_ready_is_retried(client: Client) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(
                client, replies(UNAVAILABLE), replies(), replies_and_stays(ACCEPTED)
            ) as url,
            link_to(url) as link,
        ):
            assert await anext(link.events()) == LinkUp(1)


def cluster_url(*urls: str) -> str:
    """Return one address of several scripted brokers."""
    first, *others = urls
    head, _, tail = first.partition("?")
    return f"{','.join([head, *(str(parse_url(url).port) for url in others)])}?{tail}".replace(
        ",", ",127.0.0.1:"
    )


async def test_a_lost_node_of_a_cluster_is_replaced_by_the_next(client: Client) -> None:
    scripts = replies(ACCEPTED), replies_and_stays(ACCEPTED)
    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(client, *scripts) as one,
            scripted_broker(client, *scripts) as other,
            link_to(cluster_url(one, other)) as link,
        ):
            events = link.events()
            got = [await anext(events) for _ in range(5)]
    assert got == [LinkUp(1), lost := LinkDown("connection lost"), LinkUp(2), lost, LinkUp(3)]


async def test_a_node_that_is_down_or_refuses_is_passed_over(client: Client) -> None:
    async with scripted_broker(client) as dead:
        pass
    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(client, replies(NOT_ALLOWED)) as refusing,
            scripted_broker(client, replies_and_stays(ACCEPTED)) as ready,
            link_to(cluster_url(dead, refusing, ready)) as link,
        ):
            assert await anext(link.events()) == LinkUp(1)


async def test_the_wait_grows_after_each_pass_over_all_nodes(client: Client) -> None:
    retries: list[int] = []
    three_passes = anyio.Event()

    def backoff(retry: int) -> float:
        retries.append(retry)
        if len(retries) == 9:
            three_passes.set()
        return 0.0

    async with (
        scripted_broker(client) as one,
        scripted_broker(client) as other,
        scripted_broker(client) as third,
    ):
        dead = cluster_url(one, other, third)
    with anyio.fail_after(TIMEOUT_S):
        async with MqttTransport(dead, "me", backoff=backoff):
            await three_passes.wait()
    assert retries[:9] == [0, 0, 0, 0, 0, 1, 0, 0, 2]


@contextmanager
def silent_port() -> Iterator[int]:
    """Yield a port on loopback that answers no connection, as a machine without power."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as stack:
        port = server.getsockname()[1]
        for _ in range(3):  # the first fills the queue
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(("127.0.0.1", port))
        yield port


async def test_a_node_that_does_not_answer_is_passed_over_soon(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbed.wire.transport.client.NODE_DIAL_S", 0.1)
    with silent_port() as port, anyio.fail_after(4.0):
        async with scripted_broker(client, replies_and_stays(ACCEPTED)) as ready:
            url = cluster_url(f"mqtt://user:secret@127.0.0.1:{port}?client={client}", ready)
            names = (f"device-{i}" for i in range(100))
            name = next(x for x in names if f":{port}" in MqttTransport(url, x).node)
            async with MqttTransport(url, name) as link:
                assert await anext(link.events()) == LinkUp(1)


async def test_a_refusal_by_every_node_of_a_cluster_is_final(client: Client) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(client, replies(PASSWORD)) as one,
            scripted_broker(client, replies(PASSWORD)) as other,
            link_to(cluster_url(one, other)) as link,
        ):
            with pytest.raises(Refused, match="check user and password"):
                await anext(link.events())


def test_a_fleet_spreads_over_the_nodes_of_a_cluster() -> None:
    url = "mqtt://a,b,c"
    nodes = [MqttTransport(url, f"fairbed-main-pi-{i}").node for i in range(300)]
    assert min(nodes.count(node) for node in ("mqtt://a", "mqtt://b", "mqtt://c")) > 70


async def test_a_closed_link_is_reported_once_and_restored(client: Client) -> None:
    close = anyio.Event()

    async def script(client: SocketStream) -> None:
        await replies(ACCEPTED)(client)
        await close.wait()

    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(client, script, replies_and_stays(ACCEPTED)) as url,
            link_to(url) as link,
        ):
            assert await anext(link.events()) == LinkUp(1)
            close.set()
            assert await anext(link.events()) == LinkDown("connection lost")
            assert await anext(link.events()) == LinkUp(2)


async def test_a_link_lost_during_connect_is_restored(client: Client) -> None:
    async def closes_at_once(client: SocketStream) -> None:
        await client.receive()
        with socket.socket(fileno=os.dup(client.extra(SocketAttribute.raw_socket).fileno())) as raw:
            raw.send(ACCEPTED)
            raw.shutdown(socket.SHUT_RDWR)  # the client reads both at once

    async def script(client: SocketStream) -> None:
        connected.set()
        await replies_and_stays(ACCEPTED)(client)

    connected = anyio.Event()
    with anyio.fail_after(TIMEOUT_S):
        async with scripted_broker(client, closes_at_once, script) as url, link_to(url) as link:
            assert isinstance(await anext(link.events()), LinkUp)
            await connected.wait()


async def test_retained_packets_of_old_subscriptions_come_after_the_new_link(
    client: Client,
) -> None:
    close = anyio.Event()
    retained = bytes([0x31, 4, 0, 1]) + b"t!"

    async def script(client: SocketStream) -> None:
        await replies(ACCEPTED, SUBSCRIBED)(client)
        await close.wait()

    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(
                client, script, replies_and_stays(ACCEPTED, retained + SUBSCRIBED)
            ) as url,
            link_to(url) as link,
        ):
            assert await anext(link.events()) == LinkUp(1)
            await link.subscribe("t")
            close.set()
            assert isinstance(await anext(link.events()), LinkDown)
            assert await anext(link.events()) == LinkUp(2)
            assert await anext(link.events()) == Packet("t", b"!", retained=True)


async def test_a_packet_without_subscription_is_ignored(client: Client) -> None:
    stray, wanted = bytes([0x30, 4, 0, 1]) + b"s?", bytes([0x30, 4, 0, 1]) + b"t!"
    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(
                client, replies_and_stays(ACCEPTED, SUBSCRIBED + stray + wanted)
            ) as url,
            link_to(url) as link,
        ):
            await up(link)
            await link.subscribe("t")
            assert await anext(link.events()) == Packet("t", b"!")
            assert link.unexpected_packets == 1


async def test_a_forbidden_subscription_is_refused(client: Client) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(client, replies_and_stays(ACCEPTED, NOT_SUBSCRIBED)) as url,
            link_to(url) as link,
        ):
            await up(link)
            with pytest.raises(Refused, match="subscribing to t is not allowed"):
                await link.subscribe("t")


async def test_a_broker_that_never_answers_ends_the_link(client: Client) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(
                client, replies_and_stays(ACCEPTED), replies_and_stays(ACCEPTED)
            ) as url,
            link_to(url, publish_timeout_s=0.05) as link,
        ):
            assert await anext(link.events()) == LinkUp(1)
            with pytest.raises(Disconnected, match="publish took longer than"):
                await link.publish("x", b"", qos=1)
            assert isinstance(await anext(link.events()), LinkDown)
            assert await anext(link.events()) == LinkUp(2)


async def test_a_cancelled_wait_for_an_event_loses_nothing(client: Client) -> None:
    packet = bytes([0x30, 4, 0, 1]) + b"t!"
    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(client, replies_and_stays(ACCEPTED, SUBSCRIBED + packet)) as url,
            link_to(url) as link,
        ):
            with anyio.move_on_after(0):
                await anext(link.events())
            assert await up(link) == 1
            await link.subscribe("t")
            assert await anext(link.events()) == Packet("t", b"!")


async def test_an_unreachable_broker_is_reported_once(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_broker(client) as url:
        address = url.replace("user", "u")
    retries = 0

    def backoff(retry: int) -> float:
        nonlocal retries
        retries += 1
        if retries == 5:
            seen_enough.set()
        return 0.0

    seen_enough = anyio.Event()
    with anyio.fail_after(TIMEOUT_S), caplog.at_level(logging.WARNING):
        link = MqttTransport(address, "me", backoff=backoff)
        async with link:
            await seen_enough.wait()
            with pytest.raises(Disconnected, match=r"cannot connect.*refused"):
                await link.publish("x", b"")
            with pytest.raises(Disconnected):
                await link.subscribe("x")
        assert [event async for event in link.events()] == []
    assert len(caplog.records) == 1, "the same reason is logged once"
    assert "secret" not in caplog.text


async def test_disconnecting_does_not_wait_for_a_silent_broker(client: Client) -> None:
    connected = anyio.Event()

    async def script(client: SocketStream) -> None:
        connected.set()
        async for _ in client:
            pass

    with anyio.fail_after(TIMEOUT_S):
        async with scripted_broker(client, script) as url:
            async with MqttTransport(url, "me", connect_timeout_s=10 * TIMEOUT_S) as link:
                await connected.wait()
            assert link.down_reason == "not connected yet"


async def test_disconnecting_at_any_time_of_connecting_disturbs_no_other_link(
    client: Client,
) -> None:
    """The event loop would report sockets that are watched after they were closed."""
    rng, tries = random.Random(5), 300

    async def script(client: SocketStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            await replies_and_stays(ACCEPTED)(client)

    with anyio.fail_after(TIMEOUT_S):
        async with scripted_broker(client, *[script] * (tries + 1)) as url, link_to(url) as other:
            assert await anext(other.events()) == LinkUp(1)
            for _ in range(tries):
                async with link_to(url):
                    await anyio.sleep(rng.uniform(0.0, 0.003))
            await other.publish("x", b"")
            assert other.down_reason is None


@pytest.mark.parametrize(("base_s", "cap_s"), [(0.1, 5.0), (1.0, REFUSED_CAP_S), (30.0, 5.0)])
def test_the_backoff_doubles_its_range_up_to_the_cap(base_s: float, cap_s: float) -> None:
    for retry in (0, 1, 2, 5, 1_000, 10**9):
        least, most = (backoff_s(retry, draw, base_s, cap_s) for draw in (0.0, 1.0))
        assert least == min(cap_s, base_s / 2)
        assert most == min(cap_s, base_s * 2.0 ** min(retry + 1, 64))
        assert backoff_s(retry, 0.5, base_s, cap_s) == pytest.approx((least + most) / 2)


async def test_a_link_that_waits_is_refused_again_and_again_with_a_line_per_reason(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = [PASSWORD, PASSWORD, NOT_ALLOWED, NOT_ALLOWED, NOT_ALLOWED, PASSWORD]
    scripts = [replies(answer) for answer in refusals]
    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(client, *scripts, replies_and_stays(ACCEPTED)) as url,
            MqttTransport(url, "me", backoff=lambda retry: 0.0, waits_if_refused=True) as link,
        ):
            assert await anext(link.events()) == LinkUp(1)
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert ["permissions" in line for line in lines] == [False, True, False]
    assert all("waits" in line and "secret" not in line for line in lines)


@pytest.mark.parametrize("refusals", [1, 3, 4])
async def test_a_login_that_was_accepted_before_is_refused_for_good_the_fourth_time(
    client: Client, refusals: int
) -> None:
    again = [replies(PASSWORD)] * refusals
    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(client, replies(ACCEPTED), *again, replies_and_stays(ACCEPTED)) as url,
            MqttTransport(url, "me", backoff=lambda retry: 0.0) as link,
        ):
            events = link.events()
            assert await anext(events) == LinkUp(1)
            assert isinstance(await anext(events), LinkDown)
            if refusals < 4:
                assert await anext(events) == LinkUp(2)
            else:
                with pytest.raises(Refused):
                    await anext(events)


async def test_the_backoff_begins_anew_when_a_broker_that_was_away_refuses(client: Client) -> None:
    retries: list[int] = []

    def backoff(retry: int) -> float:
        retries.append(retry)
        return 0.0

    scripts = [replies(answer) for answer in [UNAVAILABLE] * 4 + [PASSWORD] * 4]
    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(client, *scripts, replies_and_stays(ACCEPTED)) as url,
            MqttTransport(url, "me", backoff=backoff, waits_if_refused=True) as link,
        ):
            assert await anext(link.events()) == LinkUp(1)
    assert retries == [0, 1, 2, 3, 0, 0, 1, 2]


async def test_a_link_that_waits_outlasts_a_refused_subscription(client: Client) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with (
            scripted_broker(
                client,
                replies_and_stays(ACCEPTED, NOT_SUBSCRIBED),
                replies_and_stays(ACCEPTED, SUBSCRIBED),
            ) as url,
            MqttTransport(url, "me", backoff=lambda retry: 0.0, waits_if_refused=True) as link,
        ):
            with suppress(Disconnected):
                await link.subscribe("x")
            assert await anext(link.events()) == LinkUp(1)


@pytest.mark.parametrize("kind", BROKERS)
async def test_wrong_credentials_are_refused(client: Client, kind: str, tmp_path: Path) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with start_broker(kind, folder=tmp_path) as broker:  # type: ignore[arg-type]  # a kind
            for url in (
                broker.url.replace("@", "x@"),
                broker.url.replace("fairbed:", "another:"),
                "mqtt://" + broker.url.split("@")[1],
            ):
                async with MqttTransport(f"{url}?client={client}", "intruder") as link:
                    with pytest.raises(Refused):
                        await anext(link.events())
