"""MNIST and Fashion-MNIST from a folder of the four original files.

Their format is IDX: a magic number, the dimensions, then unsigned bytes.
"""

import gzip
import hashlib
import io
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.published_files import check_folder, find
from fairbed.testbed.experiment.published import PUBLISHED, how_to_get

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
        The SHA-256 of the uncompressed file, in hexadecimal, for comparison with the published one.

    Raises:
        DatasetError: The file cannot be read, is cut short or continues after the last value.
    """
    payload = out.reshape(-1).data
    with _opened(path) as stream:
        header = _header(path, stream, n_dimensions)
        digest = hashlib.sha256(header.raw)
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


def count(name: str, folder: Path) -> tuple[int, ...]:
    """Return the number of examples of each part, reading only the headers.

    Raises:
        DatasetError: The folder or a file is missing, or a header is wrong.
    """
    check_folder(name, folder)
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
                how_to_get(name),
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
    published = PUBLISHED[name]
    sha256 = {file.name: file.sha256 for file in published.files}
    is_verified, start = True, 0
    for part, n in zip(PARTS, counts, strict=True):
        rows = slice(start, start + n)
        for file, out, dimensions in (
            (f"{part}-images-idx3-ubyte", x[rows], IMAGE_DIMENSIONS),
            (f"{part}-labels-idx1-ubyte", y[rows], LABEL_DIMENSIONS),
        ):
            path = _find(name, folder, file)
            is_verified &= read_into(path, out, dimensions) == sha256[file]
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
        description=published.description,
        source=published.source,
        origin="verified" if is_verified else "unverified",
    )


def _find(name: str, folder: Path, file: str) -> Path:
    path = find(folder, file)
    if path is None:
        raise DatasetError(
            name, f"{folder} must hold {file}.gz or {file}, got neither", how_to_get(name)
        )
    return path
