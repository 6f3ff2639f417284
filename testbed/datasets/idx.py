"""The IDX format of the MNIST family: a magic number, the dimensions, then unsigned bytes."""

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

from testbed.datasets.errors import DataError

UNSIGNED_BYTE = 0x08
"""Third byte of the magic number: the type of the values."""
MAX_PAYLOAD_BYTES = 1 << 31
"""Refuse headers that promise more: no set of the family is near 2 GiB."""
_AGAIN = "get this file again from its publisher"


@dataclass(frozen=True, slots=True)
class IdxHeader:
    """The first bytes of an IDX file."""

    raw: bytes
    shape: tuple[int, ...]

    @property
    def payload_bytes(self) -> int:
        """Bytes that have to follow."""
        return math.prod(self.shape)


def find(folder: Path, name: str) -> Path | None:
    """Return the path of `name.gz` or `name` in `folder`, or None if neither is there."""
    candidates = (folder / f"{name}.gz", folder / name)
    return next((path for path in candidates if path.is_file()), None)


def read_header(path: Path, n_dimensions: int) -> IdxHeader:
    """Read only the header of an IDX file of bytes with `n_dimensions`.

    Raises:
        DataError: The file cannot be read, or is not what it should be.
    """
    with _opened(path) as stream:
        return _header(path, stream, n_dimensions)


def read_into(path: Path, out: NDArray[np.uint8], n_dimensions: int) -> str:
    """Fill `out` with the values of an IDX file.

    Args:
        path: The file, gzip-compressed if its name ends in `.gz`.
        out: C-contiguous, of the size that `read_header` told.
        n_dimensions: Dimensions that the file must have.

    Returns:
        The MD5 of the uncompressed file, in hexadecimal: what the published checksums are
        compared with, whatever compressed the copy at hand.

    Raises:
        DataError: The file cannot be read, is cut short or goes on after the last value.
    """
    payload = out.reshape(-1).data
    with _opened(path) as stream:
        header = _header(path, stream, n_dimensions)
        digest = hashlib.md5(header.raw, usedforsecurity=False)
        if header.payload_bytes != len(payload):
            raise DataError(
                str(path), f"must not change while it is read, got {header.shape}", "try again"
            )
        filled = stream.readinto(payload)
        if filled != len(payload):
            raise DataError(
                str(path), f"must hold {len(payload):,} values, got {filled:,} (cut short)", _AGAIN
            )
        if stream.read(1):
            raise DataError(str(path), f"must end after {len(payload):,} values, got more", _AGAIN)
    digest.update(payload)
    return digest.hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file for reading; every way of not being readable is one DataError."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            yield stream
    except EOFError as exc:
        raise DataError(str(path), "gzip stream must be complete, got a cut one", _AGAIN) from exc
    except (gzip.BadGzipFile, zlib.error) as exc:
        raise DataError(str(path), f"must be a sound gzip file, got: {exc}", _AGAIN) from exc
    except OSError as exc:
        raise DataError(
            str(path), f"must be readable, got: {exc.strerror or exc}", "check the file"
        ) from exc


def _header(path: Path, stream: io.BufferedIOBase, n_dimensions: int) -> IdxHeader:
    raw = stream.read(4 + 4 * n_dimensions)
    magic = bytes((0, 0, UNSIGNED_BYTE, n_dimensions))
    if raw[:4] != magic:
        raise DataError(
            str(path),
            f"magic number must be {magic.hex()}, got {raw[:4].hex() or 'nothing'}",
            _AGAIN,
        )
    if len(raw) < 4 + 4 * n_dimensions:
        raise DataError(str(path), "header must be complete, got a cut one", _AGAIN)
    header = IdxHeader(raw, tuple(int(size) for size in np.frombuffer(raw, ">u4", offset=4)))
    if not 0 < header.payload_bytes <= MAX_PAYLOAD_BYTES:
        raise DataError(
            str(path), f"must announce 1 .. {MAX_PAYLOAD_BYTES} values, got {header.shape}", _AGAIN
        )
    return header
