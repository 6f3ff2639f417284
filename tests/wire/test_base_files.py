"""The frozen part of a model as a file: by hash, read-only, bounded."""

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fairbed.wire.artifact import Base
from fairbed.wire.base_files import BaseFiles, BaseMissing, base_of
from fairbed.wire.tensors import Layout, Tensor

LAYOUT = Layout(
    tensors=(Tensor(name="a", shape=(2, 3), offset=0), Tensor(name="b", shape=(4,), offset=6))
)
VALUES = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([1.5, -2.0, 0.0, 3.0], dtype=np.float32),
}


def made() -> tuple[Base, bytes]:
    base, parts = base_of(LAYOUT, VALUES)
    return base, b"".join(parts)


def test_a_base_is_read_as_it_was_put_and_cannot_be_written(tmp_path: Path) -> None:
    files, (base, blob) = BaseFiles(tmp_path / "new"), made()
    assert base.sha256 == hashlib.sha256(blob).digest()
    assert files.path(base.sha256) is None
    files.put(base.sha256, [blob])
    found = files.tensors(base)
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in VALUES.items()
    }
    with pytest.raises(ValueError, match="read-only"):
        found["a"][0, 0] = 7.0
    assert bytes(files.blob(base)) == blob
    (file,) = (tmp_path / "new").iterdir()
    before = file.stat().st_ino
    files.put(base.sha256, [b"other bytes that are never written"])
    assert file.stat().st_ino == before, "it is there already"


def test_a_changed_file_is_removed(tmp_path: Path) -> None:
    files, (base, blob) = BaseFiles(tmp_path), made()
    files.put(base.sha256, [blob])
    (file,) = tmp_path.iterdir()
    file.write_bytes(blob[:-1] + b"\xff")
    os.utime(file, ns=(1, 1))
    with pytest.raises(BaseMissing, match=r"must be in .*, got no file with this hash"):
        files.tensors(base)
    assert not list(tmp_path.iterdir())


def test_a_file_put_by_hand_is_used_if_it_is_the_right_one(tmp_path: Path) -> None:
    base, blob = made()
    given = tmp_path / "given.bin"
    given.write_bytes(b"another base")
    files = BaseFiles(tmp_path / "cache", given=given)
    assert files.path(base.sha256) is None
    given.write_bytes(blob)
    assert files.path(base.sha256) == given
    assert files.tensors(base)["b"].tolist() == [1.5, -2.0, 0.0, 3.0]


def test_the_oldest_bases_are_removed_above_the_limit(tmp_path: Path) -> None:
    files = BaseFiles(tmp_path, max_bytes=100)
    blobs = [bytes([i]) * 40 for i in range(3)]
    hashes = [hashlib.sha256(blob).digest() for blob in blobs]
    for at, (digest, blob) in enumerate(zip(hashes, blobs, strict=True)):
        files.put(digest, [blob])
        os.utime(tmp_path / f"base-{digest.hex()}", ns=(at + 1, at + 1))
        if at == 1:
            assert files.path(hashes[0]) is not None  # opened: the second one is now the oldest
            os.utime(tmp_path / f"base-{hashes[0].hex()}", ns=(9, 9))
    kept = {file.name for file in tmp_path.iterdir()}
    assert kept == {f"base-{hashes[i].hex()}" for i in (0, 2)}


def test_equal_bases_of_emulated_devices_are_links_to_one_file(tmp_path: Path) -> None:
    """Each device puts its own, in whatever order they arrive; one that has none has none."""
    base, blob = made()
    one, two, three = (BaseFiles(tmp_path / name, links=tmp_path / ".links") for name in "abc")
    one.put(base.sha256, [blob])
    assert two.path(base.sha256) is None
    two.put(base.sha256, [blob])
    found = {each.path(base.sha256) for each in (one, two)}
    assert len({path.stat().st_ino for path in found if path is not None}) == 1 < len(found)
    assert three.path(base.sha256) is None

    (shared,) = (tmp_path / ".links").iterdir()
    shared.unlink()
    shared.write_bytes(b"damaged")
    three.put(base.sha256, [blob])
    assert bytes(three.blob(base)) == blob
    assert {path.name for path in tmp_path.rglob("*base-*")} == {shared.name}


def test_two_devices_that_put_a_base_at_once_keep_one_file(
    tmp_path: Path,
) -> None:
    base, blob = made()
    one, two = (BaseFiles(tmp_path / name, links=tmp_path / ".links") for name in "ab")

    def arriving() -> Iterator[bytes]:
        one.put(base.sha256, [blob])  # while the second one writes
        yield blob

    two.put(base.sha256, arriving())
    found = [each.path(base.sha256) for each in (one, two)]
    assert len({path.stat().st_ino for path in found if path is not None}) == 1
    assert {path.name for path in tmp_path.rglob("*base-*")} == {f"base-{base.sha256.hex()}"}


def test_without_links_each_device_keeps_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    base, blob = made()
    for name in "ab":
        files = BaseFiles(tmp_path / name, links=tmp_path / ".links")
        files.put(base.sha256, [blob])
        assert bytes(files.blob(base)) == blob
