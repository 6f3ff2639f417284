"""Records of blobs on the broker that another client has written cost the coordinator little."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from msgspec.structs import replace

from fairbed.coordinator.messaging import blobs
from fairbed.coordinator.messaging.blobs import PrivateBlobs, PublicBlobs, SideTraffic
from fairbed.wire.chunks import manifest_of
from fairbed.wire.codec import encode
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import (
    MAX_VECTOR_BYTES,
    MIN_CHUNK_BYTES,
    ChunkRequest,
    Intent,
    Manifest,
)
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet
from tests.wire.transport.memory import MemoryBroker

pytestmark = pytest.mark.anyio

TOPICS = Topics()
SHA256 = bytes(range(32))
MODEL = bytes(5_000)


def intent_of(manifest: Manifest, topic: str | None = None) -> Packet:
    """Return the record of a blob of another coordinator, as the broker kept it."""
    record = encode(Intent(manifest=manifest, boot=7))
    return Packet(topic or TOPICS.intent(manifest.topic_name), record, retained=True)


def blob_of(size_bytes: int) -> Manifest:
    """Return a blob in chunks of 1 KiB."""
    return Manifest(
        id=SHA256[:16],
        kind="model",
        size_bytes=size_bytes,
        chunk_bytes=MIN_CHUNK_BYTES,
        sha256=SHA256,
    )


@asynccontextmanager
async def place() -> AsyncIterator[tuple[PublicBlobs, "_Topics"]]:
    """Yield the blobs of a coordinator, and the topics on which it has published so far."""
    topics = _Topics()
    async with MemoryBroker().transport("coordinator") as link:
        async for event in link.events():
            if isinstance(event, LinkUp):
                break
        publish = link.publish

        async def noted(
            topic: str, payload: bytes | memoryview, *, qos: int = 0, retain: bool = False
        ) -> None:
            if topics.is_down:
                raise Disconnected("the link is down")
            topics.add(topic)
            if topics.is_stuck:
                await anyio.sleep_forever()
            await publish(topic, payload, qos=qos, retain=retain)

        link.publish = noted  # type: ignore[method-assign]  # counts what the broker would get
        yield PublicBlobs(link, TOPICS, boot=1), topics


class _Topics(list[str]):
    """Topics of messages in order; `ten` is set with the tenth.

    A link that `is_down` sends no message, a broker that `is_stuck` takes no message.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ten = anyio.Event()
        self.is_down = self.is_stuck = False

    def add(self, topic: str) -> None:
        self.append(topic)
        if len(self) == 10:
            self.ten.set()


async def test_a_record_of_two_million_chunks_is_removed_without_clearing_them() -> None:
    huge = blob_of(MAX_VECTOR_BYTES)
    assert huge.chunk_count == 1 << 21
    async with place() as (public, topics):
        with anyio.fail_after(1.0):
            await public.on_intent(intent_of(huge))
    assert topics == [TOPICS.intent(huge.id.hex())]


async def test_a_model_is_published_while_an_old_blob_is_cleared() -> None:
    old, new = blob_of(3_000 * 1024), manifest_of(MODEL, "model", 1024)
    async with place() as (public, topics), anyio.create_task_group() as group:
        group.start_soon(public.on_intent, intent_of(old))
        await topics.ten.wait()
        await public.publish(new, MODEL)
        at_publish = len(topics)
        group.start_soon(public.on_intent, intent_of(old))  # the broker may deliver it again
    mine = [topic for topic in topics[:at_publish] if new.id.hex() in topic]
    assert len(mine) == 1 + new.chunk_count
    assert at_publish <= 10 + blobs.CLEARED_AT_ONCE + len(mine)
    cleared = [topic for topic in topics if old.id.hex() in topic]
    assert len(set(cleared)) == old.chunk_count + 1
    assert cleared[old.chunk_count] == TOPICS.intent(old.id.hex())  # last, so that a crash is seen


async def test_a_blob_that_is_published_again_is_cleared_no_further() -> None:
    manifest = manifest_of(bytes(300 * 1024), "model", 1024)
    async with place() as (public, topics), anyio.create_task_group() as group:
        group.start_soon(public.on_intent, intent_of(manifest))
        await topics.ten.wait()
        await public.publish(manifest, bytes(300 * 1024))
        at_publish = len(topics)
    assert topics[at_publish:] == []


async def test_records_of_other_names_and_too_many_records_clear_no_chunk() -> None:
    stray = TOPICS.intent("00" * 16)
    async with place() as (public, topics):
        await public.on_intent(intent_of(blob_of(3_000), stray))
        assert topics == [stray]
        topics.clear()
        async with anyio.create_task_group() as group:
            for number in range(1_000):
                id_ = number.to_bytes(16, "big")
                manifest = Manifest(
                    id=id_, kind="model", size_bytes=1, chunk_bytes=1024, sha256=id_ * 2
                )
                group.start_soon(public.on_intent, intent_of(manifest))
    assert 2 <= len(topics) <= 2 * blobs.MAX_LEFTOVERS


