"""Read PNG and JPEG files: pictures of classes, or pictures with masks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.folders import (
    IMAGES,
    MASKS,
    SUFFIXES,
    FolderError,
    class_files,
    entries_of,
    left_out,
)
from fairbed.wire.preparation import NO_LABEL, MaskPreparation

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = TypeVar("Pixels", bound=NDArray[Any])

MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB"}
"""Pillow's modes of pictures with 8 bits per channel, and the mode that they are read in."""

NO_COLOURS = {"1": 1, "L": 1, "P": 1}
"""Modes of masks: the value of a pixel, or its place in the palette, is its class."""

_FIX = "replace or remove it"


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures with their labels."""

    x: NDArray[np.uint8]
    """Shape (n, channels, height, width)."""
    y: NDArray[np.str_] | NDArray[np.int64]
    """Name of the folder of each, shape (n,); of pictures with masks the value of each pixel, -1
    without a label, shape (n, height, width)."""
    notes: tuple[str, ...]
    """Lines about files that are left out."""
    users: NDArray[np.str_] | None = None
    """User of each, shape (n,): the folder in that of the class, or in `images` and `masks`; None:
    there are none."""


def read_pictures(
    folder: Path, check_size: Callable[[int], None], *, min_classes: int = 1
) -> Pictures:
    """Return the pictures of a folder that has a folder for each class.

    Grey pictures have one channel, others three. All pictures must have equal size: no picture is
    scaled or cut.

    Args:
        folder: Has a folder for each class, with pictures or a folder for each user; hidden ones
            and other files are left out.
        check_size: Called with the bytes of all pictures before they are read.
        min_classes: Least number of folders; a device may have pictures of one class.

    Raises:
        FolderError: The folder has another layout, or a picture cannot be read.
        ImportError: pillow is not installed.
    """
    import PIL  # noqa: F401

    found = class_files(folder, "pictures", min_classes)
    x = read_pixels([path for path, _ in found.pairs], check_size)
    users = None if found.users is None else np.array(found.users)
    return Pictures(x, np.array([label for _, label in found.pairs]), found.notes, users)


def read_masked(
    folder: Path, preparation: MaskPreparation, check_size: Callable[[int], None]
) -> Pictures:
    """Return the pictures of the folder `images`, and the masks of equal name in `masks`.

    Both may have a folder for each user instead, with the files of the user.

    A mask has the size of its picture, and one channel: the value of a pixel, or its place in a
    palette, is its class. Nothing is scaled.

    Args:
        folder: Has both folders.
        preparation: Value of a pixel without a label.
        check_size: Called with the bytes of pictures and labels before they are read.

    Raises:
        FolderError: A picture or mask lacks the other, has another size, or cannot be read, or a
            mask has no label.
        ImportError: pillow is not installed.
    """
    import PIL  # noqa: F401

    images, notes = _by_stem(folder, IMAGES, SUFFIXES["pictures"])
    masks, more = _by_stem(folder, MASKS, (".png",))
    with_users = {"/" in stem for stem in (*images, *masks)}
    if len(with_users) > 1:
        raise FolderError(
            folder,
            f"{IMAGES} and {MASKS} must have files, or a folder for each user, got both",
            "move the files into the folder of a user",
        )
    for stem in sorted(images.keys() ^ masks.keys()):
        has, lacks = (IMAGES, MASKS) if stem in images else (MASKS, IMAGES)
        raise FolderError(
            images.get(stem) or masks[stem],
            f"a file in {has} must have one of the same name in {lacks}, got none",
            "add it, or remove this one",
        )
    pairs = [(images[stem], masks[stem]) for stem in sorted(images)]
    labels = np.dtype(np.int64).itemsize
    x = read_pixels(
        [image for image, _ in pairs],
        lambda size: check_size(size + len(pairs) * _n_pixels(pairs[0][0]) * labels),
    )
    y = np.empty((len(x), *x.shape[2:]), np.int64)
    for row, (image, mask) in enumerate(pairs):
        y[row] = _mask(mask, image, x.shape[2:], preparation.no_label)
    users = np.array([stem.partition("/")[0] for stem in sorted(images)])
    return Pictures(x, y, (*notes, *more), users if True in with_users else None)


def _by_stem(
    folder: Path, name: str, suffixes: tuple[str, ...]
) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Return the files of one of the two folders by their names without suffix, and notes.

    The name of a file in the folder of a user begins with that of the user: `USER/NAME`.
    """
    inner, users = list[Path](), dict[Path, str]()
    for entry in entries_of(folder / name, "masks"):
        of_user = entries_of(entry, "masks") if entry.is_dir() else [entry]
        users |= {path: f"{entry.name}/" for path in of_user if path != entry}
        inner += [path for path in of_user if path.is_file()]
    found = [path for path in inner if path.suffix.lower() in suffixes]
    if not found:
        listed = " or ".join(suffixes)
        raise FolderError(folder / name, f"must hold {listed} files, got none", "add them")
    by_stem: dict[str, Path] = {}
    for path in found:
        other = by_stem.setdefault(users.get(path, "") + path.stem, path)
        if other != path:
            raise FolderError(
                path, f"must be the only one of its name, got {other.name}, too", "remove one"
            )
    others = [path for path in inner if path not in found]
    return by_stem, tuple(left_out(folder, others, f"without the suffix {' or '.join(suffixes)}"))


