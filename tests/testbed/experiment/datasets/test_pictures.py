from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fairbed.testbed.experiment.data import data_config
from fairbed.testbed.experiment.datasets import DatasetError, load
from fairbed.testbed.experiment.datasets.folders import load_pictures

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (3, 5, 4), np.uint8)
RGB = RNG.integers(0, 256, (3, 5, 4, 3), np.uint8)


def save(folder: Path, label: str, name: str, pixels: np.ndarray) -> Path:
    (folder / label).mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(folder / label / name)
    return folder / label / name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of colour pictures, 5 high and 4 wide."""
    root = tmp_path / "trees"
    save(root, "oak", "a.png", RGB[0])
    save(root, "oak", "b.PNG", RGB[1])
    save(root, "ash", "a.png", RGB[2])
    return root


def test_each_folder_is_a_class_in_the_order_of_the_names(folder: Path) -> None:
    (folder / "notes.txt").write_text("no picture")
    (folder / "oak" / "notes.txt").write_text("no picture")
    (folder / ".hidden").mkdir()
    data = load(data_config(str(folder)), 0, {})
    assert (data.x.dtype.name, data.x_shape, data.classes) == ("uint8", (3, 5, 4), 2)
    assert (data.y.tolist(), data.name) == ([0, 1, 1], "trees")
    np.testing.assert_array_equal(data.x, RGB[[2, 0, 1]].transpose(0, 3, 1, 2))


def test_grey_pictures_have_one_channel(tmp_path: Path) -> None:
    save(tmp_path, "a", "a.png", GREY[0])
    save(tmp_path, "b", "a.png", GREY[1] > 127)
    data = load_pictures(tmp_path)
    np.testing.assert_array_equal(data.x, [[GREY[0]], [(GREY[1] > 127) * 255]])


def test_jpeg_and_palette_pictures_are_read(folder: Path) -> None:
    save(folder, "elm", "a.jpg", np.full((5, 4, 3), 100, np.uint8))
    Image.fromarray(np.full((5, 4, 3), 204, np.uint8)).convert("P").save(folder / "elm" / "b.png")
    data = load_pictures(folder)
    assert np.unique(data.x[1:3]).tolist() == [100, 204]


@pytest.mark.parametrize(
    ("name", "pixels", "message"),
    [
        ("b.png", RGB[0][:4], "must have the shape 3x5x4 of a.png, the first picture, got 3x4x4"),
        ("b.png", GREY[0], "3x5x4 of a.png, the first picture, got 1x5x4; bring all pictures"),
        ("b.png", np.zeros((5, 4, 4), np.uint8), "8 bits per channel, got mode RGBA; convert it"),
        ("b.png", np.zeros((5, 4), np.uint16), "8 bits per channel, got mode I;16; convert it"),
    ],
)
def test_refuses_a_picture_unlike_the_first_in_one_line(
    folder: Path, name: str, pixels: np.ndarray, message: str
) -> None:
    path = save(folder, "elm", name, pixels)
    with pytest.raises(DatasetError) as raised:
        load_pictures(folder)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be a readable picture, got no picture; replace or remove it"),
        (b"\x89PNG\r\n\x1a\n", "must be a readable picture, got no picture"),
        (None, "must be a readable picture, got "),
    ],
)
def test_refuses_a_damaged_picture_in_one_line(
    folder: Path, content: bytes | None, message: str
) -> None:
    path = folder / "oak" / "b.PNG"
    path.write_bytes(path.read_bytes()[:70] if content is None else content)
    with pytest.raises(DatasetError) as raised:
        load_pictures(folder)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_refuses_another_layout_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"none: folder must exist, got none; check the path"):
        load_pictures(tmp_path / "none")
    with pytest.raises(DatasetError, match=r"one folder per class, .* got 0 folders"):
        load_pictures(tmp_path)
    (tmp_path / "a.dat").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"a folder of pictures, got a file ending in \.dat"):
        load_pictures(tmp_path / "a.dat")
    save(tmp_path / "train", "oak", "a.png", RGB[0])
    (tmp_path / "test").mkdir()
    with pytest.raises(DatasetError, match=r"test: .* got no picture in this folder; add pictures"):
        load_pictures(tmp_path)


def test_pictures_too_large_for_this_machine_are_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbed.testbed.experiment.datasets.own.free_bytes", lambda: 3 * 60 * 2)
    assert load_pictures(folder).n == 3
    save(folder, "oak", "c.png", RGB[0])
    with pytest.raises(DatasetError, match="trees: the examples must fit into half of the free"):
        load_pictures(folder)
