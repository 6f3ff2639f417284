"""Downloaded tasks and shards on the disk of a device, and what the device made of them.

`BlobCache` names downloads by sha256. A file is written under a temporary name first, so a file
with its final name is complete; its hash is checked on each read. `get_made` and `put_made` keep
optimised graphs, whose hash is in the file. `ArrivedChunks` keeps those of an unfinished download,
which the next agent process continues. The size of the folder is limited: the least recently used
file is removed first.
"""

import hashlib
import logging
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairbed.wire.chunks import HEADER_BYTES, decode_chunk
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import MAX_CHUNK_BYTES, Manifest
from fairbed.wire.transfer import Download

if TYPE_CHECKING:
    from fairbed.wire.base_files import BaseFiles

_log = logging.getLogger(__name__)

SHA256_BYTES = 32


@dataclass(frozen=True, slots=True)
class BlobCache:
    """A folder of blobs. All methods block on the disk; do not call them on the event loop."""

    folder: Path
    max_bytes: int
    base_folder: Path | None = None
    """Folder of frozen parts of models, which several agents may share; None: one in `folder`."""
    base_file: Path | None = None
    """A frozen part of a model that the owner has put on the device."""
    base_links: Path | None = None
    """Folder in which emulated devices keep one file of equal bases; None: a file each."""

    @property
    def bases(self) -> "BaseFiles":
        """The frozen parts of models on this device."""
        from fairbed.wire.base_files import BaseFiles

        folder = self.base_folder or self.folder / "bases"
        return BaseFiles(folder, self.max_bytes, self.base_file, self.base_links)

    def has(self, manifest: Manifest) -> bool:
        """Return whether a blob is here; a corrupt file is removed."""
        if manifest.kind == "base" and manifest.sha256 is not None:
            return self.bases.path(manifest.sha256) is not None
        return self.get(manifest) is not None

    def get(self, manifest: Manifest) -> bytes | None:
        """Return the blob, or None if it is missing; a corrupt file is removed."""
        path = self._path(manifest)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).digest() != manifest.sha256:
            path.unlink(missing_ok=True)
            return None
        with suppress(OSError):  # read-only storage: the blob is valid anyway
            os.utime(path)
        return data

    def put(self, manifest: Manifest, data: bytes | bytearray | memoryview) -> None:
        """Write a verified blob, and remove older files above the size limit.

        Raises:
            OSError: The disk is full or the folder cannot be written.
        """
        if manifest.kind == "base" and manifest.sha256 is not None:
            self.bases.put(manifest.sha256, [data])
            return
        self._write(self._path(manifest), data)

    def get_made(self, name: str) -> bytes | None:
        """Return what `put_made` wrote under a name, or None; a damaged file is removed."""
        path = self.folder / name
        try:
            content = path.read_bytes()
        except OSError:
            return None
        checksum, data = content[:SHA256_BYTES], content[SHA256_BYTES:]
        if hashlib.sha256(data).digest() != checksum:
            _log.warning("cache: %s must match its checksum, got another; it is made again", name)
            path.unlink(missing_ok=True)
            return None
        with suppress(OSError):
            os.utime(path)
        return data

    def put_made(self, name: str, data: bytes) -> None:
        """Write data that this device can make again, with their checksum.

        Raises:
            OSError: The disk is full or the folder cannot be written.
        """
        self._write(self.folder / name, hashlib.sha256(data).digest(), data)

    def remove_made(self, name: str) -> None:
        """Remove what `put_made` wrote under a name, if it is there."""
        with suppress(OSError):
            (self.folder / name).unlink(missing_ok=True)

    def _write(self, path: Path, *parts: bytes | bytearray | memoryview) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with scratch.open("wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
        self._shrink(keep=path)

    def arrived(self, manifest: Manifest) -> "ArrivedChunks":
        """Return the chunks on disk of an unfinished download of a blob."""
        path = self._path(manifest)
        return ArrivedChunks(path.with_name(f"{path.name}.arrived"))

    def _path(self, manifest: Manifest) -> Path:
        if manifest.sha256 is None:
            raise ValueError("manifest: needs a sha256 to be cached, got None")
        return self.folder / f"{manifest.kind}-{manifest.sha256.hex()}"

    def _shrink(self, keep: Path) -> None:
        files = []
        for path in self.folder.iterdir():
            try:
                stat = path.stat()
            except OSError:  # another agent has removed it
                continue
            if path.is_dir():
                continue
            files.append((stat.st_mtime_ns, stat.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.max_bytes:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                total -= size


_LENGTH = struct.Struct(">I")
"""Length of a frame in `ArrivedChunks`."""


@dataclass(frozen=True, slots=True)
class ArrivedChunks:
    """A file with chunks of a download: length (u32, big endian) and frame (`wire.chunks`) of each.

    Each frame has a checksum, and the blob its hash: a file that was cut off by a power failure is
    read up to there, and cut off there. All methods block on the disk.
    """

    path: Path

    def append(self, frames: Iterable[bytes]) -> None:
        """Add encoded chunks.

        Raises:
            OSError: The disk is full or the folder cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            for frame in frames:
                file.write(_LENGTH.pack(len(frame)) + frame)

    def restore(self, download: Download) -> int:
        """Pass the chunks to a download that has not started; return how many are valid."""
        count = 0
        with suppress(OSError), self.path.open("rb+") as file:
            valid_bytes = 0
            with suppress(DecodeError, struct.error):
                while head := file.read(_LENGTH.size):
                    (size,) = _LENGTH.unpack(head)
                    if size > HEADER_BYTES + MAX_CHUNK_BYTES:
                        break
                    download.restore(decode_chunk(file.read(size)))
                    count, valid_bytes = count + 1, file.tell()
            file.truncate(valid_bytes)  # what is appended behind damage could not be read
        return count

    def remove(self) -> None:
        """Remove the file, if there is one."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
