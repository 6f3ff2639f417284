"""Blobs on disk: complete, verified, bounded in size."""

import os
from pathlib import Path

from fairbed.device_agent.examples import BlobCache
from fairbed.wire.chunks import manifest_of
from fairbed.wire.messages import Manifest


def kept(cache: BlobCache, data: bytes, at: int) -> Manifest:
    manifest = manifest_of(data, "shard")
    cache.put(manifest, data)
    (path,) = [p for p in cache.folder.iterdir() if manifest.id.hex() in p.name]
    os.utime(path, (at, at))
    return manifest


def test_returns_the_stored_blob(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path / "a" / "b", 1000)
    manifest = manifest_of(b"hello", "task")
    assert cache.get(manifest) is None
    cache.put(manifest, b"hello")
    cache.put(manifest, b"hello")
    assert cache.get(manifest) == b"hello"
    assert len(list(cache.folder.iterdir())) == 1


def test_a_corrupt_file_is_removed(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 1000)
    manifest = kept(cache, b"hello", 1)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"hullo")
    assert cache.get(manifest) is None
    assert not list(tmp_path.iterdir())


def test_the_least_recently_used_file_is_removed_first(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 250)
    old, older = kept(cache, b"a" * 100, 2), kept(cache, b"b" * 100, 1)
    assert cache.get(older) is not None  # used just now
    new = kept(cache, b"c" * 100, 3)
    assert cache.get(old) is None
    assert cache.get(older) is not None
    assert cache.get(new) is not None


def test_a_blob_larger_than_the_bound_is_kept_alone(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 10)
    first, second = kept(cache, b"a" * 100, 1), kept(cache, b"b" * 100, 2)
    assert cache.get(first) is None
    assert cache.get(second) == b"b" * 100
