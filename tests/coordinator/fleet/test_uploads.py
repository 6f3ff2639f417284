"""The buffer of an update is reused for the next one, never for two at once."""

import hashlib

import numpy as np
import pytest

from fairbed.coordinator.fleet.uploads import Uploads
from fairbed.wire.chunks import encode_chunk
from fairbed.wire.messages import Manifest, UploadDone
from fairbed.wire.tensors import Layout, Tensor, vector_to_bytes

pytestmark = pytest.mark.anyio

LAYOUT = Layout(tensors=(Tensor(name="w", shape=(1000,), offset=0),))


def receive(uploads: Uploads, device: str, value: float) -> Manifest:
    data = vector_to_bytes(np.full(1000, value, dtype=np.float32))
    manifest = Manifest(
        id=device.encode().ljust(16, b"-"),
        kind="update",
        size_bytes=LAYOUT.size_bytes,
        chunk_bytes=4096,
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
