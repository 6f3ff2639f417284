import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from fairbed.testbed.experiment.data import DataConfig, Dirichlet
from fairbed.testbed.experiment.datasets import DatasetError, load
from fairbed.testbed.experiment.datasets.loading import subsample
from fairbed.testbed.experiment.datasets.mnist import count, load_mnist
from fairbed.testbed.experiment.shards import FleetData
from tests.testbed.experiment.datasets.idx_files import idx_bytes, write, write_folder

IMAGES = "train-images-idx3-ubyte.gz"
LABELS = "train-labels-idx1-ubyte"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "mnist")


def test_pools_both_parts_as_pixels(folder: Path) -> None:
    data = load_mnist("mnist", folder)
    assert (data.x.shape, data.x.dtype.name) == ((80, 1, 28, 28), "uint8")
    assert (data.y.shape, data.y.dtype.name, data.classes) == ((80,), "int64", 10)
    written = gzip.decompress((folder / IMAGES).read_bytes())
    assert data.x[:60].tobytes() == written[16:]
    assert data.y[:60].tolist() == list((folder / LABELS).read_bytes()[8:])


def test_reads_files_compressed_or_not(folder: Path) -> None:
    before = load_mnist("mnist", folder)
    for path in list(folder.iterdir()):
        if path.suffix == ".gz":
            write(path.with_suffix(""), gzip.decompress(path.read_bytes()))
        else:
            write(path.with_name(path.name + ".gz"), path.read_bytes())
        path.unlink()
    after = load_mnist("mnist", folder)
    np.testing.assert_array_equal(before.x, after.x)
    np.testing.assert_array_equal(before.y, after.y)


def test_counts_from_the_headers_alone(folder: Path) -> None:
    assert count("mnist", folder) == (60, 20)
    content = gzip.decompress((folder / IMAGES).read_bytes())
    write(folder / IMAGES, content[:16])
    assert count("mnist", folder) == (60, 20)


def test_files_with_other_checksums_are_used_and_marked_unverified(folder: Path) -> None:
    assert load_mnist("mnist", folder).origin == "unverified"


def ones(*shape: int) -> bytes:
    return idx_bytes(np.ones(shape, np.uint8))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (IMAGES, b"\x89PNG\r\n\x1a\n" + bytes(20), "magic number must be 00000803, got 89504e47"),
        (IMAGES, b"", "magic number must be 00000803, got nothing"),
        (IMAGES, ones(60), "magic number must be 00000803, got 00000801"),
        (IMAGES, ones(60, 28, 28)[:10], "header must be complete, got a truncated one"),
        (IMAGES, ones(60, 28, 28)[:-1], "must hold 47,040 values, got 47,039 (cut short)"),
        (IMAGES, ones(60, 28, 28) + b"x", "must end after 47,040 values, got more"),
        (IMAGES, ones(60, 32, 32), "images must be 28x28, got 32x32"),
        (IMAGES, ones(59, 28, 28), f"must hold as many images as {LABELS} labels, got 59 and 60"),
        (IMAGES, ones(0, 28, 28), "header must announce 1 .. 2147483648 values, got (0, 28, 28)"),
        (
            IMAGES,
            bytes((0, 0, 8, 3)) + b"\xff" * 12,
            "header must announce 1 .. 2147483648 values, got (4294967295, 4294967295, 4294967295)",
        ),
        (LABELS, idx_bytes(np.full(60, 10, np.uint8)), "labels must be 0 .. 9, got 10"),
    ],
)
def test_refuses_a_wrong_file_by_name(
    folder: Path, file: str, content: bytes, message: str
) -> None:
    write(folder / file, content)
    with pytest.raises(DatasetError) as raised:
        load_mnist("mnist", folder)
    assert str(raised.value).startswith(str(folder / file) + ": ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("keep", [5, 100, -9])
def test_a_download_cut_short_is_one_line(folder: Path, keep: int) -> None:
    path = folder / IMAGES
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        DatasetError, match=r"gzip stream must be complete, got a truncated one; download"
    ):
        load_mnist("mnist", folder)


def test_a_page_saved_under_the_name_is_one_line(folder: Path) -> None:
    (folder / IMAGES).write_bytes(b"<html>404 not found</html>")
    with pytest.raises(DatasetError, match="must be an intact gzip file, got: Not a gzipped file"):
        load_mnist("mnist", folder)


def test_damaged_compression_is_one_line(folder: Path) -> None:
    path = folder / IMAGES
    content = bytearray(path.read_bytes())
    content[1000:1040] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"must be an intact gzip file|cut short"):
        load_mnist("mnist", folder)


def test_a_missing_folder_is_one_line_with_instructions(tmp_path: Path) -> None:
    config = DataConfig(dataset="fashion-mnist")
    with pytest.raises(DatasetError) as raised:
        load(config, 0, {"FAIRBED_DATA": str(tmp_path / "nowhere")})
    assert str(raised.value) == (
        f"fashion-mnist: folder must exist, got {tmp_path}/nowhere/fashion-mnist; run "
        "fairbed data fetch fashion-mnist, or put "
        "{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz of the Fashion-MNIST project of Zalando "
        "Research into a folder fashion-mnist and set FAIRBED_DATA to its parent"
    )


def test_an_unset_variable_is_one_line() -> None:
    with pytest.raises(DatasetError, match=r"mnist: FAIRBED_DATA or data.folder must name"):
        load(DataConfig(dataset="mnist"), 0, {})


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / IMAGES).unlink()
    with pytest.raises(DatasetError, match=r"must hold train-images-idx3-ubyte.gz or train-images"):
        load_mnist("mnist", folder)


def test_the_folder_setting_goes_before_the_variable(folder: Path) -> None:
    config = DataConfig(dataset="mnist", folder=str(folder))
    assert load(config, 0, {"FAIRBED_DATA": "/nowhere"}).n == 80


def test_the_variable_holds_one_folder_per_data_set(folder: Path) -> None:
    assert load(DataConfig(dataset="mnist"), 0, {"FAIRBED_DATA": str(folder.parent)}).n == 80


def test_max_examples_draws_before_dividing(folder: Path) -> None:
    config = DataConfig(dataset="mnist", folder=str(folder), max_examples=30)
    first, again, other = (load(config, seed, {}) for seed in (1, 1, 2))
    assert first.n == 30
    np.testing.assert_array_equal(first.x, again.x)
    assert not np.array_equal(first.x, other.x)
    whole = load(DataConfig(dataset="mnist", folder=str(folder)), 7, {})
    np.testing.assert_array_equal(subsample(whole, 30, 1).x, first.x)
    assert subsample(whole, whole.n, 1) is subsample(whole, None, 1) is whole


@pytest.mark.parametrize("name", ["fashion-mnist", "mnist"])
def test_the_real_files_are_the_published_ones(name: str) -> None:
    root = os.environ.get("FAIRBED_DATA")
    if root is None or not (Path(root) / name).is_dir():
        pytest.skip(f"needs the real {name}: set FAIRBED_DATA")
    config = DataConfig(dataset=name, partition=Dirichlet(alpha=0.5))
    data = load(config, 0, os.environ)
    assert data.origin == "verified"
    assert np.bincount(data.y).shape == (10,)
    assert data.x.shape == (70_000, 1, 28, 28)
    fleet = FleetData(data, config, devices=20, seed=0)
    assert sum(map(len, fleet.train_rows + fleet.test_rows)) == 70_000
