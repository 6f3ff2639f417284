"""The files of a published data set: found in a folder, unpacked, and compared by checksum."""

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.published import PUBLISHED, PublishedFile, how_to_get

_PACKED: dict[str, Callable[..., Any]] = {"": open, ".gz": gzip.open, ".xz": lzma.open}
"""Suffixes of packed files, and what opens them."""


def find(folder: Path, name: str) -> Path | None:
    """Return the path of a file in a folder, packed or not; None if there is none."""
    paths = (folder / f"{name}{suffix}" for suffix in _PACKED)
    return next((path for path in paths if path.is_file()), None)


def check_folder(name: str, folder: Path) -> None:
    """Check that the folder of a data set exists.

    Raises:
        DatasetError: It does not.
    """
    if not folder.is_dir():
        raise DatasetError(name, f"folder must exist, got {folder}", how_to_get(name))


def read_published(name: str, folder: Path) -> dict[str, bytes]:
    """Return the content of the files of a data set, each as it was published.

    Args:
        name: The data set.
        folder: Of the files.

    Returns:
        Content by the name of the file.

    Raises:
        DatasetError: The folder or a file is missing, damaged, or another one.
    """
    check_folder(name, folder)
    return {file.name: _published(name, folder, file) for file in PUBLISHED[name].files}


def _published(name: str, folder: Path, file: PublishedFile) -> bytes:
    path = find(folder, file.name)
    if path is None:
        raise DatasetError(name, f"{folder} must hold {file.name}, got none", how_to_get(name))
    again = f"get it again: {how_to_get(name)}"
    content = unpacked(path, file.size_bytes, again)
    if problem := difference(file, content):
        raise DatasetError(str(path), problem, again)
    return content


def difference(file: PublishedFile, content: bytes) -> str:
    """Return how a content differs from the published one; empty if it is that one."""
    if len(content) < file.size_bytes:
        return f"must have {file.size_bytes:,} bytes, got {len(content):,} (cut short)"
    got = hashlib.sha256(content).hexdigest()
    if got == file.sha256:
        return ""
    return f"sha256 must be {file.sha256[:12]}..., as published, got {got[:12]}..."


def unpacked(path: Path, limit: int, what_to_do: str) -> bytes:
    """Return the content of a file, unpacked by its suffix.

    Args:
        path: The file.
        limit: Most bytes that it may have.
        what_to_do: For messages.

    Raises:
        DatasetError: It cannot be read, is damaged, or has more.
    """
    opened = _PACKED.get(path.suffix, open)
    try:
        with opened(path, "rb") as stream:
            content: bytes = stream.read(limit + 1)
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as exc:
        raise DatasetError(
            str(path), f"must be an intact {path.suffix[1:]} file, got: {exc}", what_to_do
        ) from exc
    except OSError as exc:
        raise DatasetError(
            str(path),
            f"must be readable, got: {exc.strerror or exc}",
            "check its path and permissions",
        ) from exc
    if len(content) > limit:
        raise DatasetError(str(path), f"must have at most {limit:,} bytes, got more", what_to_do)
    return content
