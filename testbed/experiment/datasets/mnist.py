"""MNIST and Fashion-MNIST from a folder of the four original files.

Their format is IDX: a magic number, the dimensions, then unsigned bytes.
"""

import gzip
import hashlib
import io
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError

UNSIGNED_BYTE = 0x08
"""Third byte of the magic number: the type of the values."""
MAX_PAYLOAD_BYTES = 1 << 31
"""Limit of a header's size; no set of the MNIST family is near 2 GiB."""
_GET_AGAIN = "download this file again from its publisher"


@dataclass(frozen=True, slots=True)
class IdxHeader:
    """The first bytes of an IDX file."""

    raw: bytes
    shape: tuple[int, ...]

    @property
    def payload_bytes(self) -> int:
        """Number of bytes that must follow."""
        return math.prod(self.shape)


def find_idx(folder: Path, name: str) -> Path | None:
    """Return the path of `name.gz` or `name` in `folder`; None if neither exists."""
    candidates = (folder / f"{name}.gz", folder / name)
    return next((path for path in candidates if path.is_file()), None)


def read_header(path: Path, n_dimensions: int) -> IdxHeader:
    """Read only the header of an IDX file of bytes with `n_dimensions`.

    Raises:
        DatasetError: The file cannot be read, or has another header.
    """
    with _opened(path) as stream:
        return _header(path, stream, n_dimensions)


def read_into(path: Path, out: NDArray[np.uint8], n_dimensions: int) -> str:
    """Fill `out` with the values of an IDX file.

    Args:
        path: The file, gzip-compressed if its name ends in `.gz`.
        out: C-contiguous, of the size that `read_header` returned.
        n_dimensions: Dimensions that the file must have.

    Returns:
        The MD5 of the uncompressed file, in hexadecimal, for comparison with the published one.

    Raises:
        DatasetError: The file cannot be read, is cut short or continues after the last value.
    """
    payload = out.reshape(-1).data
    with _opened(path) as stream:
        header = _header(path, stream, n_dimensions)
        digest = hashlib.md5(header.raw, usedforsecurity=False)
        if header.payload_bytes != len(payload):
            raise DatasetError(
                str(path), f"must not change while it is read, got {header.shape}", "try again"
            )
        filled = stream.readinto(payload)
        if filled != len(payload):
            raise DatasetError(
                str(path),
                f"must hold {len(payload):,} values, got {filled:,} (cut short)",
                _GET_AGAIN,
            )
        if stream.read(1):
            raise DatasetError(
                str(path), f"must end after {len(payload):,} values, got more", _GET_AGAIN
            )
    digest.update(payload)
    return digest.hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file for reading; any failure is a DatasetError."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            yield stream
    except EOFError as exc:
        raise DatasetError(
            str(path), "gzip stream must be complete, got a truncated one", _GET_AGAIN
        ) from exc
    except (gzip.BadGzipFile, zlib.error) as exc:
        raise DatasetError(
            str(path), f"must be an intact gzip file, got: {exc}", _GET_AGAIN
        ) from exc
    except OSError as exc:
        raise DatasetError(
            str(path),
            f"must be readable, got: {exc.strerror or exc}",
            "check its path and permissions",
        ) from exc


def _header(path: Path, stream: io.BufferedIOBase, n_dimensions: int) -> IdxHeader:
    raw = stream.read(4 + 4 * n_dimensions)
    magic = bytes((0, 0, UNSIGNED_BYTE, n_dimensions))
    if raw[:4] != magic:
        raise DatasetError(
            str(path),
            f"magic number must be {magic.hex()}, got {raw[:4].hex() or 'nothing'}",
            _GET_AGAIN,
        )
    if len(raw) < 4 + 4 * n_dimensions:
        raise DatasetError(str(path), "header must be complete, got a truncated one", _GET_AGAIN)
    header = IdxHeader(raw, tuple(int(size) for size in np.frombuffer(raw, ">u4", offset=4)))
    if not 0 < header.payload_bytes <= MAX_PAYLOAD_BYTES:
        raise DatasetError(
            str(path),
            f"header must announce 1 .. {MAX_PAYLOAD_BYTES} values, got {header.shape}",
            _GET_AGAIN,
        )
    return header


