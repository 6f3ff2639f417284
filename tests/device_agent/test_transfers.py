"""Transfers of the agent, at times that a test of the whole agent hardly reaches."""

import anyio
import pytest

from fairbed.device_agent import transfers
from fairbed.device_agent.publisher import DevicePublisher
from fairbed.device_agent.sensors import MonotonicClock
from fairbed.device_agent.state.link_estimate import LinkEstimate
from fairbed.device_agent.transfers import Pulls, Push
from fairbed.wire.chunks import chunk_slice, decode_chunk, encode_chunk, manifest_of
from fairbed.wire.messages import Manifest
from fairbed.wire.topics import Topics
from fairbed.wire.transfer import Upload
from fairbed.wire.transport.base import LinkUp, Packet
from tests.idle_time import LoopClock
from tests.wire.transport.memory import MemoryBroker, MemoryTransport

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

MANIFEST = Manifest(id=bytes(16), kind="update", size_bytes=4096, chunk_bytes=1024)


async def test_an_acknowledged_update_counts_as_sent_after_a_lost_link() -> None:
    """The last chunk arrived, its send failed, and the acknowledgement is faster."""
    sent: list[bool] = []
    async with anyio.create_task_group() as group:
        link = MemoryBroker().transport("pi-1")  # never connected: every send fails
        publisher = DevicePublisher(link, Topics(), "pi-1", group)
        push = Push(
            Upload(MANIFEST, bytes(4096)), publisher, MonotonicClock(), lambda: sent.append(True)
        )
        group.start_soon(push.run, 2)
        await anyio.wait_all_tasks_blocked()
        push.on_ack(b"\x03")
        await anyio.wait_all_tasks_blocked()
        assert not push.is_sent
        push.on_ack(b"\x0f")
    assert sent == [True]


def retain(broker: MemoryBroker, topics: Topics, chunks: int) -> Manifest:
    """Give a broker the retained chunks of a model; return its manifest."""
    data = bytes(range(chunks)) * 1024
    manifest = manifest_of(data, "model", 1024)
    for index in range(manifest.chunk_count):
        frame = encode_chunk(manifest.id, index, data[chunk_slice(manifest, index)])
        broker.retained[topics.chunk(manifest.id.hex(), index)] = frame
    return manifest


class RecordingTransport(MemoryTransport):
    """A transport that records the number of released filters."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, "pi-1")
        self.released: list[int] = []

    async def unsubscribe(self, *filters: str) -> None:
        self.released.append(len(filters))
        await super().unsubscribe(*filters)


@pytest.mark.parametrize(("chunks", "released"), [(4, [4]), (6, [1, 1, 4])])
async def test_chunks_are_released_with_the_next_request_and_at_the_end(
    chunks: int, released: list[int]
) -> None:
    broker, topics = MemoryBroker(), Topics()
    manifest = retain(broker, topics, chunks)
    link = RecordingTransport(broker)
    async with link, anyio.create_task_group() as group:
        pulls = Pulls(
            DevicePublisher(link, topics, "pi-1", group), topics, MonotonicClock(), LinkEstimate()
        )
        assert isinstance(await anext(link.events()), LinkUp)

        async def receive() -> None:
            async for event in link.events():
                assert isinstance(event, Packet)
                pulls.on_chunk(decode_chunk(event.payload), event.topic)
                await anyio.wait_all_tasks_blocked()

        group.start_soon(receive)
        pull = await pulls.fetch(manifest)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    pull.download.verify()
    assert link.released == released


class SlowTransport(MemoryTransport):
    """A transport that receives parts of a chunk until `stops_at`, and never the whole."""

    def __init__(self, broker: MemoryBroker, stops_at: float) -> None:
        super().__init__(broker, "pi-1")
        self.stops_at = stops_at
        self.requests: list[float] = []
        self.is_requested_again = anyio.Event()

    @property
    def large_bytes(self) -> int:
        return int(1e3 * min(anyio.current_time(), self.stops_at))

    async def subscribe(self, *filters: str, qos: int = 0) -> None:
        self.requests.append(anyio.current_time())
        if len(self.requests) > 1:
            self.is_requested_again.set()
        await super().subscribe(*filters, qos=qos)


async def test_a_chunk_is_requested_again_only_when_no_part_of_it_arrives() -> None:
    """Before, a link slower than the time-out carried every chunk again and again."""
    start = anyio.current_time()
    link = SlowTransport(MemoryBroker(), start + 30.0)
    manifest = manifest_of(bytes(4096), "model", 4096)
    async with link, anyio.create_task_group() as group:
        assert isinstance(await anext(link.events()), LinkUp)
        publisher = DevicePublisher(link, Topics(), "pi-1", group)
        pulls = Pulls(publisher, Topics(), LoopClock(), LinkEstimate())
        group.start_soon(pulls.fetch, manifest)
        await link.is_requested_again.wait()
        group.cancel_scope.cancel()
    first, second = link.requests
    assert first - start < 1.0
    assert 30.0 <= second - start <= 30.0 + 2 * 2.0 + 1.0


class HoldingTransport(MemoryTransport):
    """A transport whose broker holds back retained messages, as mosquitto 2.0 to a full socket."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, "pi-1")
        self.held: list[str] = []

    async def subscribe(self, *filters: str, qos: int = 0) -> None:
        held, self.held = self.held, []
        if held:
            await super().subscribe(*held, qos=qos)
        self.held += filters


