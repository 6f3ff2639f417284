"""Training data of a device, from its own file or from the cache."""

from pathlib import Path

import numpy as np
import pytest

from fairbed.device_agent.errors import DataError, NotPrepared
from fairbed.device_agent.examples import BlobCache, CachedShard, OwnData
from fairbed.wire.chunks import manifest_of
from fairbed.wire.errors import DecodeError
from fairbed.wire.shard import encode_shard, make_shard


class Storage:
    """Counts the bytes read from the disk."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def step(self, n_examples: int) -> None:
        pass

    def read(self, n_bytes: int) -> None:
        self.read_bytes += n_bytes


def own(folder: Path, **arrays: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> OwnData:
    path = folder / "own.npz"
    np.savez(path, allow_pickle=True, **arrays)
    return OwnData(path)


@pytest.mark.parametrize(
    ("x", "dtype", "first"),
    [
        (np.full((2, 3), 0.5), np.float32, 0.5),
        (np.full((2, 3), 255, np.uint8), np.float32, 1.0),
        (np.full((2, 3), 7, np.int32), np.int64, 7),
    ],
    ids=["features", "pixels", "tokens"],
)
def test_own_data_is_converted_for_the_engine(
    tmp_path: Path,
    x: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    dtype: type[np.generic],
    first: float,
) -> None:
    data, storage = own(tmp_path, x=x, y=np.array([0, 1], np.uint8)), Storage()
    (loaded_x, loaded_y), _ = data.load(storage)
    assert loaded_x.dtype == dtype
    assert loaded_x[0, 0] == first
    assert loaded_y.dtype == np.int64
    assert data.count() == 2
    assert storage.read_bytes == data.path.stat().st_size


def test_own_data_is_never_unpickled(tmp_path: Path) -> None:
    data = own(tmp_path, x=np.array([[Path()]], object), y=np.zeros(1, int))
    with pytest.raises(DataError, match="allow_pickle=False"):
        data.count()


def test_a_cached_shard_counts_the_bytes_read(tmp_path: Path) -> None:
    cache, storage = BlobCache(tmp_path, 1 << 20), Storage()
    blob = encode_shard(make_shard(np.ones((3, 2), np.float32), np.arange(3)))
    manifest = manifest_of(blob, "shard")
    cache.put(manifest, blob)
    (x, y), _ = CachedShard(cache, manifest).load(storage)
    assert (x.shape, y.shape, storage.read_bytes) == ((3, 2), (3,), len(blob))


def test_a_cached_shard_may_be_missing_or_malformed(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 1 << 20)
    manifest = manifest_of(b"not a shard", "shard")
    with pytest.raises(NotPrepared, match="missing or corrupt on disk"):
        CachedShard(cache, manifest).load(Storage())
    cache.put(manifest, b"not a shard")
    with pytest.raises(DecodeError, match="shard"):
        CachedShard(cache, manifest).load(Storage())
