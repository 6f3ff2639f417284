"""The broker in memory: scripted faults, all from one seed."""

import anyio
import pytest

from fairbed.wire.errors import Disconnected
from fairbed.wire.transport.base import LinkDown, LinkUp, Packet, Will
from tests.wire.transport.drivers import packets, up
from tests.wire.transport.memory import Faults, MemoryBroker

pytestmark = pytest.mark.anyio


async def arrivals(seed: int, faults: Faults, qos: int, count: int = 200) -> list[int]:
    """Return the arrived ones of `count` numbered packets, followed by a mark at QoS 1."""
    broker = MemoryBroker(seed, faults)
    async with broker.transport("a") as a, broker.transport("b") as b:
        await up(a)
        await up(b)
        await b.subscribe("t", qos=1)
        for i in range(count):
            broker.route("t", str(i).encode(), qos, retain=False)
        await a.publish("t", b"-1", qos=1)
        got: list[int] = []
        while not got or got[-1] >= 0:
            got.append(int((await packets(b, 1))[0].payload))
        return got[:-1]


@pytest.mark.parametrize(
    "faults",
    [Faults(loss_ratio=0.3), Faults(duplicate_ratio=0.3), Faults(reorder_ratio=0.3)],
    ids=["loss", "duplicates", "reordering"],
)
async def test_faults_come_from_the_seed_and_spare_qos_1(faults: Faults) -> None:
    got = await arrivals(1, faults, qos=0)
    assert got != list(range(200))
    assert got == await arrivals(1, faults, qos=0)
    assert got != await arrivals(2, faults, qos=0)
    assert await arrivals(1, faults, qos=1) == list(range(200))


async def test_each_fault_has_its_effect() -> None:
    lost = await arrivals(1, Faults(loss_ratio=0.3), qos=0)
    assert lost == sorted(set(lost))
    assert 100 < len(lost) < 180
    doubled = await arrivals(1, Faults(duplicate_ratio=0.3), qos=0)
    assert sorted(set(doubled)) == list(range(200))
    assert 230 < len(doubled) < 290
    mixed = await arrivals(1, Faults(reorder_ratio=0.3), qos=0)
    assert sorted(mixed) == list(range(200))


async def test_chosen_packets_can_be_lost() -> None:
    def is_lost(client_id: str, packet: Packet) -> bool:
        return client_id == "b" and packet.payload == b"7"

    got = await arrivals(1, Faults(is_lost=is_lost), qos=0)
    assert got == [i for i in range(200) if i != 7]


async def test_a_delay_postpones_deliveries() -> None:
    broker = MemoryBroker(faults=Faults(delay_s=0.01))
    async with broker.transport("a") as a:
        await up(a)
        await a.subscribe("t")
        before = anyio.current_time()
        await a.publish("t", b"")
        await packets(a, 1)
        assert anyio.current_time() - before >= 0.009


async def test_a_client_may_stay_disconnected_until_it_reconnects() -> None:
    broker = MemoryBroker()
    async with broker.transport("a", Will("w", b"gone")) as a, broker.transport("b") as b:
        await up(a)
        await up(b)
        await b.subscribe("w")
        broker.disconnect("a", reconnects=False)
        broker.disconnect("a", reconnects=False)
        assert await packets(b, 1) == [Packet("w", b"gone")]
        assert isinstance(await anext(a.events()), LinkDown)
        with pytest.raises(Disconnected):
            await a.publish("x", b"")
        broker.reconnect("a")
        assert await anext(a.events()) == LinkUp(2)
        await a.publish("x", b"")


async def test_a_second_client_of_the_same_id_disconnects_the_first() -> None:
    broker = MemoryBroker()
    async with broker.transport("a") as first, broker.transport("a") as second:
        await up(second)
        with pytest.raises(Disconnected):
            await first.publish("x", b"")
    async with broker.transport("a") as first:
        await up(first)
        async with broker.transport("a") as second:
            await up(second)
            assert isinstance(await anext(first.events()), LinkDown)


async def test_packets_in_flight_are_lost_with_the_link() -> None:
    broker = MemoryBroker()
    async with broker.transport("a") as a, broker.transport("b") as b:
        await up(a)
        await up(b)
        await b.subscribe("t", qos=1)
        broker.route("t", b"1", 1, retain=False)
        broker.disconnect("b")
        await a.publish("t", b"2", qos=1)
        assert isinstance(await anext(b.events()), LinkDown)
        await up(b)
        await a.publish("t", b"3", qos=1)
        assert await packets(b, 1) == [Packet("t", b"3")]


async def test_a_restart_clears_retained_messages() -> None:
    broker = MemoryBroker()
    async with broker.transport("a") as a:
        await up(a)
        await a.publish("t", b"1", retain=True)
        assert broker.retained == {"t": b"1"}
        broker.restart()
        assert await up(a) == 2
        assert broker.retained == {}
