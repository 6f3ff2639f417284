"""Training data of a device, from its own file or from the cache."""

import struct
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.errors import DataError, NotPrepared
from fairbed.device_agent.examples import CachedShard, OwnData
from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.datasets.loading import load
from fairbed.wire.chunks import manifest_of
from fairbed.wire.errors import DecodeError
from fairbed.wire.labels import Classes
from fairbed.wire.shard import encode_shard, make_shard


class Storage:
    """Counts the bytes read from the disk."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def step(self, n_examples: int, length: int | None = None) -> None:
        pass

    def read(self, n_bytes: int) -> None:
        self.read_bytes += n_bytes


def own(folder: Path, **arrays: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> OwnData:
    path = folder / "own.npz"
    np.savez(path, allow_pickle=True, **arrays)
    return OwnData(path, Classes("classification", 2))


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


def _npz(path: Path, header: str, body: bytes = b"", *, flip: int = 0) -> OwnData:
    """Write x with this header and body, and y; `flip` damages a byte of the packed body."""
    text = header.ljust(117) + "\n"
    raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + body
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", raw)
        with archive.open("y.npy", "w") as file:
            np.save(file, np.zeros(2, np.int64))
    if flip:
        data = bytearray(path.read_bytes())
        data[flip] ^= 0xFF
        path.write_bytes(data)
    return OwnData(path)


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }"


@pytest.mark.parametrize(
    ("header", "flip"),
    [
        (HEADER % "(1152921504606846976, 1)", 0),
        (HEADER % "(4611686018427387904, 4)", 0),
        (HEADER % "(99999999999999999999999, 2)", 0),
        (HEADER % "(-1, 2)", 0),
        (HEADER % "(2, 2)", 80),
        (HEADER % "'two'", 0),
        ("{'descr': 7, 'fortran_order': False, 'shape': (2, 2), }", 0),
        ("{", 0),
        ("(" * 100, 0),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, header: str, flip: int) -> None:
    data = _npz(tmp_path / "own.npz", header, bytes(16), flip=flip)
    with pytest.raises(DataError, match=r"own\.npz: must be a readable \.npz file, got: .") as got:
        data.count()
    assert len(str(got.value).splitlines()) == 1
    with pytest.raises(DatasetError) as wrong:
        load(DataConfig(source=str(data.path)), 0, {})
    assert len(str(wrong.value).splitlines()) == 1


def test_an_entry_that_is_no_array_is_refused(tmp_path: Path) -> None:
    """Numpy returns the bytes of such an entry; found by the fuzzer."""
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        archive.writestr("x.npy", b"no array")
        archive.writestr("y.npy", b"no array")
    with pytest.raises(DataError, match="x and y must be arrays, got another entry"):
        OwnData(tmp_path / "own.npz").count()


def test_a_file_that_would_unpack_to_more_than_the_memory_is_refused_first(tmp_path: Path) -> None:
    data = _npz(tmp_path / "own.npz", HEADER % "(2, 2)", bytes(16))
    raw = bytearray(data.path.read_bytes())
    at = raw.rindex(b"PK\x01\x02", 0, raw.rindex(b"PK\x01\x02"))
    raw[at + 24 : at + 28] = struct.pack("<I", 0xFFFFFFF0)
    data.path.write_bytes(raw)
    with (
        mock.patch("psutil.virtual_memory", return_value=mock.Mock(available=1 << 30)),
        pytest.raises(DataError, match=r"free memory of this device, 1,024 MiB, got 4,096 MiB"),
    ):
        data.count()


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