async def test_a_broker_that_holds_back_the_last_chunks_is_nudged() -> None:
    """Before, they were requested again after two seconds, and arrived twice."""
    broker, topics = MemoryBroker(), Topics()
    manifest = retain(broker, topics, 6)
    link = HoldingTransport(broker)
    async with link, anyio.create_task_group() as group:
        publisher = DevicePublisher(link, topics, "pi-1", group)
        pulls = Pulls(publisher, topics, LoopClock(), LinkEstimate())
        assert isinstance(await anext(link.events()), LinkUp)

        async def receive() -> None:
            async for event in link.events():
                assert isinstance(event, Packet)
                pulls.on_chunk(decode_chunk(event.payload), event.topic)

        group.start_soon(receive)
        began = anyio.current_time()
        pull = await pulls.fetch(manifest)
        assert anyio.current_time() - began < 2.0
        group.cancel_scope.cancel()
    pull.download.verify()
    assert (pull.download.rerequests, pull.download.duplicates) == (0, 0)


async def test_the_last_chunks_are_not_waited_for_once_others_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were requested while the socket was full: the device asks again with each arrival."""
    broker, topics, nudged = MemoryBroker(), Topics(), list[bool]()
    manifest = retain(broker, topics, 6)
    link = HoldingTransport(broker)

    def nudge(self: DevicePublisher) -> None:
        nudged.append(bool(arrived))
        self.subscribe(self.data_topic)

    monkeypatch.setattr(DevicePublisher, "nudge", nudge)
    monkeypatch.setattr(transfers, "NUDGE_S", 0.01)
    arrived = list[int]()
    async with link, anyio.create_task_group() as group:
        publisher = DevicePublisher(link, topics, "pi-1", group)
        pulls = Pulls(publisher, topics, LoopClock(), LinkEstimate())
        assert isinstance(await anext(link.events()), LinkUp)

        async def receive() -> None:
            async for event in link.events():
                assert isinstance(event, Packet)
                chunk = decode_chunk(event.payload)
                arrived.append(chunk.index)
                if len(arrived) == 1:  # from here on, no quiet time brings a nudge
                    monkeypatch.setattr(transfers, "NUDGE_S", 1e6)
                pulls.on_chunk(chunk, event.topic)
                await anyio.wait_all_tasks_blocked()

        group.start_soon(receive)
        with anyio.fail_after(30.0):
            pull = await pulls.fetch(manifest)
        group.cancel_scope.cancel()
    assert nudged[0] is False
    assert nudged[-1] is True
    assert pull.download.rerequests == 0