async def test_a_flood_of_records_waits_for_the_broker_in_a_bounded_number() -> None:
    """Each waited for an acknowledgement of its own: 65,535 of them used up all packet ids."""
    async with place() as (public, topics), anyio.create_task_group() as group:
        topics.is_stuck = True
        for number in range(1_000):
            topic = TOPICS.intent(f"{number:032x}")
            group.start_soon(public.on_intent, Packet(topic, b"garbage", retained=True))
        await anyio.wait_all_tasks_blocked()
        assert len(topics) == blobs.MAX_LEFTOVERS
        group.cancel_scope.cancel()


async def publish_and_retire(public: PublicBlobs, number: int) -> Manifest:
    """Publish a model of five chunks, remove it, and return its manifest."""
    data = bytes([number]) * 5_000
    manifest = public.named(manifest_of(data, "model", 1024))
    await public.publish(manifest, data)
    await public.retire(manifest.id)
    return manifest


async def test_names_are_used_again_after_a_rest() -> None:
    """A broker that keeps every topic for ever must not grow with each version."""
    async with place() as (public, topics):
        names = [(await publish_and_retire(public, number)).topic_name for number in range(50)]
    assert len(set(names)) == blobs.NAMES_AT_REST + 1
    assert len(set(topics)) == len(set(names)) * (1 + 5)
    for first in range(len(names) - blobs.NAMES_AT_REST):
        span = names[first : first + blobs.NAMES_AT_REST + 1]
        assert len(set(span)) == len(span)


async def test_live_blobs_have_names_of_their_own() -> None:
    async with place() as (public, _):
        for number in range(20):
            await publish_and_retire(public, number)
        names = []
        for number in range(20, 30):
            data = bytes([number]) * 5_000
            manifest = public.named(manifest_of(data, "model", 1024))
            await public.publish(manifest, data)
            names.append(manifest.topic_name)
            assert public.named(manifest_of(data, "model", 1024)) == manifest  # published again
    assert len(set(names)) == len(names)


async def test_a_name_is_not_used_again_before_its_topics_are_clear() -> None:
    async with place() as (public, topics):
        kept = public.named(manifest_of(MODEL, "model", 1024))
        await public.publish(kept, MODEL)
        topics.is_down = True
        await public.retire(kept.id)
        topics.is_down = False
        names = {(await publish_and_retire(public, n)).topic_name for n in range(1, 20)}
        assert kept.topic_name not in names
        await public.on_intent(intent_of(kept))  # after the reconnect
        names = {(await publish_and_retire(public, n)).topic_name for n in range(20, 40)}
        assert kept.topic_name in names


async def test_a_late_record_of_a_removed_blob_clears_nothing_of_the_next_one() -> None:
    async with place() as (public, topics):
        old = await publish_and_retire(public, 0)
        for number in range(1, 1 + blobs.NAMES_AT_REST):
            await publish_and_retire(public, number)
        new = public.named(manifest_of(MODEL, "model", 1024))
        assert new.topic_name == old.topic_name
        await public.publish(new, MODEL)
        at_publish = len(topics)
        await public.on_intent(intent_of(old))
        assert topics[at_publish:] == []


async def test_a_model_of_an_earlier_coordinator_is_cleared_while_the_same_model_is_live() -> None:
    async with place() as (public, topics):
        manifest = public.named(manifest_of(MODEL, "model", 1024))
        await public.publish(manifest, MODEL)
        at_publish = len(topics)
        earlier = replace(manifest, name="7-1")
        await public.on_intent(intent_of(earlier))
        assert topics[-1] == TOPICS.intent("7-1")
        assert len(topics) == at_publish + 1 + manifest.chunk_count


async def test_a_device_that_repeats_a_request_gets_each_chunk_once_a_second() -> None:
    """A request of 90 bytes would have the coordinator send a whole shard, again and again."""
    data = bytes(4 * MIN_CHUNK_BYTES)
    manifest = manifest_of(data, "shard", MIN_CHUNK_BYTES)
    request = ChunkRequest(id=manifest.id, chunks=list(range(4)))
    traffic = SideTraffic()
    async with MemoryBroker().transport("coordinator") as link:
        async for event in link.events():
            if isinstance(event, LinkUp):
                break
        private = PrivateBlobs(link, TOPICS, traffic)
        private.offer("pi-0", manifest, data)
        for _ in range(100):
            await private.on_request("pi-0", request)
            private.offer("pi-0", manifest, data)  # it says hello again
    assert len(data) < traffic.down_bytes < 2 * len(data)
