"""Background sends of a device, also over a stuck or lost link."""

import anyio
import anyio.lowlevel
import pytest

from fairbed.device_agent.publisher import MAX_PENDING, DevicePublisher
from fairbed.wire.codec import decode_from_device
from fairbed.wire.messages import Pong, Status
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import OnComplete
from tests.device_agent.conftest import NAME
from tests.wire.transport.memory import MemoryBroker, MemoryTransport

pytestmark = pytest.mark.anyio


class StuckTransport(MemoryTransport):
    """A link whose messages complete only when the test calls their callbacks."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, NAME)
        self.callbacks: list[OnComplete] = []

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | memoryview,
        *,
        qos: int = 0,
        retain: bool = False,
        on_complete: OnComplete,
    ) -> None:
        self.callbacks.append(on_complete)


async def test_the_messages_waiting_for_a_stuck_link_are_bounded() -> None:
    transport = StuckTransport(MemoryBroker())
    async with anyio.create_task_group() as group:
        publisher = DevicePublisher(transport, Topics(), NAME, group)
        for seq in range(MAX_PENDING + 5):
            publisher.publish(Pong(seq=seq))
        assert publisher.dropped == 5
        for on_complete in transport.callbacks:
            on_complete()
        publisher.publish(Pong(seq=0))
        assert len(transport.callbacks) == MAX_PENDING + 1


async def test_messages_are_lost_without_an_error_when_the_link_is_down() -> None:
    transport = MemoryBroker().transport(NAME)  # not entered: no link
    async with anyio.create_task_group() as group:
        publisher = DevicePublisher(transport, Topics(), NAME, group)
        publisher.publish(Pong(seq=1))
        publisher.subscribe("a")
        publisher.unsubscribe("a")
        assert not await publisher.send(Pong(seq=2))


async def test_the_status_is_retained() -> None:
    broker = MemoryBroker()
    async with broker.transport(NAME) as transport, anyio.create_task_group() as group:
        await anyio.lowlevel.checkpoint()
        await anext(transport.events())
        publisher = DevicePublisher(transport, Topics(), NAME, group)
        publisher.publish(Status(state="on", boot=3))
        publisher.publish(Pong(seq=1))
    kept = {topic: decode_from_device(body) for topic, body in broker.retained.items()}
    assert kept == {Topics().status(NAME): Status(state="on", boot=3)}