def _n_pixels(path: Path) -> int:
    with _opened(path) as picture:
        return int(picture.height * picture.width)


def _mask(path: Path, image: Path, size: tuple[int, ...], no_label: int) -> NDArray[np.int64]:
    """Return the value of each pixel of a mask, shape (height, width), -1 without a label."""
    with _opened(path) as picture:
        if picture.mode not in NO_COLOURS:
            raise FolderError(
                path,
                "a mask must have one channel of 8 bits, the class of each pixel as grey value or "
                f"palette index, got mode {picture.mode}",
                "save it as such a .png; a colour is no class",
            )
        if (picture.height, picture.width) != size:
            raise FolderError(
                path,
                f"must have the size {size[0]}x{size[1]} of its picture {image.name}, got "
                f"{picture.height}x{picture.width}",
                "bring both to one size, masks by the nearest pixel",
            )
        values = _decoded(path, lambda: np.asarray(picture).astype(np.int64))
    values[values == no_label] = NO_LABEL
    if (values == NO_LABEL).all():
        raise FolderError(
            path,
            f"a mask must have a labelled pixel, got only {no_label}, which is no label",
            "remove it, or set another value as data.masks.no_label",
        )
    return values


def read_pixels(paths: list[Path], check_size: Callable[[int], None]) -> NDArray[np.uint8]:
    """Return all pictures as one array, (n, channels, height, width).

    Args:
        paths: The first one sets size and channels.
        check_size: Called with the bytes of all pictures before they are read.

    Raises:
        FolderError: A picture cannot be read, or has another size.
        ImportError: pillow is not installed.
    """
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
                raise FolderError(
                    path,
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
        raise FolderError(path, f"must be a readable picture, got {reason}", _FIX) from exc


def _shape(path: Path, picture: "Image") -> tuple[int, int, int]:
    """Return (channels, height, width) of a picture by its header."""
    if picture.mode not in MODES:
        raise FolderError(
            path,
            f"must be grey or RGB with 8 bits per channel, got mode {picture.mode}",
            "convert it",
        )
    return 1 if MODES[picture.mode] == "L" else 3, picture.height, picture.width


def _pixels(path: Path, picture: "Image") -> NDArray[np.uint8]:
    return _decoded(path, lambda: np.asarray(picture.convert(MODES[picture.mode]), np.uint8))


def _decoded(path: Path, decode: Callable[[], Pixels]) -> Pixels:
    try:
        return decode()
    except (OSError, ValueError, SyntaxError) as exc:  # a truncated or damaged file
        raise FolderError(path, f"must be a readable picture, got {_line(exc)}", _FIX) from exc


def _text(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))


def _line(exc: Exception) -> str:
    return " ".join(str(exc).split())[:200] or type(exc).__name__
