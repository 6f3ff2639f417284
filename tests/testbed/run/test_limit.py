"""The payload limit of a broker is found without harm to the run."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute

from fairbed.testbed.broker.configuration import MAX_PACKET_BYTES, BrokerKind
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.run.broker import CHUNK_SIZES, find_broker, largest_chunk, start_broker
from fairbed.wire.messages import MAX_CHUNK_BYTES
from fairbed.wire.transport.client import MqttTransport
from tests.brokers import BROKERS
from tests.wire.transport.memory import MemoryBroker

pytestmark = pytest.mark.anyio

KIB = 1024
GIVE_UP_S = 60.0
TOPIC = "fairbed/main/limit/test"

LIMITED = [param for param in BROKERS if param.values[0] != "amqtt"]
"""amqtt has no limit."""


async def found(url: str) -> int:
    with anyio.fail_after(GIVE_UP_S):
        return await largest_chunk(MqttTransport(url, "limit", backoff=lambda n: 0.0), TOPIC)


@pytest.mark.parametrize("kind", BROKERS)
async def test_a_broker_without_limit_takes_the_largest_chunk(
    kind: BrokerKind, tmp_path: Path
) -> None:
    async with start_broker(kind, folder=tmp_path) as broker:
        assert await found(broker.url) == MAX_CHUNK_BYTES


@pytest.mark.parametrize("kind", LIMITED)
@pytest.mark.parametrize(
    ("limit_bytes", "chunk_bytes"),
    [(120 * KIB, 112 * KIB), (128_000, 112 * KIB), (300 * KIB, 256 * KIB), (32 * KIB, 0)],
)
async def test_a_broker_that_disconnects_is_detected(
    kind: BrokerKind, limit_bytes: int, chunk_bytes: int, tmp_path: Path
) -> None:
    async with start_broker(kind, folder=tmp_path, max_packet_bytes=limit_bytes) as broker:
        assert await found(broker.url) == chunk_bytes


@asynccontextmanager
async def mosquitto_that_drops(limit_bytes: int, folder: Path) -> AsyncIterator[str]:
    """Run mosquitto with a `message_size_limit`: it acknowledges what it drops."""
    command = find_broker("mosquitto")
    assert command is not None
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as probe:
        port = probe.extra(SocketAttribute.local_port)
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmessage_size_limit {limit_bytes}\n"
    )
    async with await anyio.open_process(
        guarded([*command, "-c", str(config)]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield f"mqtt://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.mark.broker
@pytest.mark.skipif(find_broker("mosquitto") is None, reason="mosquitto is not installed")
async def test_a_broker_that_drops_silently_is_detected(tmp_path: Path) -> None:
    async with mosquitto_that_drops(120 * KIB, tmp_path) as url:
        assert await found(url) == 112 * KIB


async def test_a_broker_in_memory_has_no_limit() -> None:
    assert await largest_chunk(MemoryBroker().transport("limit"), TOPIC) == MAX_CHUNK_BYTES


def test_every_probe_is_below_the_default_limit_of_the_brokers() -> None:
    assert sorted(CHUNK_SIZES) == list(CHUNK_SIZES)
    assert CHUNK_SIZES[-1] == MAX_CHUNK_BYTES < MAX_PACKET_BYTES
