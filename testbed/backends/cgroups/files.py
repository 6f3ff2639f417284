"""Reads and writes the small files of control groups, and reports refusals of the kernel.

Buffered writing hides refusals: a rejected quota then leaves a device at full speed, unnoticed. So
a file is written in one call, and important values are read back.
"""

import os
from contextlib import suppress
from pathlib import Path

from fairbed.testbed.errors import BackendError

READ_BYTES = 1 << 16


class CgroupError(BackendError):
    """A control group cannot be used as wanted."""


def write(path: Path, text: str) -> None:
    """Write one value.

    Raises:
        CgroupError: The kernel refused it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise _refused(path, text, exc) from exc


class OpenFile:
    """A file that is written often: opened at its first use, and kept open until `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._length: int | None = None
        """Of what we wrote last; None before that."""

    def write(self, text: str) -> None:
        """Write one value; the first is read back, later ones the kernel takes or refuses.

        Raises:
            CgroupError: The kernel refused it, or made another one of it.
        """
        data = text.encode()
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            if self._length is None or len(data) < self._length:
                with suppress(OSError):  # only a file on disk has a length
                    os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, data, 0)
            if self._length is None:
                found = os.pread(self._descriptor, READ_BYTES, 0).decode().strip()
                _check_held(self._path, text, found)
        except OSError as exc:
            raise _refused(self._path, text, exc) from exc
        self._length = len(data)

    def close(self) -> None:
        """Close it; another use opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = self._length = None


def write_checked(path: Path, text: str) -> None:
    """Write one value and read it back.

    Raises:
        CgroupError: The kernel refused it, or made another one of it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_TRUNC)
        try:
            os.write(descriptor, text.encode())
            found = os.pread(descriptor, READ_BYTES, 0).decode().strip()
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise _refused(path, text, exc) from exc
    _check_held(path, text, found)


def _check_held(path: Path, text: str, found: str) -> None:
    if found.split() != text.split():
        raise CgroupError(f"{path}: must hold {text!r}, got {found!r}")


def _refused(path: Path, text: str, exc: OSError) -> CgroupError:
    return CgroupError(f"{path}: must take {text!r}, got: {exc.strerror}")


def read(path: Path) -> str:
    """Return the stripped text of a file.

    Raises:
        CgroupError: It cannot be read.
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
    """Return a file of lines `name number`; lines of another form are left out.

    Raises:
        CgroupError: It cannot be read.
    """
    pairs = (line.split() for line in read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
