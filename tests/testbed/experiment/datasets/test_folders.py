"""Folders of pictures with masks, of audio, users in those of classes; what is left out."""

import struct
import wave
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fairbed.testbed.experiment.data import AudioConfig, DataConfig, MasksConfig
from fairbed.testbed.experiment.datasets import Dataset, DatasetError, load

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (2, 3, 4, 3), np.uint8)
MASK = np.array([[0, 1, 2, 255], [0, 0, 1, 1], [2, 2, 255, 0]], np.uint8)


def save(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, Image.Image):
        content.save(path)
    else:
        Image.fromarray(content).save(path)


def loaded(folder: Path, files: Mapping[str, Any], **keys: Any) -> Dataset:
    for name, content in files.items():
        if content is not None:
            save(folder / name, content)
    return load(DataConfig(source=str(folder), **keys), 0, {})


# --- pictures with masks --------------------------------------------------------------------------

MASKED = {
    "images/a.png": RGB[0],
    "images/b.jpg": RGB[1],
    "masks/a.png": MASK,
    "masks/b.png": MASK[::-1],
}


def test_a_mask_has_the_class_of_each_pixel(tmp_path: Path) -> None:
    data = loaded(tmp_path, MASKED)
    expected = np.where(MASK == 255, -1, MASK.astype(int))
    assert (data.kind, data.classes, data.x_shape) == ("classification", 3, (3, 3, 4))
    np.testing.assert_array_equal(data.y, [expected, expected[::-1]])
    np.testing.assert_array_equal(data.x[0], RGB[0].transpose(2, 0, 1))
    assert data.class_counts() == [("0", 8), ("1", 6), ("2", 6)]


def test_folders_in_both_folders_are_users(tmp_path: Path) -> None:
    files = {name.replace("/", f"/{name[-5]}/"): content for name, content in MASKED.items()}
    files |= {
        "images/b/more.png": MASKED["images/a.png"],
        "masks/b/more.png": MASKED["masks/a.png"],
    }
    data = loaded(tmp_path, files)
    assert data.device_ids is not None
    assert data.device_ids.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(data.y[0], data.y[2])


def test_the_value_without_a_label_is_a_key(tmp_path: Path) -> None:
    data = loaded(tmp_path, MASKED, masks=MasksConfig(no_label=-1))
    assert (data.labels, data.y.max()) == ((0, 1, 2, 255), 3)
    other = loaded(tmp_path, MASKED, masks=MasksConfig(no_label=0), classes=256)
    np.testing.assert_array_equal(other.y[0], np.where(MASK == 0, -1, MASK.astype(int)))


def test_the_index_of_a_palette_and_black_and_white_are_classes(tmp_path: Path) -> None:
    palette = Image.fromarray(MASK)
    palette = palette.convert("P")
    palette.putpalette([*range(255, 0, -1), *range(255, 0, -1), 7, 8, 9, *([0] * 255)][:768])
    bits = Image.fromarray(MASK == 1)
    data = loaded(tmp_path, MASKED | {"masks/a.png": palette, "masks/b.png": bits})
    np.testing.assert_array_equal(data.y[0], np.where(MASK == 255, -1, MASK.astype(int)))
    np.testing.assert_array_equal(data.y[1], MASK == 1)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"masks/b.png": None}, "b.jpg: a file in images must have one of the same name in masks"),
        ({"images/b.jpg": None}, "b.png: a file in masks must have one of the same name in images"),
        ({"masks/a.png": MASK[:2]}, "must have the size 3x4 of its picture a.png, got 2x4; bring"),
        ({"masks/a.png": RGB[0]}, "palette index, got mode RGB; save it as such a .png; a colour"),
        (
            {"masks/a.png": MASK.astype(np.uint16)},
            "a mask must have one channel of 8 bits, the cla",
        ),
        ({"masks/a.png": MASK * 0 + 255}, "must have a labelled pixel, got only 255, which is no"),
        (
            {"masks/a.png": b"\x89PNG"},
            "masks/a.png: must be a readable picture, got no picture; re",
        ),
        (
            {"images/b/c.png": RGB[1], "masks/b/c.png": MASK},
            "images and masks must have files, or a folder for each user, got both; move the",
        ),
        (
            {"images/b.png": RGB[1]},
            "b.png: must be the only one of its name, got b.jpg, too; remov",
        ),
        (
            {"images/b.jpg": RGB[1][:2]},
            "must have the shape 3x3x4 of a.png, the first picture, got",
        ),
        ({"masks/a.png": MASK * 0, "masks/b.png": MASK * 0}, "y must hold two or more classes, or"),
    ],
)
def test_refuses_masks_in_one_line(files: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as raised:
        loaded(tmp_path, MASKED | files)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


# --- audio ----------------------------------------------------------------------------------------


def wav(values: Any, *, width: int = 2, rate: int = 8000, channels: int = 1) -> bytes:
    """Return a WAV file of whole numbers, shape (n,) or (n, channels)."""
    file = BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(width)
        out.setframerate(rate)
        is_signed = width > 1
        flat = np.ravel(values).tolist()
        out.writeframes(b"".join(int(v).to_bytes(width, "little", signed=is_signed) for v in flat))
    return file.getvalue()


def with_format(content: bytes, tag: int) -> bytes:
    return content[:20] + struct.pack("<H", tag) + content[22:]


@pytest.mark.parametrize(
    ("width", "values"),
    [
        (1, [128, 192, 0, 255]),
        (2, [0, 1 << 14, -(1 << 15), (1 << 15) - 256]),
        (3, [0, 1 << 22, -(1 << 23), (1 << 23) - (1 << 16)]),
        (4, [0, 1 << 30, -(1 << 31), (1 << 31) - (1 << 24)]),
    ],
)
def test_samples_of_all_widths_are_between_minus_1_and_1(
    width: int, values: list[int], tmp_path: Path
) -> None:
    files = {"no/a.wav": wav(values, width=width), "yes/b.WAV": wav(values[:2], width=width)}
    data = loaded(tmp_path, files)
    assert (data.x.dtype.name, data.x.shape, data.labels) == ("float32", (2, 1, 4), ("no", "yes"))
    np.testing.assert_allclose(data.x[0, 0], [0, 0.5, -1, 1 - 2**-7], atol=1e-7)
    np.testing.assert_allclose(data.x[1, 0], [0, 0.5, 0, 0], atol=1e-7)
    assert data.notes == ("1 of 2 recordings are padded with zeros to 4 samples, 0.0005 s",)


def test_channels_are_mixed_and_long_recordings_cut(tmp_path: Path) -> None:
    stereo = wav([[0, 1 << 14], [1 << 14, 1 << 14], [5, 5]], channels=2)
    files = {"no/a.wav": stereo, "yes/b.wav": wav([0, 0])}
    data = loaded(tmp_path, files, audio=AudioConfig(samples=2))
    np.testing.assert_allclose(data.x[0, 0], [0.25, 0.5])
    assert data.notes == ("1 of 2 recordings are cut to 2 samples, 0.00025 s",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            wav([1, 2], rate=16000),
            "b.wav: must have the 8,000 samples per second of a.wav, the fir",
        ),
        (wav([1, 2])[:-1], "b.wav: must have 2 samples, as its header states, got 1; replace or"),
        (wav([]), "b.wav: must have samples of 8, 16, 24 or 32 bits and a rate, got 0 samples of"),
        (with_format(wav([1, 2]), 3), "a readable .wav file of whole numbers (PCM), got floats"),
        (
            with_format(wav([1, 2]), 7),
            "a readable .wav file of whole numbers (PCM), got mu-law; co",
        ),
        (b"RIFF", "b.wav: must be a readable .wav file of whole numbers (PCM), got an incomplete"),
        (b"no audio at all", "must be a readable .wav file of whole numbers (PCM), got file does"),
    ],
)
def test_refuses_audio_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as raised:
        loaded(tmp_path, {"no/a.wav": wav([1, 2]), "yes/b.wav": content})
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


