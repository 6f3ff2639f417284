"""The current version equals its decoded blob, and the broker holds only that version."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import numpy as np
import pytest

from fairbed.coordinator.fleet.codec_agreement import CodecAgreement
from fairbed.coordinator.messaging.blobs import PublicBlobs
from fairbed.coordinator.policy.config import ExchangeConfig
from fairbed.coordinator.rounds.model_versions import ModelVersions
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.store import RunReader, Store
from fairbed.coordinator.store.event_log import EventLog
from fairbed.wire.codecs import Vector, unpack
from fairbed.wire.codecs.int8 import Int8Blocks
from fairbed.wire.messages import Coding, Manifest
from fairbed.wire.tensors import vector_to_bytes
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp
from tests.coordinator.fleet.test_codec_agreement import KNOWS_ALL, OLD
from tests.coordinator.store.fake_run import make_store
from tests.wire.codecs.vectors import layout_of, rng_of
from tests.wire.transport.memory import MemoryBroker

pytestmark = pytest.mark.anyio

LAYOUT = layout_of(3000, 7)


def vector(seed: int) -> Vector:
    return rng_of(seed).standard_normal(LAYOUT.n_values).astype(np.float32)


class Place:
    """A broker, and the versions in it."""

    def __init__(self, store: Store, broker: MemoryBroker, public: PublicBlobs, down: str) -> None:
        self.broker = broker
        agreement = CodecAgreement(ExchangeConfig(down=down), LAYOUT, "r")  # type: ignore[arg-type]
        event_log = EventLog(store, lambda: 0.0, _raise)
        self.registry = Registry()
        self.versions = ModelVersions(agreement, vector(0), public, self.registry, event_log)

    def blob(self, manifest: Manifest) -> bytes:
        """Return the data of a retained blob of one chunk."""
        kept = self.broker.retained[Topics().chunk(manifest.topic_name, 0)]
        return kept[len(kept) - manifest.size_bytes :]


@asynccontextmanager
async def place(folder: Path, down: str) -> AsyncIterator[Place]:
    broker, store = MemoryBroker(), make_store(folder / "run")
    try:
        with anyio.fail_after(20):
            async with broker.transport("coordinator") as link:
                async for event in link.events():
                    if isinstance(event, LinkUp):
                        break
                yield Place(store, broker, PublicBlobs(link, Topics(), 1), down)
    finally:
        store.close()


def _raise(failure: Exception) -> None:
    raise failure


@pytest.mark.parametrize("down", ["float32", "float16", "int8", "delta"])
async def test_all_devices_have_the_same_version(down: str, tmp_path: Path) -> None:
    async with place(tmp_path, down) as here:
        versions = here.versions
        for round_id in range(4):
            base = versions.vector
            await versions.publish(vector(round_id), rng_of(round_id))
            whole = here.blob(versions.manifest)
            assert whole == bytes(vector_to_bytes(versions.vector))
            assert versions.coding(OLD) == Coding()
            coding = versions.coding(KNOWS_ALL)
            if down == "float32" or (down == "delta" and round_id == 0):
                np.testing.assert_array_equal(versions.vector, vector(round_id))
                continue
            assert isinstance(coding, Coding)
            assert coding.model is not None
            if down == "delta":
                got = unpack(here.blob(coding.model.manifest), Int8Blocks(), LAYOUT, base)
                np.testing.assert_array_equal(got, versions.vector)
            error = np.abs(versions.vector - vector(round_id)).max()
            assert 0.0 < error < 0.1
            np.testing.assert_array_equal(versions.vector[3000:], vector(round_id)[3000:])


@pytest.mark.parametrize(("down", "kept"), [("float32", 1), ("float16", 2), ("delta", 2)])
async def test_the_broker_holds_one_version(down: str, kept: int, tmp_path: Path) -> None:
    async with place(tmp_path, down) as here:
        for round_id in range(4):
            await here.versions.publish(vector(round_id), rng_of(round_id))
        chunks = [topic for topic in here.broker.retained if "/c/" in topic]
    assert len(chunks) == kept


@pytest.mark.parametrize("down", ["float32", "delta"])
async def test_a_hundred_versions_have_a_few_topics(down: str, tmp_path: Path) -> None:
    """Mosquitto remembers each topic that once had a retained message: 2 kB a round."""
    topics = set[str]()
    async with place(tmp_path, down) as here:
        for round_id in range(100):
            await here.versions.publish(vector(round_id), rng_of(round_id))
            topics.update(here.broker.retained)
    assert len(topics) <= 20


async def test_a_version_from_before_a_restart_is_published_unchanged(tmp_path: Path) -> None:
    async with place(tmp_path, "int8") as here:
        await here.versions.publish(vector(1), None)
        np.testing.assert_array_equal(here.versions.vector, vector(1))
        assert here.versions.encode_s is None
        assert here.versions.coding(KNOWS_ALL) == Coding()


async def test_a_model_beyond_the_codec_is_sent_as_float32_with_one_event(tmp_path: Path) -> None:
    async with place(tmp_path, "float16") as here:
        await here.versions.publish(vector(1) * np.float32(1e6), rng_of(1))
        np.testing.assert_array_equal(here.versions.vector, vector(1) * np.float32(1e6))
    with RunReader(tmp_path / "run") as reader:
        lines = [event.text for _, event in reader.events() if event.kind == "not encoded"]
    assert len(lines) == 1
    assert lines[0].startswith("float16: every value must lie within 65504, got ")
    assert lines[0].endswith("; the model is sent as float32")


async def test_the_sizes_of_transfers_are_known_for_each_device(tmp_path: Path) -> None:
    async with place(tmp_path, "delta") as here:
        here.registry.expect(["a", "b"])
        for name, like in (("a", KNOWS_ALL), ("b", OLD)):
            here.registry[name].capabilities = like.capabilities
        await here.versions.publish(vector(1), rng_of(1))
        here.registry["a"].held_sha256 = here.versions.manifest.sha256
        await here.versions.publish(vector(2), rng_of(2))
        down, up = here.versions.transfer_bits()
        here.registry["a"].held_sha256 = here.versions.manifest.sha256
        await here.versions.publish(vector(3), rng_of(3), raw=bytes(1000))
        with_raw = here.versions.transfer_bits()
    whole = 8.0 * LAYOUT.size_bytes
    assert down[1] == whole
    assert down[0] < whole / 3.5
    assert up.tolist() == [whole, whole]
    assert with_raw[0][1] == with_raw[1][0] == whole + 8000.0
    assert 8000.0 < with_raw[0][0] < whole / 3.5 + 8000.0


@pytest.mark.parametrize("down", ["float32", "int8", "delta"])
async def test_the_raw_part_follows_every_form_of_a_version(down: str, tmp_path: Path) -> None:
    async with place(tmp_path, down) as here:
        versions = here.versions
        await versions.publish(vector(1), rng_of(1), raw=b"trees")
        hashes = {versions.manifest.sha256}
        for round_id, raw in ((2, None), (3, b"more trees"), (3, b"other")):
            await versions.publish(vector(round_id), rng_of(round_id), raw=raw)
            expected = raw or b"trees"
            assert versions.raw == expected
            assert (
                here.blob(versions.manifest) == bytes(vector_to_bytes(versions.vector)) + expected
            )
            packed = versions.coding(KNOWS_ALL).model
            for manifest in (versions.manifest, *([packed.manifest] if packed else ())):
                assert manifest.raw_bytes == len(expected)
                assert here.blob(manifest).endswith(expected)
            assert (packed is None) == (down == "float32")
            hashes.add(versions.manifest.sha256)
        assert len(hashes) == 4, "the hash is of both parts"
