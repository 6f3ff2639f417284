"""The buffer of an update is reused for the next one, never for two at once."""

import hashlib

import numpy as np
import pytest

from fairbed.coordinator.fleet.uploads import Uploads
from fairbed.coordinator.policy.config import LimitsConfig
from fairbed.wire.chunks import encode_chunk
from fairbed.wire.messages import Manifest, UploadDone
from fairbed.wire.tensors import Layout, Tensor, vector_to_bytes

pytestmark = pytest.mark.anyio

LAYOUT = Layout(tensors=(Tensor(name="w", shape=(1000,), offset=0),))


def receive(uploads: Uploads, device: str, value: float, raw: bytes = b"") -> Manifest:
    data = bytes(vector_to_bytes(np.full(1000, value, dtype=np.float32))) + raw
    manifest = Manifest(
        id=device.encode().ljust(16, b"-"),
        kind="update",
        size_bytes=len(data),
        chunk_bytes=8192,
        raw_bytes=len(raw),
    )
    uploads.open(device, manifest, window=4)
    uploads.on_frame(device, encode_chunk(manifest.id, 0, data))
    done = UploadDone(
        round=1, id=manifest.id, sha256=hashlib.sha256(data).digest(), model=bytes(32)
    )
    assert uploads.on_done(device, done) is not None
    return manifest


@pytest.mark.anyio
async def test_the_memory_of_a_released_update_is_reused() -> None:
    uploads = Uploads(LAYOUT, now=lambda: 0.0)
    receive(uploads, "a", 1.0)
    assert await uploads.check("a") is None
    first = uploads.vector("a")
    uploads.release("a")
    receive(uploads, "b", 2.0)
    assert await uploads.check("b") is None
    assert np.shares_memory(first, uploads.vector("b"))


@pytest.mark.anyio
async def test_the_memory_of_a_discarded_update_is_not_reused() -> None:
    uploads = Uploads(LAYOUT, now=lambda: 0.0)
    receive(uploads, "a", 1.0)
    assert await uploads.check("a") is None
    first = uploads.vector("a")
    uploads.discard("a")
    receive(uploads, "b", 2.0)
    assert await uploads.check("b") is None
    assert not np.shares_memory(first, uploads.vector("b")), "its check may still read it"
    assert first[0] == 1.0


@pytest.mark.anyio
async def test_a_short_update_in_used_memory_does_not_pass_for_the_last_one() -> None:
    uploads = Uploads(LAYOUT, now=lambda: 0.0)
    receive(uploads, "a", 1.0)
    await uploads.check("a")
    uploads.release("a")
    manifest = Manifest(id=bytes(16), kind="update", size_bytes=LAYOUT.size_bytes, chunk_bytes=4096)
    uploads.open("b", manifest, window=4)
    assert await uploads.check("b") == "update: incomplete"


async def test_the_raw_part_follows_the_vector() -> None:
    seen = list[bytes]()

    def check(raw: memoryview) -> str | None:
        seen.append(bytes(raw))
        return "update: no such trees" if bytes(raw) == b"bad" else None

    uploads = Uploads(LAYOUT, now=lambda: 0.0, check_raw=check)
    receive(uploads, "a", 1.0, b"trees")
    assert await uploads.check("a") is None
    assert uploads.vector("a").tolist() == [1.0] * 1000
    assert bytes(uploads.raw("a")) == b"trees"
    receive(uploads, "b", 1.0, b"bad")
    assert await uploads.check("b") == "update: no such trees"
    receive(uploads, "c", 2.0)
    assert await uploads.check("c") is None
    assert seen == [b"trees", b"bad", b""]


async def test_a_model_may_be_raw_altogether() -> None:
    uploads = Uploads(Layout(tensors=()), now=lambda: 0.0, check_raw=lambda raw: None)
    manifest = Manifest(id=bytes(16), kind="update", size_bytes=5, chunk_bytes=4096, raw_bytes=5)
    assert uploads.fault_in_offer(manifest) is None
    uploads.open("a", manifest, window=4, base=np.zeros(0, np.float32))
    uploads.on_frame("a", encode_chunk(manifest.id, 0, b"trees"))
    sha256 = hashlib.sha256(b"trees").digest()
    uploads.on_done("a", UploadDone(round=1, id=manifest.id, sha256=sha256, model=bytes(32)))
    assert await uploads.check("a") is None
    assert uploads.vector("a").shape == (0,)
    assert bytes(uploads.raw("a")) == b"trees"


def offered(raw_bytes: int, size_bytes: int | None = None) -> Manifest:
    size = LAYOUT.size_bytes + raw_bytes if size_bytes is None else size_bytes
    return Manifest(
        id=bytes(16), kind="update", size_bytes=size, chunk_bytes=4096, raw_bytes=raw_bytes
    )


def test_the_raw_part_is_bounded() -> None:
    plain = Uploads(LAYOUT, now=lambda: 0.0)
    assert "at most 0 raw bytes" in str(plain.fault_in_offer(offered(1)))
    uploads = Uploads(LAYOUT, now=lambda: 0.0, check_raw=lambda raw: None)
    most = 16 << 20
    assert uploads.fault_in_offer(offered(most)) is None
    assert "limits.raw_bytes" in str(uploads.fault_in_offer(offered(most + 1)))
    assert uploads.fault_in_offer(offered(most + 1), sent_raw=most // 2) is None
    assert "must hold 1000 float32" in str(uploads.fault_in_offer(offered(8, LAYOUT.size_bytes)))
    for check in ("on", "off"):
        limits = LimitsConfig(raw_bytes=9, check=check)
        uploads = Uploads(LAYOUT, lambda: 0.0, limits, check_raw=lambda raw: None)
        assert uploads.fault_in_offer(offered(9), sent_raw=most) is None
        assert uploads.fault_in_offer(offered(10), sent_raw=most) is not None


async def test_buffers_of_raw_updates_of_all_sizes_are_not_kept_for_ever() -> None:
    uploads = Uploads(LAYOUT, now=lambda: 0.0, check_raw=lambda raw: None)
    for size in range(1, 50):
        receive(uploads, "a", 1.0, bytes(size))
        assert await uploads.check("a") is None
        uploads.release("a")
    assert sum(map(len, uploads._spare.values())) == 1
