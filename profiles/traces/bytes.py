"""Read files of a size that is known to be harmless, packed ones too."""

import lzma
import tarfile
from pathlib import Path
from typing import BinaryIO

from profiles.errors import TraceError

MAX_BYTES = 100_000_000
"""A larger trace is refused before it is read: a day at 1 Hz takes 3 MB."""

_ADVICE = "cut it, or bin it coarser with: fairbed profiles import --step"


def read_file(path: Path) -> bytes:
    """Return what a file holds, unpacked if its name ends in `.xz`.

    Raises:
        TraceError: It cannot be read, or holds more than `MAX_BYTES`.
    """
    try:
        if path.suffix == ".xz":
            with lzma.open(path) as file:
                return _bounded(file, str(path))
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise _too_large(str(path), size)
        with path.open("rb") as file:
            return _bounded(file, str(path))
    except (OSError, lzma.LZMAError, EOFError) as exc:
        raise _unreadable(str(path), exc) from exc


def read_member(archive: Path, member: str) -> bytes | None:
    """Return what one file of a `.tar.xz` holds; None if there is no such file in it.

    Raises:
        TraceError: The archive cannot be read, or the file holds more than `MAX_BYTES`.
    """
    where = f"{archive}/{member}"
    try:
        with tarfile.open(archive, "r:*") as tar:
            for item in tar:
                if item.name == member and item.isfile():
                    if item.size > MAX_BYTES:
                        raise _too_large(where, item.size)
                    file = tar.extractfile(item)
                    return b"" if file is None else file.read(MAX_BYTES)
    except (OSError, tarfile.TarError, lzma.LZMAError, EOFError) as exc:
        raise _unreadable(where, exc) from exc
    return None


def _bounded(file: BinaryIO | lzma.LZMAFile, where: str) -> bytes:
    content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _too_large(where, len(content))
    return content


def _too_large(where: str, size: int) -> TraceError:
    return TraceError(
        f"{where}: a trace must be at most {MAX_BYTES // 10**6} MB, "
        f"got {size / 1e6:.0f} MB or more; {_ADVICE}"
    )


def _unreadable(where: str, exc: Exception) -> TraceError:
    reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    return TraceError(f"{where}: must be a readable file, got: {reason}; check the path")
