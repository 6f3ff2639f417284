"""Requirements on every transport: in memory, and each MQTT client with each real broker."""

from functools import partial

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from fairbed.wire.chunks import HEADER_BYTES
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import MAX_CHUNK_BYTES
from fairbed.wire.transport.base import LinkDown, LinkUp, Packet, Transport, Will
from tests.wire.transport.broker_control import BrokerControl
from tests.wire.transport.drivers import packets, up

pytestmark = pytest.mark.anyio

RETAINED_S = 0.5
"""Longest wait for a retained packet; then the broker has none, or a new subscription is needed."""

TIMEOUT_S = 60.0
"""Far above the duration of any test: a test that hangs must fail, not block the suite."""


async def publish_and_wait(link: Transport, packet: Packet) -> None:
    """Publish, and wait until the broker delivers: amqtt acknowledges before that.

    NATS stores a retained packet a short time after its delivery.
    """
    await link.subscribe(packet.topic, qos=1)
    await link.publish(packet.topic, packet.payload, qos=1, retain=packet.retained)
    await packets(link, 1)
    is_retained = not packet.retained
    while not is_retained:
        await link.subscribe(packet.topic, qos=1)
        with anyio.move_on_after(RETAINED_S):
            is_retained = (await packets(link, 1))[0].retained


async def wait_until_cleared(link: Transport, topic: str) -> None:
    """Wait until a cleared topic has no retained packet any more; NATS is slow."""
    while True:
        await link.subscribe(topic, qos=1)
        with anyio.move_on_after(RETAINED_S) as silence:
            while not (await packets(link, 1))[0].retained:
                pass
        if silence.cancelled_caught:
            return


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_packet_arrives(shared: BrokerControl, topic: str, qos: int) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with shared.link(f"a{qos}") as a, shared.link(f"b{qos}") as b:
            assert await up(a) == 1
            assert await up(b) == 1
            await b.subscribe(f"{topic}/+/{qos}", qos=1)
            await a.publish(f"{topic}/x/{qos}", b"hello", qos=qos)
            await a.publish(f"{topic}/y/{qos}", memoryview(b"again"), qos=qos)
            assert await packets(b, 2) == [
                Packet(f"{topic}/x/{qos}", b"hello"),
                Packet(f"{topic}/y/{qos}", b"again"),
            ]


@pytest.mark.parametrize("qos", [0, 1])
async def test_messages_published_without_waiting_arrive_in_order_and_complete_once(
    shared: BrokerControl, topic: str, qos: int
) -> None:
    completed = 0

    def on_complete() -> None:
        nonlocal completed
        completed += 1
        if completed == 100:
            all_completed.set()

    all_completed = anyio.Event()
    with anyio.fail_after(TIMEOUT_S):
        async with shared.link(f"a{qos}") as a, shared.link(f"b{qos}") as b:
            await up(a)
            await up(b)
            await b.subscribe(f"{topic}/{qos}", qos=1)
            for i in range(100):
                a.publish_nowait(
                    f"{topic}/{qos}", str(i).encode(), qos=qos, on_complete=on_complete
                )
            got = await packets(b, 100)
            await all_completed.wait()
            await publish_and_wait(a, Packet(f"{topic}/mark", b""))
    assert [packet.payload for packet in got] == [str(i).encode() for i in range(100)]
    assert completed == 100


async def test_a_retained_packet_waits_for_subscribers_until_it_is_cleared(
    shared: BrokerControl, topic: str
) -> None:
    retained = Packet(f"{topic}/kept", b"1", retained=True)
    mark = Packet(f"{topic}/mark", b"2")
    with anyio.fail_after(TIMEOUT_S):
        async with shared.link("a") as a, shared.link("b") as b, shared.link("c") as c:
            for link in (a, b, c):
                await up(link)
            await publish_and_wait(a, retained)
            await b.subscribe(f"{topic}/+", qos=1)
            assert await packets(b, 1) == [retained]
            await a.publish(retained.topic, b"", qos=1, retain=True)
            assert await packets(b, 1) == [Packet(retained.topic, b"")]
            await wait_until_cleared(a, retained.topic)
            await c.subscribe(f"{topic}/+", qos=1)
            await a.publish(mark.topic, mark.payload, qos=1)
            assert await packets(c, 1) == [mark]


