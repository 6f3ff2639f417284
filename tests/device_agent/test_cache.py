"""Blobs on disk: complete, verified, bounded in size."""

import os
from pathlib import Path

from fairbed.device_agent.cache import BlobCache
from fairbed.wire.chunks import chunk_slice, encode_chunk, manifest_of
from fairbed.wire.messages import Manifest
from fairbed.wire.transfer import Download


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


def test_chunks_on_disk_are_restored_up_to_the_first_damaged_one(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    manifest = manifest_of(data, "shard", 1024)
    arrived = BlobCache(tmp_path, 1000).arrived(manifest)
    frames = [encode_chunk(manifest.id, i, data[chunk_slice(manifest, i)]) for i in (3, 0, 9)]
    arrived.append(frames[:2])
    arrived.append(frames[2:])
    stored = arrived.path.read_bytes()
    first = 4 + len(frames[0])
    edges = {0, first, 2 * first, len(stored)}
    for size in sorted(edges | {e - 1 for e in edges if e} | {1, 4, 30, first + 4, first + 30}):
        arrived.path.write_bytes(stored[:size])
        download = Download(manifest)
        expected = [i for i, end in ((3, first), (0, 2 * first), (9, len(stored))) if size >= end]
        assert arrived.restore(download) == len(expected)
        assert [i for i, has in enumerate(download.has_arrived) if has] == sorted(expected)
        arrived.append(frames[2:])
        assert arrived.restore(later := Download(manifest)) == len(expected) + 1
        assert later.has_arrived[9], "behind damage that was cut off"
    arrived.remove()
    arrived.remove()
    assert arrived.restore(Download(manifest)) == 0


def test_chunks_of_another_blob_or_size_are_not_restored(tmp_path: Path) -> None:
    data = bytes(5000)
    manifest = manifest_of(data, "shard", 1024)
    other = manifest_of(data, "shard", 2048)
    arrived = BlobCache(tmp_path, 1000).arrived(manifest)
    arrived.append([encode_chunk(other.id, 0, data[chunk_slice(other, 0)])])
    assert arrived.restore(Download(manifest)) == 0
    arrived.remove()
    arrived.append([encode_chunk(b"?" * 16, 0, data[:1024])])
    assert arrived.restore(Download(manifest)) == 0
