"""What every transport must do, in memory and through each real broker alike."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import numpy as np
import pytest

from testbed.broker import start_broker
from tests.brokers import BROKERS
from tests.wire.transport.drivers import offer, packets, pull, receive, send, up
from tests.wire.transport.worlds import BrokerWorld, MemoryWorld, World
from wire.chunks import HEADER_BYTES, manifest_of
from wire.errors import Disconnected
from wire.messages import MAX_CHUNK_BYTES, Manifest
from wire.transfer import Intake, Upload
from wire.transport.base import LinkDown, LinkUp, Packet, Transport, Will

pytestmark = pytest.mark.anyio

GIVE_UP_S = 60.0
"""Far beyond what any of this takes: a test that hangs should fail, not stop the suite."""

RECEIVERS = 8
MEGABYTE = 1_000_000


@pytest.fixture(scope="module", params=["memory", *BROKERS])
async def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """A broker for all tests that leave it alive."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    async with start_broker(request.param, folder=tmp_path_factory.mktemp("broker")) as broker:
        yield BrokerWorld(broker)


@pytest.fixture(params=["memory", *BROKERS])
async def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A broker that a test may kill."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    async with start_broker(request.param, folder=tmp_path) as broker:
        yield BrokerWorld(broker)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test's own."""
    return f"suite/{request.node.originalname}"


def megabyte(seed: int) -> tuple[bytes, Manifest]:
    data = np.random.Generator(np.random.PCG64(seed)).bytes(MEGABYTE)
    return data, manifest_of(data, "model", 32 * 1024)


async def publish_and_settle(link: Transport, packet: Packet) -> None:
    """Publish, and wait until the broker has passed it on: amqtt acknowledges before that."""
    await link.subscribe(packet.topic, qos=1)
    await link.publish(packet.topic, packet.payload, qos=1, retain=packet.retained)
    await packets(link, 1)


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


async def test_leaving_takes_a_moment_even_when_the_broker_is_stuck(mortal: World) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with mortal.link("a") as a:
            await up(a)
            mortal.freeze()
        assert [event async for event in a.events()] == []
        with pytest.raises(Disconnected):
            await a.publish("x", b"")
        await mortal.kill()


async def test_many_receivers_pull_the_same_blob(shared: World, topic: str) -> None:
    data, manifest = megabyte(1)
    with anyio.fail_after(GIVE_UP_S):
        async with shared.link("source") as source, anyio.create_task_group() as tasks:
            tasks.start_soon(offer, source, manifest, data, topic)
            await _pull_all(shared, manifest, topic)
            tasks.cancel_scope.cancel()


async def test_a_pull_survives_the_death_of_the_broker(mortal: World, topic: str) -> None:
    data, manifest = megabyte(2)
    halfway = anyio.Event()
    with anyio.fail_after(GIVE_UP_S):
        async with mortal.link("source") as source, anyio.create_task_group() as tasks:
            tasks.start_soon(offer, source, manifest, data, topic)
            tasks.start_soon(_restart_when, mortal, halfway)
            await _pull_all(mortal, manifest, topic, halfway)
            tasks.cancel_scope.cancel()


async def test_many_senders_upload_under_a_credit_window(shared: World, topic: str) -> None:
    with anyio.fail_after(GIVE_UP_S):
        await _upload_all(shared, topic)


async def test_an_upload_survives_the_death_of_the_broker(mortal: World, topic: str) -> None:
    halfway = anyio.Event()
    with anyio.fail_after(GIVE_UP_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_restart_when, mortal, halfway)
            await _upload_all(mortal, topic, halfway)


async def _restart_when(world: World, moment: anyio.Event) -> None:
    await moment.wait()
    await world.kill()
    await world.start()


async def _pull_all(
    world: World, manifest: Manifest, topic: str, halfway: anyio.Event | None = None
) -> None:
    async def one(number: int) -> None:
        async with world.link(f"sink-{number}") as sink:
            download = await pull(
                sink,
                manifest,
                topic,
                lambda d: (
                    halfway.set()
                    if halfway and d.received_bytes > manifest.size_bytes // 2
                    else None
                ),
            )
            download.verify()

    async with anyio.create_task_group() as tasks:
        for number in range(RECEIVERS):
            tasks.start_soon(one, number)


async def _upload_all(world: World, topic: str, halfway: anyio.Event | None = None) -> None:
    blobs = [megabyte(10 + number) for number in range(RECEIVERS)]
    intakes = {
        f"{topic}/up/{number}": (Intake(manifest, 4), f"{topic}/ctl/{number}")
        for number, (_, manifest) in enumerate(blobs)
    }

    async def one(number: int) -> None:
        data, manifest = blobs[number]
        async with world.link(f"device-{number}") as device:
            await send(
                device, Upload(manifest, data), f"{topic}/up/{number}", f"{topic}/ctl/{number}"
            )

    def on_progress(intake: Intake) -> None:
        if halfway and intake.received_bytes > MEGABYTE // 2:
            halfway.set()

    async with world.link("sink") as sink, anyio.create_task_group() as receiving:
        receiving.start_soon(receive, sink, intakes, on_progress)
        async with anyio.create_task_group() as sending:
            for number in range(RECEIVERS):
                sending.start_soon(one, number)
        receiving.cancel_scope.cancel()
    for intake, _ in intakes.values():
        assert intake.manifest.sha256 is not None
        intake.verify(intake.manifest.sha256)