async def test_subscribing_again_brings_the_retained_packet_again(
    shared: BrokerControl, topic: str
) -> None:
    retained = Packet(f"{topic}/kept", b"1", retained=True)
    with anyio.fail_after(TIMEOUT_S):
        async with shared.link("a") as a, shared.link("b") as b:
            await up(a)
            await up(b)
            await publish_and_wait(a, retained)
            for _ in range(3):
                await b.subscribe(retained.topic)
                assert await packets(b, 1) == [retained]


async def test_a_lost_client_leaves_its_will(shared: BrokerControl, topic: str) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with shared.link("a", Will(topic, b"gone")) as a, shared.link("b") as b:
            await up(a)
            await up(b)
            await b.subscribe(topic, qos=1)
            shared.disconnect("a")
            assert await packets(b, 1) == [Packet(topic, b"gone")]
            assert await up(a) == 2
            await b.subscribe(topic, qos=1)
            assert await packets(b, 1) == [Packet(topic, b"gone", retained=True)]


async def test_a_client_that_disconnects_publishes_no_will(
    shared: BrokerControl, topic: str
) -> None:
    if shared.kind == "amqtt":
        pytest.skip("amqtt 0.12 may ignore a DISCONNECT right before the end of the connection")
    with anyio.fail_after(TIMEOUT_S):
        async with shared.link("b") as b:
            await up(b)
            await b.subscribe(topic, qos=1)
            async with shared.link("a", Will(topic, b"gone")) as a:
                await up(a)
            await b.publish(topic, b"mark", qos=1)
            assert await packets(b, 1) == [Packet(topic, b"mark")]


async def test_packets_of_one_sender_arrive_in_order(shared: BrokerControl, topic: str) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with shared.link("a") as a, shared.link("b") as b:
            await up(a)
            await up(b)
            await b.subscribe(topic, qos=1)
            for i in range(300):
                await a.publish(topic, str(i).encode(), qos=0)
            got = await packets(b, 300)
            assert [int(packet.payload) for packet in got] == list(range(300))


async def test_publishing_without_a_pause_lets_other_tasks_run(
    shared: BrokerControl, topic: str
) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(TIMEOUT_S):
        async with shared.link("a") as a, anyio.create_task_group() as tasks:
            await up(a)
            tasks.start_soon(count)
            for _ in range(100):
                await a.publish(topic, b"small")
            tasks.cancel_scope.cancel()
    assert turns >= 50


async def test_unsubscribing_ends_the_packets(shared: BrokerControl, topic: str) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with shared.link("a") as a, shared.link("b") as b:
            await up(a)
            await up(b)
            await b.subscribe(f"{topic}/x", f"{topic}/y", qos=1)
            await b.unsubscribe(f"{topic}/x")
            await a.publish(f"{topic}/x", b"1", qos=1)
            await a.publish(f"{topic}/y", b"2", qos=1)
            assert await packets(b, 1) == [Packet(f"{topic}/y", b"2")]


@pytest.mark.parametrize("qos", [0, 1])
async def test_the_largest_chunk_fits(shared: BrokerControl, topic: str, qos: int) -> None:
    body = np.random.Generator(np.random.PCG64(qos)).bytes(HEADER_BYTES + MAX_CHUNK_BYTES)
    with anyio.fail_after(TIMEOUT_S):
        async with shared.link("a") as a, shared.link("b") as b:
            await up(a)
            await up(b)
            await b.subscribe(f"{topic}/{qos}", qos=1)
            await a.publish(f"{topic}/{qos}", body, qos=qos)
            assert (await packets(b, 1))[0].payload == body


async def test_a_lost_link_is_reported_once_and_after_earlier_packets(
    shared: BrokerControl, topic: str
) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with shared.link("a") as a, shared.link("b") as b:
            await up(a)
            assert isinstance(await anext(b.events()), LinkUp)
            await b.subscribe(topic, qos=1)
            for i in range(5):
                await a.publish(topic, bytes([i]), qos=1)
            first = await anext(b.events())
            shared.disconnect("b")
            seen = [first]
            while not isinstance(seen[-1], LinkUp):
                seen.append(await anext(b.events()))
            kinds = [type(event) for event in seen]
            assert kinds == [Packet] * (len(seen) - 2) + [LinkDown, LinkUp]


