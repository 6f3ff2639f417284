import lzma
import os
from pathlib import Path

import numpy as np
import pytest

from fairbed.testbed.experiment.data import DataConfig, data_config
from fairbed.testbed.experiment.datasets import DatasetError, load
from fairbed.testbed.experiment.datasets.catalogue import describe_all, verify
from fairbed.testbed.experiment.datasets.cifar import PIXELS

RECORD_BYTES = 1 + PIXELS


def records(n: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 256, (n, RECORD_BYTES), dtype=np.uint8)
    values[:, 0] = rng.integers(0, 10, n)
    return values.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar10"
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(records(30, 1))
    (folder / "test_subset.bin.xz").write_bytes(lzma.compress(records(12, 2)))
    return folder


def test_pools_all_files_as_pixels(folder: Path) -> None:
    data = load(DataConfig(dataset="cifar10"), 0, {"FAIRBED_DATA": str(folder.parent)})
    assert (data.x.shape, data.x.dtype.name, data.x.flags.c_contiguous) == (
        (42, 3, 32, 32),
        "uint8",
        True,
    )
    assert (data.y.shape, data.y.dtype.name, data.classes) == ((42,), "int64", 10)
    second = records(12, 2)[RECORD_BYTES : 2 * RECORD_BYTES]
    assert data.y[31] == second[0]
    assert data.x[31].tobytes() == second[1:]


def test_is_listed_and_verified(folder: Path) -> None:
    environment = {"FAIRBED_DATA": str(folder.parent)}
    listed = {status.name: status for status in describe_all(environment)}["cifar10"]
    assert (listed.is_available, listed.n) == (True, None)
    found = verify(data_config("cifar10"), environment)
    assert (found.is_available, found.n, found.origin) == (True, 42, "unverified")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_1.bin", b"", "must hold records of 3073 bytes, got 0"),
        ("data_batch_1.bin", records(2, 0)[:-1], "must hold records of 3073 bytes, got 6,145"),
        ("data_batch_1.bin", b"\x0a" + bytes(3072), "labels must be 0 .. 9, got 10"),
        ("test_subset.bin.xz", records(1, 0), "must be an intact xz file"),
        ("test_subset.bin.xz", lzma.compress(records(9, 0))[:-400], "must be an intact xz file"),
    ],
)
def test_refuses_a_wrong_file_by_name(
    folder: Path, name: str, content: bytes, message: str
) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(DatasetError) as raised:
        load(DataConfig(dataset="cifar10", folder=str(folder)), 0, {})
    assert str(raised.value).startswith(f"{folder / name}: {message}")
    assert "\n" not in str(raised.value)


def test_missing_files_are_one_line_with_instructions(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(
        DatasetError, match=r"must hold files \*.bin or \*.bin.xz, got none; run fairbed data"
    ):
        load(DataConfig(dataset="cifar10", folder=str(folder)), 0, {})
    with pytest.raises(DatasetError, match=r"cifar10: FAIRBED_DATA or data.folder must name"):
        load(DataConfig(dataset="cifar10"), 0, {})


@pytest.mark.full
def test_the_real_files_are_balanced_photographs() -> None:
    root = os.environ.get("FAIRBED_DATA")
    if root is None or not (Path(root) / "cifar10").is_dir():
        pytest.skip("needs the real cifar10: set FAIRBED_DATA")
    data = load(DataConfig(dataset="cifar10"), 0, os.environ)
    assert set(np.bincount(data.y).tolist()) == {data.n // 10}
    # the published means of red, green and blue; a part of the set is near them
    np.testing.assert_allclose(
        data.x.mean(axis=(0, 2, 3)) / 255.0, [0.4914, 0.4822, 0.4465], atol=0.01
    )
