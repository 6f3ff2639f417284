"""The receive queue: order, bounds, and the behaviour when it is full."""

import anyio
import pytest

from fairbed.wire.errors import Refused
from fairbed.wire.transport.base import Incoming, LinkDown, LinkUp, Packet
from fairbed.wire.transport.receive_queue import ReceiveQueue

pytestmark = pytest.mark.anyio


async def drain(queue: ReceiveQueue) -> list[Incoming]:
    return [await anext(queue) for _ in range(len(queue))]


async def test_keeps_the_order() -> None:
    queue = ReceiveQueue()
    items: list[Incoming] = [
        LinkUp(1),
        Packet("a", b"1"),
        Packet("b", b"2"),
        LinkDown("lost"),
        LinkUp(2),
    ]
    for item in items:
        assert queue.put(item)
    assert await drain(queue) == items


async def test_drops_the_newest_of_qos_0_when_full_and_refuses_qos_1() -> None:
    queue = ReceiveQueue(max_packets=2)
    assert queue.put(Packet("a", b"1"))
    assert queue.put(Packet("a", b"2"), qos=1)
    assert queue.put(Packet("a", b"3"))
    assert queue.dropped == 1
    assert not queue.put(Packet("a", b"4"), qos=1)
    assert queue.put(LinkDown("full"))
    assert await drain(queue) == [Packet("a", b"1"), Packet("a", b"2"), LinkDown("full")]
    assert queue.put(Packet("a", b"5"), qos=1)


async def test_counts_bytes_too() -> None:
    queue = ReceiveQueue(max_bytes=10)
    assert queue.put(Packet("a", bytes(6)))
    assert not queue.put(Packet("a", bytes(5)), qos=1)
    assert queue.put(Packet("a", bytes(4)), qos=1)
    await drain(queue)
    assert queue.put(Packet("a", bytes(10)), qos=1)


async def test_a_refusal_is_raised_after_the_queued_items_and_at_every_read() -> None:
    queue = ReceiveQueue()
    queue.put(LinkUp(1))
    queue.fail(Refused("no"))
    assert await anext(queue) == LinkUp(1)
    for _ in range(2):
        with pytest.raises(Refused):
            await anext(queue)


async def test_closing_wakes_the_consumer() -> None:
    queue = ReceiveQueue()
    seen: list[Incoming] = []

    async def consume() -> None:
        async for item in queue:
            seen.append(item)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            queue.put(LinkUp(1))
            await anyio.wait_all_tasks_blocked()
            queue.close()
    assert seen == [LinkUp(1)]