CLASSES = 10
IMAGE_SHAPE = (28, 28)
IMAGE_DIMENSIONS = 3
LABEL_DIMENSIONS = 1
PARTS = ("train", "t10k")


@dataclass(frozen=True, slots=True)
class Published:
    """A data set as its authors published it."""

    description: str
    source: str
    publisher: str
    md5: Mapping[str, str]
    """Checksum of each uncompressed file, by name."""


PUBLISHED: Mapping[str, Published] = {
    "mnist": Published(
        description="70,000 handwritten digits, 28x28 pixels, 10 classes",
        source="LeCun, Cortes, Burges 1998; CC BY-SA 3.0 as commonly stated",
        publisher="the MNIST database of LeCun, Cortes and Burges",
        md5={
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
    ),
    "fashion-mnist": Published(
        description="70,000 pictures of clothes, 28x28 pixels, 10 classes",
        source="Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747; MIT",
        publisher="the Fashion-MNIST project of Zalando Research",
        md5={
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
    ),
}


def how_to_get(name: str) -> str:
    """Return the instructions to get the files of `name`."""
    return (
        f"put {{train,t10k}}-{{images-idx3,labels-idx1}}-ubyte.gz of {PUBLISHED[name].publisher} "
        f"into a folder {name} and set FAIRBED_DATA to its parent"
    )


def count(name: str, folder: Path) -> tuple[int, ...]:
    """Return the number of examples of each part, reading only the headers.

    Raises:
        DatasetError: The folder or a file is missing, or a header is wrong.
    """
    if not folder.is_dir():
        raise DatasetError(name, f"folder must exist, got {folder}", how_to_get(name))
    counts = []
    for part in PARTS:
        images_path = _find(name, folder, f"{part}-images-idx3-ubyte")
        labels_path = _find(name, folder, f"{part}-labels-idx1-ubyte")
        images = read_header(images_path, IMAGE_DIMENSIONS).shape
        labels = read_header(labels_path, LABEL_DIMENSIONS).shape
        if images[1:] != IMAGE_SHAPE:
            raise DatasetError(
                str(images_path),
                f"images must be 28x28, got {images[1]}x{images[2]}",
                f"use the files of {PUBLISHED[name].publisher}",
            )
        if images[:1] != labels:
            raise DatasetError(
                str(images_path),
                f"must hold as many images as {labels_path.name} labels, "
                f"got {images[0]} and {labels[0]}",
                "download both files again from one publisher",
            )
        counts.append(images[0])
    return tuple(counts)


def load_mnist(name: str, folder: Path) -> Dataset:
    """Return all examples of both parts, x uint8, shape (n, 1, 28, 28).

    Raises:
        DatasetError: The folder or a file is missing, damaged or of another format.
    """
    counts = count(name, folder)
    x = np.empty((sum(counts), 1, *IMAGE_SHAPE), np.uint8)
    y = np.empty(len(x), np.uint8)
    is_verified, start = True, 0
    for part, n in zip(PARTS, counts, strict=True):
        rows = slice(start, start + n)
        for file, out, dimensions in (
            (f"{part}-images-idx3-ubyte", x[rows], IMAGE_DIMENSIONS),
            (f"{part}-labels-idx1-ubyte", y[rows], LABEL_DIMENSIONS),
        ):
            path = _find(name, folder, file)
            is_verified &= read_into(path, out, dimensions) == PUBLISHED[name].md5[file]
        if y[rows].max() >= CLASSES:
            raise DatasetError(
                str(folder / f"{part}-labels-idx1-ubyte"),
                f"labels must be 0 .. {CLASSES - 1}, got {y[rows].max()}",
                _GET_AGAIN,
            )
        start += n
    return Dataset(
        name=name,
        x=x,
        y=y.astype(np.int64),
        classes=CLASSES,
        description=PUBLISHED[name].description,
        source=PUBLISHED[name].source,
        origin="verified" if is_verified else "unverified",
    )


def _find(name: str, folder: Path, file: str) -> Path:
    path = find_idx(folder, file)
    if path is None:
        raise DatasetError(
            name, f"{folder} must hold {file}.gz or {file}, got neither", how_to_get(name)
        )
    return path
