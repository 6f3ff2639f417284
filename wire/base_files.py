"""The frozen part of a model, the base, as a file: named by its hash, and mapped into memory.

All processes of a machine that map one file share its memory. A file is complete and right when it
has its name, since it is written under another one first; its hash is checked when a process opens
it for the first time.
"""

import hashlib
import mmap
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.artifact import Base
from fairbed.wire.tensors import BYTES_PER_VALUE, Layout

PREFIX = "base-"

_BLOCK = 1 << 20


def default_bases(environ: Mapping[str, str]) -> "BaseFiles":
    """Return the bases in the cache of the user, of tasks that this machine has made."""
    root = environ.get("XDG_CACHE_HOME") or str(
        Path(environ.get("HOME", "~")).expanduser() / ".cache"
    )
    return BaseFiles(Path(root) / "fairbed" / "bases")


MAX_BYTES = 8 << 30
"""Limit of the bases in the cache of a user."""

_checked: dict[tuple[int, int], tuple[int, int, bytes]] = {}
"""Size, time of the last change and hash of each file that this process has read, by device and
inode."""


class BaseMissing(Exception):
    """The file of a base is not here, or is damaged."""


class BaseFiles:
    """Bases in a folder. All methods block on the disk.

    Args:
        folder: The folder, which need not exist.
        max_bytes: Limit of all bases in it; the ones that were opened least recently are removed.
        given: A file that the owner of a device has put there; it may be any base, or none.
        links: A folder beside those of other emulated devices: equal bases in their folders are
            links to one file in it, and share its memory. None: a file each.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int = MAX_BYTES,
        given: Path | None = None,
        links: Path | None = None,
    ) -> None:
        self.folder, self._max_bytes, self._given, self._links = folder, max_bytes, given, links

    def path(self, sha256: bytes) -> Path | None:
        """Return the file of a base; None if it is not here. A damaged one is removed."""
        if self._given is not None and _hash_of(self._given) == sha256:
            return self._given
        path = self._named(sha256)
        found = _hash_of(path)
        if found == sha256:
            if self._links is None:
                with suppress(OSError):  # read-only storage
                    os.utime(path)
                    _note(path, found)
            return path
        if found is not None:
            path.unlink(missing_ok=True)
        return None

    def put(self, sha256: bytes, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        """Write a base whose hash is known to be right, unless it is here.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        if self.path(sha256) is not None:
            return
        path = self._named(sha256)
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            if self._links is None or not self._link(self._links / path.name, scratch, sha256):
                with scratch.open("wb") as file:
                    file.writelines(parts)
                    file.flush()
                    os.fsync(file.fileno())
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
        if self._links is not None:
            self._offer(path, self._links / path.name)
        _bound(self.folder, self._max_bytes, keep=path)

    def receive(self, base: Base, blob: memoryview) -> None:
        """Write a base that another machine has sent, unless it is here.

        Raises:
            BaseMissing: It is another one.
            OSError: The disk is full, or the folder cannot be written.
        """
        if hashlib.sha256(blob).digest() != base.sha256:
            raise BaseMissing(
                f"base {base.sha256.hex()[:12]}: must have the hash of the task, got another one"
            )
        self.put(base.sha256, [blob])

    @staticmethod
    def _link(found: Path, to: Path, sha256: bytes) -> bool:
        """Make a link to the file that another device has written; return whether it is right."""
        try:
            os.link(found, to)
        except OSError:  # no other device has it, or this file system has no links
            return False
        if _hash_of(to) == sha256:
            return True
        for path in (found, to):
            path.unlink(missing_ok=True)
        return False

    def _offer(self, path: Path, shared: Path) -> None:
        """Let other devices make links to a file, or make this one a link to theirs."""
        scratch = path.with_name(f"{path.name}.{os.getpid()}.link")
        with suppress(OSError):  # no links on this file system: this device keeps its own file
            shared.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, shared)
            except FileExistsError:  # another device was first
                os.link(shared, scratch)
                scratch.replace(path)
            _bound(shared.parent, self._max_bytes, keep=shared)
        scratch.unlink(missing_ok=True)

    def tensors(self, base: Base) -> dict[str, NDArray[np.float32]]:
        """Return the tensors of a base by name, read-only, mapped from its file.

        Raises:
            BaseMissing: The file is not here, or is damaged.
        """
        return base.layout.views(np.frombuffer(self.blob(base), dtype="<f4"))

    def blob(self, base: Base) -> memoryview:
        """Return a base as it is sent, mapped from its file.

        Raises:
            BaseMissing: The file is not here, or is damaged.
        """
        path, size = self.path(base.sha256), base.layout.size_bytes
        if path is None:
            raise BaseMissing(
                f"base {base.sha256.hex()[:12]}: must be in {self.folder}, got no file with this "
                "hash; it is downloaded with the task"
            )
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != size:
                raise BaseMissing(
                    f"base {base.sha256.hex()[:12]}: must have {size} bytes, got "
                    f"{os.fstat(file.fileno()).st_size}"
                )
            return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))

    def _named(self, sha256: bytes) -> Path:
        return self.folder / f"{PREFIX}{sha256.hex()}"


def _bound(folder: Path, max_bytes: int, keep: Path) -> None:
    """Remove the bases of a folder that were opened least recently, above a limit."""
    found = []
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another process has removed it
            stat = path.stat()
            found.append((stat.st_mtime_ns, stat.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total > max_bytes and path != keep:
            path.unlink(missing_ok=True)
            total -= size


def _hash_of(path: Path) -> bytes | None:
    """Return the hash of a file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            known = _checked.get((stat.st_dev, stat.st_ino))
            if known is not None and known[:2] == (stat.st_size, stat.st_mtime_ns):
                return known[2]
            digest = hashlib.sha256()
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError:
        return None
    _checked[stat.st_dev, stat.st_ino] = stat.st_size, stat.st_mtime_ns, digest.digest()
    return digest.digest()


def _note(path: Path, sha256: bytes) -> None:
    stat = path.stat()
    _checked[stat.st_dev, stat.st_ino] = stat.st_size, stat.st_mtime_ns, sha256


def base_of(
    layout: Layout, tensors: Mapping[str, NDArray[np.float32]]
) -> tuple[Base, list[memoryview]]:
    """Return a base and the parts of its blob, for the tensors of a layout by name."""
    parts = [
        np.ascontiguousarray(tensors[tensor.name], dtype="<f4").reshape(-1).view(np.uint8).data
        for tensor in layout.tensors
    ]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    assert sum(map(len, parts)) == layout.n_values * BYTES_PER_VALUE
    return Base(layout=layout, sha256=digest.digest()), parts
