"""What every transport must do: in memory, and by each client through each real broker."""

from functools import partial

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from fairbed.wire.chunks import HEADER_BYTES
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import MAX_CHUNK_BYTES
from fairbed.wire.transport.base import LinkDown, LinkUp, Packet, Transport, Will
from tests.wire.transport.drivers import packets, up
from tests.wire.transport.worlds import World

pytestmark = pytest.mark.anyio

KEPT_S = 0.5
"""For a broker to bring a packet that it keeps; then it has none, or has to be asked again."""

GIVE_UP_S = 60.0
"""Far beyond what any of this takes: a test that hangs should fail, not stop the suite."""


async def publish_and_settle(link: Transport, packet: Packet) -> None:
    """Publish, and wait until the broker has passed it on: amqtt acknowledges before that.

    NATS has a retained packet only a moment after it has passed it on.
    """
    await link.subscribe(packet.topic, qos=1)
    await link.publish(packet.topic, packet.payload, qos=1, retain=packet.retained)
    await packets(link, 1)
    is_kept = not packet.retained
    while not is_kept:
        await link.subscribe(packet.topic, qos=1)
        with anyio.move_on_after(KEPT_S):
            is_kept = (await packets(link, 1))[0].retained


async def forgotten(link: Transport, topic: str) -> None:
    """Wait until the broker brings a packet no more that it was told to forget; NATS is slow."""
    while True:
        await link.subscribe(topic, qos=1)
        with anyio.move_on_after(KEPT_S) as silence:
            while not (await packets(link, 1))[0].retained:
                pass
        if silence.cancelled_caught:
            return


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_packet_arrives(shared: World, topic: str, qos: int) -> None:
    with anyio.fail_after(GIVE_UP_S):
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
    shared: World, topic: str, qos: int
) -> None:
    completed = 0

    def on_complete() -> None:
        nonlocal completed
        completed += 1
        if completed == 100:
            all_completed.set()

    all_completed = anyio.Event()
    with anyio.fail_after(GIVE_UP_S):
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
            await publish_and_settle(a, Packet(f"{topic}/mark", b""))
    assert [packet.payload for packet in got] == [str(i).encode() for i in range(100)]
    assert completed == 100


async def test_a_retained_packet_waits_for_subscribers_until_it_is_cleared(
    shared: World, topic: str
) -> None:
    kept = Packet(f"{topic}/kept", b"1", retained=True)
    mark = Packet(f"{topic}/mark", b"2")
    with anyio.fail_after(GIVE_UP_S):
        async with shared.link("a") as a, shared.link("b") as b, shared.link("c") as c:
            for link in (a, b, c):
                await up(link)
            await publish_and_settle(a, kept)
            await b.subscribe(f"{topic}/+", qos=1)
            assert await packets(b, 1) == [kept]
            await a.publish(kept.topic, b"", qos=1, retain=True)
            assert await packets(b, 1) == [Packet(kept.topic, b"")]
            await forgotten(a, kept.topic)
            await c.subscribe(f"{topic}/+", qos=1)
            await a.publish(mark.topic, mark.payload, qos=1)
            assert await packets(c, 1) == [mark]


async def test_subscribing_again_brings_the_retained_packet_again(
    shared: World, topic: str
) -> None:
    kept = Packet(f"{topic}/kept", b"1", retained=True)
    with anyio.fail_after(GIVE_UP_S):
        async with shared.link("a") as a, shared.link("b") as b:
            await up(a)
            await up(b)
            await publish_and_settle(a, kept)
            for _ in range(3):
                await b.subscribe(kept.topic)
                assert await packets(b, 1) == [kept]


async def test_a_lost_client_leaves_its_will(shared: World, topic: str) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with shared.link("a", Will(topic, b"gone")) as a, shared.link("b") as b:
            await up(a)
            await up(b)
            await b.subscribe(topic, qos=1)
            shared.cut("a")
            assert await packets(b, 1) == [Packet(topic, b"gone")]
            assert await up(a) == 2
            await b.subscribe(topic, qos=1)
            assert await packets(b, 1) == [Packet(topic, b"gone", retained=True)]


async def test_a_client_that_leaves_takes_its_will_along(shared: World, topic: str) -> None:
    if shared.kind == "amqtt":
        pytest.skip("amqtt 0.12 may overlook a goodbye that comes right before the end")
    with anyio.fail_after(GIVE_UP_S):
        async with shared.link("b") as b:
            await up(b)
            await b.subscribe(topic, qos=1)
            async with shared.link("a", Will(topic, b"gone")) as a:
                await up(a)
            await b.publish(topic, b"mark", qos=1)
            assert await packets(b, 1) == [Packet(topic, b"mark")]


async def test_packets_of_one_sender_arrive_in_order(shared: World, topic: str) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with shared.link("a") as a, shared.link("b") as b:
            await up(a)
            await up(b)
            await b.subscribe(topic, qos=1)
            for i in range(300):
                await a.publish(topic, str(i).encode(), qos=0)
            got = await packets(b, 300)
            assert [int(packet.payload) for packet in got] == list(range(300))


async def test_whoever_publishes_without_a_pause_lets_others_have_a_turn(
    shared: World, topic: str
) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(GIVE_UP_S):
        async with shared.link("a") as a, anyio.create_task_group() as tasks:
            await up(a)
            tasks.start_soon(count)
            for _ in range(100):
                await a.publish(topic, b"small")
            tasks.cancel_scope.cancel()
    assert turns >= 50


