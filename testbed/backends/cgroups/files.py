"""Reads and writes the files of control groups, and reports values that the kernel rejects.

Buffered writes would hide rejections, and a device with a rejected quota runs at full speed. So a
value is written by one system call, and important values are read back.
"""

import os
from contextlib import suppress
from pathlib import Path

from fairbed.testbed.errors import BackendError

READ_BYTES = 1 << 16


class CgroupError(BackendError):
    """A control group cannot be made, read, changed or removed."""


def write(path: Path, text: str) -> None:
    """Write one value.

    Raises:
        CgroupError: The kernel rejected it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise _rejected(path, text, exc) from exc


class OpenFile:
    """A file that is written often: opened at its first use and kept open until `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._length: int | None = None
        """Length of the last value written; None before the first."""

    def write(self, text: str) -> None:
        """Write one value; the first is read back.

        Raises:
            CgroupError: The kernel rejected or changed it.
        """
        data = text.encode()
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            if self._length is None or len(data) < self._length:
                with suppress(OSError):  # needed only for files on disk, in tests
                    os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, data, 0)
            if self._length is None:
                found = os.pread(self._descriptor, READ_BYTES, 0).decode().strip()
                _check_value(self._path, text, found)
        except OSError as exc:
            raise _rejected(self._path, text, exc) from exc
        self._length = len(data)

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = self._length = None


def write_checked(path: Path, text: str) -> None:
    """Write one value and read it back.

    Raises:
        CgroupError: The kernel rejected or changed it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_TRUNC)
        try:
            os.write(descriptor, text.encode())
            found = os.pread(descriptor, READ_BYTES, 0).decode().strip()
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise _rejected(path, text, exc) from exc
    _check_value(path, text, found)


def _check_value(path: Path, text: str, found: str) -> None:
    if found.split() != text.split():
        raise CgroupError(f"{path}: must have the value {text!r}, got {found!r}")


def _rejected(path: Path, text: str, exc: OSError) -> CgroupError:
    return CgroupError(f"{path}: must accept {text!r}, got: {exc.strerror}")


def read(path: Path) -> str:
    """Return the stripped text of a file.

    Raises:
        CgroupError: The file cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return os.read(descriptor, READ_BYTES).decode().strip()
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise CgroupError(f"{path}: must be readable, got: {exc.strerror}") from exc


def read_fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file of lines `name number`; other lines are skipped.

    Raises:
        CgroupError: The file cannot be read.
    """
    pairs = (line.split() for line in read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