# --- users in folders of classes ------------------------------------------------------------------

FILES: dict[str, list[Any]] = {
    ".png": [RGB[0], RGB[1], RGB[0]],
    ".wav": [wav([1, 2]), wav([3, 4]), wav([5, 6])],
    ".txt": [b"to be", b"or not", b"to see"],
}


def of_users(suffix: str, *names: str) -> dict[str, Any]:
    return {f"{name}{suffix}": content for name, content in zip(names, FILES[suffix], strict=False)}


@pytest.mark.parametrize("suffix", FILES)
def test_folders_in_those_of_classes_are_users(suffix: str, tmp_path: Path) -> None:
    data = loaded(tmp_path / "users", of_users(suffix, "no/ann/1", "yes/ann/1", "yes/bob/1"))
    assert data.device_ids is not None
    assert data.device_ids.tolist() == [0, 0, 1]
    assert (data.labels, data.y.tolist()) == (("no", "yes"), [0, 1, 1])
    flat = loaded(tmp_path / "flat", of_users(suffix, "no/1", "yes/1", "yes/2"))
    assert flat.device_ids is None
    np.testing.assert_array_equal(data.x, flat.x)


@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("no/ann/1", "yes/1", "yes/bob/2"),
            "yes: the folder of a class must have {kind}, or a folder for each user, got 1{suffix} "
            "and bob/2{suffix}; move the {kind} into the folders of their users, or all up",
        ),
        (
            ("no/ann/1", "yes/1"),
            "yes: all folders of classes must have a folder for each user, or none, got {kind} "
            "here and folders in no; move the {kind} into the folders of their users",
        ),
        (("no/ann/1", "yes/ann/1", "yes/ann/old/2"), "got a folder with {kind} in a folder of a u"),
        (
            ("train/no/1", "test/no/1", "test/yes/1"),
            ": test, train: must be classes, whose folders are users, got names of parts of a data "
            "set; name the folder whose folders are the classes, or rename them",
        ),
    ],
)
def test_refuses_folders_of_users_in_one_line(
    names: tuple[str, ...], message: str, suffix: str, tmp_path: Path
) -> None:
    kind = {".png": "pictures", ".wav": "audio", ".txt": "text"}[suffix]
    with pytest.raises(DatasetError) as raised:
        loaded(tmp_path, of_users(suffix, *names))
    assert message.format(kind=kind, suffix=suffix) in str(raised.value)
    assert "\n" not in str(raised.value)


# --- what is left out -----------------------------------------------------------------------------


def test_files_beside_those_of_users_are_left_out(tmp_path: Path) -> None:
    files = of_users(".wav", "no/ann/1", "yes/ann/1") | {"yes/ann/b.mp3": b"", "yes/c.pdf": b""}
    (note,) = loaded(tmp_path, files).notes
    assert note == "left out 2 files without the suffix .wav: yes/c.pdf, yes/ann/b.mp3"


def test_files_that_are_left_out_are_named(tmp_path: Path) -> None:
    files = {"oak/a.png": RGB[0], "ash/a.png": RGB[1], "ash/b.webp": b"", "c.png": RGB[0]}
    assert loaded(tmp_path, files).notes == (
        "left out 1 file beside the folders of the classes: c.png",
        "left out 1 file without the suffix .png or .jpg or .jpeg: ash/b.webp",
    )