async def test_unsubscribing_ends_the_packets(shared: World, topic: str) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with shared.link("a") as a, shared.link("b") as b:
            await up(a)
            await up(b)
            await b.subscribe(f"{topic}/x", f"{topic}/y", qos=1)
            await b.unsubscribe(f"{topic}/x")
            await a.publish(f"{topic}/x", b"1", qos=1)
            await a.publish(f"{topic}/y", b"2", qos=1)
            assert await packets(b, 1) == [Packet(f"{topic}/y", b"2")]


@pytest.mark.parametrize("qos", [0, 1])
async def test_the_largest_chunk_fits(shared: World, topic: str, qos: int) -> None:
    body = np.random.Generator(np.random.PCG64(qos)).bytes(HEADER_BYTES + MAX_CHUNK_BYTES)
    with anyio.fail_after(GIVE_UP_S):
        async with shared.link("a") as a, shared.link("b") as b:
            await up(a)
            await up(b)
            await b.subscribe(f"{topic}/{qos}", qos=1)
            await a.publish(f"{topic}/{qos}", body, qos=qos)
            assert (await packets(b, 1))[0].payload == body


async def test_a_lost_link_is_told_once_and_after_what_came_before(
    shared: World, topic: str
) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with shared.link("a") as a, shared.link("b") as b:
            await up(a)
            assert isinstance(await anext(b.events()), LinkUp)
            await b.subscribe(topic, qos=1)
            for i in range(5):
                await a.publish(topic, bytes([i]), qos=1)
            first = await anext(b.events())
            shared.cut("b")
            seen = [first]
            while not isinstance(seen[-1], LinkUp):
                seen.append(await anext(b.events()))
            kinds = [type(event) for event in seen]
            assert kinds == [Packet] * (len(seen) - 2) + [LinkDown, LinkUp]


async def test_operations_on_a_link_that_is_down_fail_at_once_and_are_remembered(
    mortal: World, topic: str
) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with mortal.link("a") as a, mortal.link("b") as b:
            await up(a)
            await up(b)
            await b.subscribe(f"{topic}/old", qos=1)
            await mortal.kill()
            for link in (a, b):
                assert isinstance(await anext(link.events()), LinkDown)
            with pytest.raises(Disconnected):
                await a.publish(topic, b"", qos=1)
            with pytest.raises(Disconnected):
                await b.subscribe(f"{topic}/new", qos=1)
            with pytest.raises(Disconnected):
                await b.unsubscribe(f"{topic}/old")
            await mortal.start()
            assert await up(a) == 2
            assert await up(b) == 2
            await a.publish(f"{topic}/old", b"1", qos=1)
            await a.publish(f"{topic}/new", b"2", qos=1)
            assert await packets(b, 1) == [Packet(f"{topic}/new", b"2")]


async def test_all_links_come_back_after_the_broker_was_killed(mortal: World, topic: str) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with mortal.link("a") as a, mortal.link("b") as b:
            for link in (a, b):
                await up(link)
                await link.subscribe(f"{topic}/+", qos=1)
            for count in (2, 3):
                await mortal.kill()
                await mortal.start()
                for link in (a, b):
                    assert isinstance(await anext(link.events()), LinkDown)
                    assert await anext(link.events()) == LinkUp(count)
                await a.publish(f"{topic}/x", b"back", qos=1)
                for link in (a, b):
                    assert await packets(link, 1) == [Packet(f"{topic}/x", b"back")]


async def test_what_was_retained_may_be_gone_with_the_broker(mortal: World, topic: str) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with mortal.link("a") as a:
            await up(a)
            await a.publish(f"{topic}/kept", b"1", qos=1, retain=True)
            await mortal.kill()
            await mortal.start()
            assert await up(a) == 2
            await a.subscribe(f"{topic}/+", qos=1)
            await a.publish(f"{topic}/mark", b"2", qos=1)
            first = (await packets(a, 1))[0]
            assert first.topic == (f"{topic}/kept" if mortal.kind == "nats" else f"{topic}/mark")


async def test_a_publish_that_waits_notices_the_lost_link(mortal: World, topic: str) -> None:
    outcomes: list[bool] = []

    async with mortal.link("a") as a:
        await up(a)

        async def publish() -> None:
            try:
                await a.publish(topic, bytes(1000), qos=1)
                outcomes.append(True)
            except Disconnected:
                outcomes.append(False)

        mortal.freeze()
        with anyio.fail_after(GIVE_UP_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(30):
                    tasks.start_soon(publish)
                await anyio.wait_all_tasks_blocked()
                await mortal.kill()
            assert isinstance(await anext(a.events()), LinkDown)
    assert outcomes == [mortal.kind == "memory"] * 30


async def test_messages_lost_with_the_link_complete_once(mortal: World, topic: str) -> None:
    completed: list[int] = []
    with anyio.fail_after(GIVE_UP_S):
        async with mortal.link("a") as a:
            await up(a)
            mortal.freeze()
            for i in range(30):
                a.publish_nowait(
                    topic, bytes(1000), qos=1, on_complete=partial(completed.append, i)
                )
            await anyio.wait_all_tasks_blocked()
            assert len(completed) == (30 if mortal.kind == "memory" else 0)
            await mortal.kill()
            assert isinstance(await anext(a.events()), LinkDown)
            with pytest.raises(Disconnected):
                a.publish_nowait(topic, b"", on_complete=partial(completed.append, 30))
    assert sorted(completed) == list(range(30))


async def test_leaving_takes_a_moment_even_when_the_broker_is_stuck(mortal: World) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with mortal.link("a") as a:
            await up(a)
            mortal.freeze()
        assert [event async for event in a.events()] == []
        with pytest.raises(Disconnected):
            await a.publish("x", b"")
        await mortal.kill()
