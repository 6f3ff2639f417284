"""Tasks and shards that this device has pulled, kept on disk by content.

A file is named by its sha256 and written under another name first, so a file with the right
name is whole, and whatever the disk did to it since is found out on reading. The folder is
bounded: what was not used for longest goes first.
"""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wire.messages import Manifest


@dataclass(frozen=True, slots=True)
class BlobCache:
    """A folder of blobs. All methods block on the disk; call them off the event loop."""

    folder: Path
    max_bytes: int

    def get(self, manifest: Manifest) -> bytes | None:
        """Return the blob, or None if it is not here; a corrupt file is removed and not here."""
        path = self._path(manifest)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).digest() != manifest.sha256:
            path.unlink(missing_ok=True)
            return None
        with suppress(OSError):  # read-only storage: the blob is good all the same
            os.utime(path)
        return data

    def put(self, manifest: Manifest, data: bytes | bytearray | memoryview) -> None:
        """Keep a verified blob, and make room for it.

        Raises:
            OSError: The disk is full or the folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(manifest)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        self._shrink(keep=path)

    def _path(self, manifest: Manifest) -> Path:
        if manifest.sha256 is None:
            raise ValueError("manifest: needs a sha256 to be cached, got None")
        return self.folder / f"{manifest.kind}-{manifest.sha256.hex()}"

    def _shrink(self, keep: Path) -> None:
        files = []
        for path in self.folder.iterdir():
            try:
                stat = path.stat()
            except OSError:  # another agent's cleaning was faster
                continue
            files.append((stat.st_mtime_ns, stat.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.max_bytes:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                total -= size
