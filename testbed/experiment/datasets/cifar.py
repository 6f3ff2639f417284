"""CIFAR-10 and CIFAR-100 from a folder of their "binary version".

A record is one byte of class, for CIFAR-100 after one of its superclass, then 3 x 32 x 32 pixels.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.published_files import check_folder, unpacked
from fairbed.testbed.experiment.published import PUBLISHED, how_to_get

PIXELS = 3 * 32 * 32
MAX_BYTES = 1 << 30
"""Limit of one file; each whole set has 184 MB."""
SUPERCLASS_BYTES = {"cifar10": 0, "cifar100": 1}
"""Bytes of a record before its class."""
_GET_AGAIN = "download this file again"


def files(name: str, folder: Path) -> list[Path]:
    """Return the files of records in a folder, sorted by name.

    Raises:
        DatasetError: The folder does not exist, or has no such file.
    """
    check_folder(name, folder)
    found = sorted([*folder.glob("*.bin"), *folder.glob("*.bin.xz")])
    if not found:
        raise DatasetError(
            name, f"{folder} must hold files *.bin or *.bin.xz, got none", how_to_get(name)
        )
    return found


def load_cifar(name: str, folder: Path) -> Dataset:
    """Return all records of all files, x uint8, shape (n, 3, 32, 32).

    The author publishes no checksums of single files, so the origin is `unverified`.

    Raises:
        DatasetError: The folder is missing or empty, or a file is damaged or of another format.
    """
    published, place = PUBLISHED[name], SUPERCLASS_BYTES[name]
    parts = [_records(path, place, published.classes) for path in files(name, folder)]
    records = np.concatenate(parts)
    return Dataset(
        name=name,
        x=np.ascontiguousarray(records[:, place + 1 :]).reshape(-1, *published.x_shape),
        y=records[:, place].astype(np.int64),
        classes=published.classes,
        description=published.description,
        source=published.source,
        origin="unverified",
    )


def _records(path: Path, place: int, classes: int) -> NDArray[np.uint8]:
    """Return the records of a file, shape (n, place + 1 + PIXELS)."""
    values = np.frombuffer(unpacked(path, MAX_BYTES, _GET_AGAIN), np.uint8)
    record_bytes = place + 1 + PIXELS
    if values.size == 0 or values.size % record_bytes:
        raise DatasetError(
            str(path),
            f"must hold records of {record_bytes} bytes, got {values.size:,}",
            _GET_AGAIN,
        )
    records = values.reshape(-1, record_bytes)
    if records[:, place].max() >= classes:
        raise DatasetError(
            str(path),
            f"labels must be 0 .. {classes - 1}, got {records[:, place].max()}",
            _GET_AGAIN,
        )
    return records