async def test_operations_on_a_link_that_is_down_fail_at_once_and_filters_are_kept(
    killable: BrokerControl, topic: str
) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with killable.link("a") as a, killable.link("b") as b:
            await up(a)
            await up(b)
            await b.subscribe(f"{topic}/old", qos=1)
            await killable.kill()
            for link in (a, b):
                assert isinstance(await anext(link.events()), LinkDown)
            with pytest.raises(Disconnected):
                await a.publish(topic, b"", qos=1)
            with pytest.raises(Disconnected):
                await b.subscribe(f"{topic}/new", qos=1)
            with pytest.raises(Disconnected):
                await b.unsubscribe(f"{topic}/old")
            await killable.start()
            assert await up(a) == 2
            assert await up(b) == 2
            await a.publish(f"{topic}/old", b"1", qos=1)
            await a.publish(f"{topic}/new", b"2", qos=1)
            assert await packets(b, 1) == [Packet(f"{topic}/new", b"2")]


async def test_all_links_come_back_after_the_broker_was_killed(
    killable: BrokerControl, topic: str
) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with killable.link("a") as a, killable.link("b") as b:
            for link in (a, b):
                await up(link)
                await link.subscribe(f"{topic}/+", qos=1)
            for count in (2, 3):
                await killable.kill()
                await killable.start()
                for link in (a, b):
                    assert isinstance(await anext(link.events()), LinkDown)
                    assert await anext(link.events()) == LinkUp(count)
                await a.publish(f"{topic}/x", b"back", qos=1)
                for link in (a, b):
                    assert await packets(link, 1) == [Packet(f"{topic}/x", b"back")]


async def test_retained_messages_may_be_lost_with_the_broker(
    killable: BrokerControl, topic: str
) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with killable.link("a") as a:
            await up(a)
            await a.publish(f"{topic}/kept", b"1", qos=1, retain=True)
            await killable.kill()
            await killable.start()
            assert await up(a) == 2
            await a.subscribe(f"{topic}/+", qos=1)
            await a.publish(f"{topic}/mark", b"2", qos=1)
            first = (await packets(a, 1))[0]
            assert first.topic == (f"{topic}/kept" if killable.kind == "nats" else f"{topic}/mark")


async def test_a_waiting_publish_ends_with_the_link(killable: BrokerControl, topic: str) -> None:
    outcomes: list[bool] = []

    async with killable.link("a") as a:
        await up(a)

        async def publish() -> None:
            try:
                await a.publish(topic, bytes(1000), qos=1)
                outcomes.append(True)
            except Disconnected:
                outcomes.append(False)

        killable.freeze()
        with anyio.fail_after(TIMEOUT_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(30):
                    tasks.start_soon(publish)
                await anyio.wait_all_tasks_blocked()
                await killable.kill()
            assert isinstance(await anext(a.events()), LinkDown)
    assert outcomes == [killable.kind == "memory"] * 30


async def test_messages_lost_with_the_link_complete_once(
    killable: BrokerControl, topic: str
) -> None:
    completed: list[int] = []
    with anyio.fail_after(TIMEOUT_S):
        async with killable.link("a") as a:
            await up(a)
            killable.freeze()
            for i in range(30):
                a.publish_nowait(
                    topic, bytes(1000), qos=1, on_complete=partial(completed.append, i)
                )
            await anyio.wait_all_tasks_blocked()
            assert len(completed) == (30 if killable.kind == "memory" else 0)
            await killable.kill()
            assert isinstance(await anext(a.events()), LinkDown)
            with pytest.raises(Disconnected):
                a.publish_nowait(topic, b"", on_complete=partial(completed.append, 30))
    assert sorted(completed) == list(range(30))


async def test_disconnecting_from_a_stuck_broker_is_quick(killable: BrokerControl) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with killable.link("a") as a:
            await up(a)
            killable.freeze()
        assert [event async for event in a.events()] == []
        with pytest.raises(Disconnected):
            await a.publish("x", b"")
        await killable.kill()
