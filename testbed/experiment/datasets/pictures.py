"""Load pictures from a folder that has one folder of PNG or JPEG files per class."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.own import check_memory, own_dataset
from fairbed.testbed.install import install_command
from fairbed.wire.labels import plain_labels

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg")
"""Suffixes of pictures, in lower case; other files are left out."""

MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB"}
"""Pillow's modes of pictures with 8 bits per channel, and the mode that they are read in."""

_LAYOUT = "a folder must hold one folder per class, with .png or .jpg files"


def load_pictures(folder: Path) -> Dataset:
    """Return the pictures, x uint8 of shape (n, channels, height, width).

    Classes are numbered in the order of the names of their folders; names that
    are all numbers must be 0, 1, ..., so that folder 10 follows 9. Grey pictures have one channel,
    others three. All pictures must have equal size: no picture is scaled or cut.

    Raises:
        DatasetError: pillow is not installed, the folder has another layout, or a picture cannot be
            read.
    """
    try:
        import PIL  # noqa: F401
    except ImportError as exc:
        raise DatasetError(
            str(folder),
            "pillow must be installed to read pictures, got none",
            f"run: {install_command('fairbed[testbed]')}",
        ) from exc
    classes = _files(folder)
    files = [(path, label) for label, paths in classes.items() for path in paths]
    x = _read_all(folder, [path for path, _ in files])
    y = np.array([label for _, label in files])
    dataset = own_dataset(
        str(folder), {"x": x, "y": y}, name=folder.name, fix="correct the pictures in the folder"
    )
    _check_classes(folder, list(classes), dataset)
    return dataset


def _check_classes(folder: Path, names: list[str], dataset: Dataset) -> None:
    """Refuse folders that are no classes, or of which two are one class."""
    if dataset.is_regression:
        name = next(name for name in names if not name.isdigit())
        raise DatasetError(
            str(folder),
            f"folders of classes must be names or whole numbers, got {name!r}",
            f"rename it, such as 'class {name}'",
        )
    by_label: dict[object, str] = {}
    for name in names:
        label = plain_labels(np.array([name])).item()
        other = by_label.setdefault(label, name)
        if other != name:
            raise DatasetError(
                str(folder),
                f"folders must name each class once, got {other!r} and {name!r}",
                "put their pictures into one folder",
            )


def _files(folder: Path) -> dict[str, list[Path]]:
    """Return the pictures of each class; both are sorted by name."""
    try:
        entries = sorted(folder.iterdir())
    except FileNotFoundError as exc:
        raise DatasetError(str(folder), "folder must exist, got none", "check data.source") from exc
    except NotADirectoryError as exc:
        raise DatasetError(
            str(folder),
            f"must be a folder of pictures, got a file ending in {folder.suffix or 'nothing'}",
            "convert it to .npz, .csv or .parquet, or write a function that reads it",
        ) from exc
    except OSError as exc:
        raise DatasetError(
            str(folder), f"must be readable, got: {exc.strerror or exc}", "check its permissions"
        ) from exc
    named = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    if len(named) < 2:
        raise DatasetError(str(folder), f"{_LAYOUT}, got {len(named)} folders", "check data.source")
    classes: dict[str, list[Path]] = {}
    for entry in named:
        inner = sorted(path for path in entry.iterdir() if not path.name.startswith("."))
        found = [path for path in inner if path.suffix.lower() in SUFFIXES and path.is_file()]
        for deeper in inner:
            if deeper.is_dir() and any(p.suffix.lower() in SUFFIXES for p in deeper.rglob("*")):
                raise DatasetError(
                    str(deeper),
                    f"{_LAYOUT}, got a folder with pictures in a folder of a class",
                    "move the pictures up, or take the folder away",
                )
        if not found:
            raise DatasetError(
                str(entry),
                f"{_LAYOUT}, got no picture in this folder",
                "add pictures or remove the folder; name the folder whose folders are the classes",
            )
        classes[entry.name] = found
    return classes


def _read_all(folder: Path, paths: list[Path]) -> NDArray[np.uint8]:
    """Return all pictures as one array; the first one sets size and channels."""
    first = _opened(paths[0])
    shape = _shape(paths[0], first)
    first.close()
    check_memory(str(folder), len(paths) * shape[0] * shape[1] * shape[2])
    x = np.empty((len(paths), *shape), np.uint8)
    for row, path in enumerate(paths):
        picture = _opened(path)
        with picture:
            found = _shape(path, picture)
            if found != shape:
                raise DatasetError(
                    str(path),
                    f"must have the shape {_text(shape)} of {paths[0].name}, the first picture, "
                    f"got {_text(found)}",
                    "bring all pictures to one size and colour mode",
                )
            pixels = _pixels(path, picture)
        x[row] = pixels.reshape(*shape[1:], shape[0]).transpose(2, 0, 1)
    return x


def _opened(path: Path) -> "Image":
    """Return a picture whose header was read."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(path)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as exc:
        reason = "no picture" if isinstance(exc, UnidentifiedImageError) else _line(exc)
        raise DatasetError(
            str(path), f"must be a readable picture, got {reason}", "replace or remove it"
        ) from exc


def _shape(path: Path, picture: "Image") -> tuple[int, int, int]:
    """Return (channels, height, width) of a picture by its header."""
    if picture.mode not in MODES:
        raise DatasetError(
            str(path),
            f"must be grey or RGB with 8 bits per channel, got mode {picture.mode}",
            "convert it",
        )
    return 1 if MODES[picture.mode] == "L" else 3, picture.height, picture.width


def _pixels(path: Path, picture: "Image") -> NDArray[np.uint8]:
    try:
        return np.asarray(picture.convert(MODES[picture.mode]), np.uint8)
    except (OSError, ValueError, SyntaxError) as exc:  # a truncated or damaged file
        raise DatasetError(
            str(path), f"must be a readable picture, got {_line(exc)}", "replace or remove it"
        ) from exc


def _text(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))


def _line(exc: Exception) -> str:
    return " ".join(str(exc).split())[:200] or type(exc).__name__
