"""Runs over brokers with a small message limit: no larger message is sent."""

from pathlib import Path

import pytest

from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.coordinator.task.catalogue import load_task
from fairbed.testbed.broker.configuration import BrokerKind
from fairbed.testbed.run.broker import find_chunk_limit, start_broker
from fairbed.wire.messages import MAX_CHUNK_BYTES
from fairbed.wire.topics import Topics
from tests.brokers import BROKERS
from tests.coordinator.lab import Lab, Links, lab, make_config
from tests.coordinator.real_broker import RealBroker
from tests.wire.transport.memory import MemoryBroker

pytestmark = pytest.mark.anyio

LIMIT_BYTES = 120 * 1024
LIMITED = [param for param in BROKERS if param.values[0] != "amqtt"]
"""amqtt has no limit."""

NAMES = ("pi-0", "pi-1")
CONFIG = make_config(rounds=3, devices=2, selection=SelectionConfig(policy="uniform", per_round=2))


async def play(folder: Path, links: Links, max_chunk_bytes: int) -> list[str]:
    """Run two devices with a model of 1 MB; return the models' hashes."""
    async with lab(folder, agents=0, broker=links, artifact=load_task("mlp", (784,), 10)) as place:
        place.max_chunk_bytes = max_chunk_bytes
        place.device_names = NAMES
        for name in NAMES:
            place.shards.shard(name)
            place.start_agent(name)
        assert await place.run(CONFIG) == "done"
    return hashes(place)


def hashes(place: Lab) -> list[str]:
    with place.reader() as reader:
        assert {x.outcome for x in reader.exchanges(0)} == {"done"}
        assert {x.resent_up for x in reader.exchanges(0)} == {0}
        return [row.model_sha256 for row in reader.rounds()]


@pytest.mark.parametrize("kind", LIMITED)
async def test_a_broker_with_a_small_payload_limit_carries_the_same_run(
    kind: BrokerKind, tmp_path: Path
) -> None:
    expected = await play(tmp_path / "memory", MemoryBroker(), MAX_CHUNK_BYTES)
    sizes: list[int] = []
    async with start_broker(kind, folder=tmp_path, max_packet_bytes=LIMIT_BYTES) as broker:
        limit = await find_chunk_limit(broker.url, Topics())
        links = RealBroker(broker)
        links.on_publish = lambda client, topic, payload: sizes.append(len(payload))
        assert await play(tmp_path / kind, links, limit) == expected
    assert limit < max(sizes) < LIMIT_BYTES
