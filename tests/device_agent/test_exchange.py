"""Transfers as the agent drives them, at the moments that are hard to hit from outside."""

import anyio
import pytest

from device_agent.exchange import Push
from device_agent.post import Post
from device_agent.sensors import MonotonicClock
from wire.messages import Manifest
from wire.topics import Topics
from wire.transfer import Upload
from wire.transport.memory import MemoryBroker

pytestmark = pytest.mark.anyio

MANIFEST = Manifest(id=bytes(16), kind="update", size_bytes=4096, chunk_bytes=1024)


async def test_an_update_that_was_acknowledged_counts_as_sent_though_the_link_was_lost() -> None:
    """The last chunk got through, its sender was told otherwise, and the ack is quicker."""
    sent: list[bool] = []
    async with anyio.create_task_group() as group:
        link = MemoryBroker().transport("pi-1")  # never connected: every send fails
        post = Post(link, Topics(), "pi-1", group)
        push = Push(
            Upload(MANIFEST, bytes(4096)), post, MonotonicClock(), lambda: sent.append(True)
        )
        group.start_soon(push.run, 2)
        await anyio.wait_all_tasks_blocked()
        push.on_ack(b"\x03")
        await anyio.wait_all_tasks_blocked()
        assert not push.is_sent
        push.on_ack(b"\x0f")
    assert sent == [True]
