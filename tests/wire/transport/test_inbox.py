"""The queue of arrivals: order, bounds, and what happens when it is full."""

import anyio
import pytest

from fairbed.wire.errors import Refused
from fairbed.wire.transport.base import Incoming, LinkDown, LinkUp, Packet
from fairbed.wire.transport.inbox import ReceiveQueue

pytestmark = pytest.mark.anyio


async def drain(inbox: ReceiveQueue) -> list[Incoming]:
    return [await anext(inbox) for _ in range(len(inbox))]


async def test_keeps_the_order() -> None:
    inbox = ReceiveQueue()
    items: list[Incoming] = [
        LinkUp(1),
        Packet("a", b"1"),
        Packet("b", b"2"),
        LinkDown("lost"),
        LinkUp(2),
    ]
    for item in items:
        assert inbox.put(item)
    assert await drain(inbox) == items


async def test_drops_the_newest_of_qos_0_when_full_and_refuses_qos_1() -> None:
    inbox = ReceiveQueue(max_packets=2)
    assert inbox.put(Packet("a", b"1"))
    assert inbox.put(Packet("a", b"2"), qos=1)
    assert inbox.put(Packet("a", b"3"))
    assert inbox.dropped == 1
    assert not inbox.put(Packet("a", b"4"), qos=1)
    assert inbox.put(LinkDown("full"))
    assert await drain(inbox) == [Packet("a", b"1"), Packet("a", b"2"), LinkDown("full")]
    assert inbox.put(Packet("a", b"5"), qos=1)


async def test_counts_bytes_too() -> None:
    inbox = ReceiveQueue(max_bytes=10)
    assert inbox.put(Packet("a", bytes(6)))
    assert not inbox.put(Packet("a", bytes(5)), qos=1)
    assert inbox.put(Packet("a", bytes(4)), qos=1)
    await drain(inbox)
    assert inbox.put(Packet("a", bytes(10)), qos=1)


async def test_a_refusal_comes_after_what_waits_and_again_and_again() -> None:
    inbox = ReceiveQueue()
    inbox.put(LinkUp(1))
    inbox.fail(Refused("no"))
    assert await anext(inbox) == LinkUp(1)
    for _ in range(2):
        with pytest.raises(Refused):
            await anext(inbox)


async def test_closing_wakes_the_consumer() -> None:
    inbox = ReceiveQueue()
    seen: list[Incoming] = []

    async def consume() -> None:
        async for item in inbox:
            seen.append(item)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            inbox.put(LinkUp(1))
            await anyio.wait_all_tasks_blocked()
            inbox.close()
    assert seen == [LinkUp(1)]
