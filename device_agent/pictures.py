"""Read pictures from a folder that has one folder of PNG or JPEG files per class."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.errors import DataError
from fairbed.wire.labels import label_key

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg")
"""Suffixes of pictures, in lower case; other files are left out."""

MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB"}
"""Pillow's modes of pictures with 8 bits per channel, and the mode that they are read in."""

_LAYOUT = "a folder must hold one folder per class, with .png or .jpg files"


class PictureError(DataError):
    """A folder of pictures cannot be read.

    Attributes:
        where: The folder or file.
        problem: The broken rule and the value found.
        what_to_do: The next step of the user.
    """

    def __init__(self, where: str, problem: str, what_to_do: str) -> None:
        super().__init__(f"{where}: {problem}; {what_to_do}")
        self.where = where
        self.problem = problem
        self.what_to_do = what_to_do


def read_pictures(
    folder: Path, check_size: Callable[[int], None], *, min_classes: int = 1
) -> tuple[NDArray[np.uint8], NDArray[np.str_]]:
    """Return pictures, shape (n, channels, height, width), and the names of their folders, (n,).

    Grey pictures have one channel, others three. All pictures must have equal size: no picture is
    scaled or cut.

    Args:
        folder: Has a folder for each class; hidden ones and other files are left out.
        check_size: Called with the bytes of all pictures before they are read.
        min_classes: Least number of folders; a device may have pictures of one class.

    Raises:
        PictureError: The folder has another layout, or a picture cannot be read.
        ImportError: pillow is not installed.
    """
    import PIL  # noqa: F401

    classes = _files(folder, min_classes)
    files = [(path, label) for label, paths in classes.items() for path in paths]
    x = _read_all([path for path, _ in files], check_size)
    return x, np.array([label for _, label in files])


def _files(folder: Path, min_classes: int) -> dict[str, list[Path]]:
    """Return the pictures of each class; both are sorted by name."""
    try:
        entries = sorted(folder.iterdir())
    except FileNotFoundError as exc:
        raise PictureError(str(folder), "folder must exist, got none", "check the path") from exc
    except NotADirectoryError as exc:
        raise PictureError(
            str(folder),
            f"must be a folder of pictures, got a file ending in {folder.suffix or 'nothing'}",
            "convert it to .npz, .csv or .parquet, or write a function that reads it",
        ) from exc
    except OSError as exc:
        raise PictureError(
            str(folder), f"must be readable, got: {exc.strerror or exc}", "check its permissions"
        ) from exc
    named = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    if len(named) < min_classes:
        raise PictureError(str(folder), f"{_LAYOUT}, got {len(named)} folders", "check the path")
    _check_names(folder, [entry.name for entry in named])
    classes: dict[str, list[Path]] = {}
    for entry in named:
        inner = sorted(path for path in entry.iterdir() if not path.name.startswith("."))
        found = [path for path in inner if path.suffix.lower() in SUFFIXES and path.is_file()]
        if not found:
            raise PictureError(
                str(entry),
                f"{_LAYOUT}, got no picture in this folder",
                "add pictures or remove the folder; name the folder whose folders are the classes",
            )
        for deeper in inner:
            if deeper.is_dir() and any(p.suffix.lower() in SUFFIXES for p in deeper.rglob("*")):
                raise PictureError(
                    str(deeper),
                    f"{_LAYOUT}, got a folder with pictures in a folder of a class",
                    "move the pictures up, or take the folder away",
                )
        classes[entry.name] = found
    return classes


def _check_names(folder: Path, names: list[str]) -> None:
    """Refuse two folders of one class."""
    by_label: dict[str | int, str] = {}
    for name in names:
        other = by_label.setdefault(label_key(name), name)
        if other != name:
            raise PictureError(
                str(folder),
                f"folders must name each class once, got {other!r} and {name!r}",
                "put their pictures into one folder",
            )


def _read_all(paths: list[Path], check_size: Callable[[int], None]) -> NDArray[np.uint8]:
    """Return all pictures as one array; the first one sets size and channels."""
    first = _opened(paths[0])
    shape = _shape(paths[0], first)
    first.close()
    check_size(len(paths) * shape[0] * shape[1] * shape[2])
    x = np.empty((len(paths), *shape), np.uint8)
    for row, path in enumerate(paths):
        picture = _opened(path)
        with picture:
            found = _shape(path, picture)
            if found != shape:
                raise PictureError(
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
        raise PictureError(
            str(path), f"must be a readable picture, got {reason}", "replace or remove it"
        ) from exc


def _shape(path: Path, picture: "Image") -> tuple[int, int, int]:
    """Return (channels, height, width) of a picture by its header."""
    if picture.mode not in MODES:
        raise PictureError(
            str(path),
            f"must be grey or RGB with 8 bits per channel, got mode {picture.mode}",
            "convert it",
        )
    return 1 if MODES[picture.mode] == "L" else 3, picture.height, picture.width


def _pixels(path: Path, picture: "Image") -> NDArray[np.uint8]:
    try:
        return np.asarray(picture.convert(MODES[picture.mode]), np.uint8)
    except (OSError, ValueError, SyntaxError) as exc:  # a truncated or damaged file
        raise PictureError(
            str(path), f"must be a readable picture, got {_line(exc)}", "replace or remove it"
        ) from exc


def _text(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))


def _line(exc: Exception) -> str:
    return " ".join(str(exc).split())[:200] or type(exc).__name__
