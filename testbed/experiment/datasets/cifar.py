"""CIFAR-10 from a folder of its "binary version": one byte of class, then 3 x 32 x 32 pixels."""

import lzma
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError

NAME = "cifar10"
CLASSES = 10
IMAGE_SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32
MAX_BYTES = 1 << 30
"""Limit of one file; the whole set has 184 MB."""
DESCRIPTION = "60,000 colour photographs (or a part), 32x32 pixels, 10 classes"
SOURCE = "Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images; no licence stated"
HOW_TO_GET = (
    "put the files *.bin or *.bin.xz of the author's binary version, all or some of them, into a "
    "folder cifar10 and set FAIRBED_DATA to its parent"
)
_GET_AGAIN = "download this file again"


def files(folder: Path) -> list[Path]:
    """Return the files of records in a folder, sorted by name.

    Raises:
        DatasetError: The folder does not exist, or has no such file.
    """
    if not folder.is_dir():
        raise DatasetError(NAME, f"folder must exist, got {folder}", HOW_TO_GET)
    found = sorted([*folder.glob("*.bin"), *folder.glob("*.bin.xz")])
    if not found:
        raise DatasetError(
            NAME, f"{folder} must hold files *.bin or *.bin.xz, got none", HOW_TO_GET
        )
    return found


def load_cifar10(folder: Path) -> Dataset:
    """Return all records of all files, x uint8, shape (n, 3, 32, 32).

    The author publishes no checksums of single files, so the origin is `unverified`.

    Raises:
        DatasetError: The folder is missing or empty, or a file is damaged or of another format.
    """
    records = np.concatenate([_records(path) for path in files(folder)])
    return Dataset(
        name=NAME,
        x=np.ascontiguousarray(records[:, 1:]).reshape(-1, *IMAGE_SHAPE),
        y=records[:, 0].astype(np.int64),
        classes=CLASSES,
        description=DESCRIPTION,
        source=SOURCE,
        origin="unverified",
    )


def _records(path: Path) -> NDArray[np.uint8]:
    """Return the records of a file, shape (n, RECORD_BYTES)."""
    values = np.frombuffer(_content(path), np.uint8)
    if values.size == 0 or values.size % RECORD_BYTES:
        raise DatasetError(
            str(path),
            f"must hold records of {RECORD_BYTES} bytes, got {values.size:,}",
            _GET_AGAIN,
        )
    records = values.reshape(-1, RECORD_BYTES)
    if records[:, 0].max() >= CLASSES:
        raise DatasetError(
            str(path),
            f"labels must be 0 .. {CLASSES - 1}, got {records[:, 0].max()}",
            _GET_AGAIN,
        )
    return records


def _content(path: Path) -> bytes:
    """Return the decompressed bytes of a file; any failure is a DatasetError."""
    try:
        with lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb") as stream:
            content: bytes = stream.read(MAX_BYTES + 1)
    except (lzma.LZMAError, EOFError) as exc:
        raise DatasetError(str(path), f"must be an intact xz file, got: {exc}", _GET_AGAIN) from exc
    except OSError as exc:
        raise DatasetError(
            str(path),
            f"must be readable, got: {exc.strerror or exc}",
            "check its path and permissions",
        ) from exc
    if len(content) > MAX_BYTES:
        raise DatasetError(
            str(path), f"must hold at most {MAX_BYTES:,} bytes, got more", _GET_AGAIN
        )
    return content
