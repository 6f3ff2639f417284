"""How fast the storage of a folder is read, past the cache of the system."""

import os
import shutil
import time
from pathlib import Path

from device_agent.cgroup import read_text
from testbed.recording.findings import Finding, NotMeasured

FILE_BYTES = 64 << 20
"""A card that reads 20 MB/s takes three seconds."""

BLOCK_BYTES = 1 << 20

SPARE_RATIO = 4
"""The disk must have this many times the file free."""

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})

CACHED_RATIO = 0.7
"""Who reads past the cache at more than this share of the cache's own rate did not read past it."""


def read_rate(folder: Path, n_bytes: int = FILE_BYTES, root: Path = Path("/")) -> Finding:
    """Return the sequential read rate, bytes/s, of a file that is written for this and deleted.

    Raises:
        NotMeasured: The folder lies in memory, is full or not writable, or the system keeps the
            file in its cache.
    """
    kind = filesystem(folder.resolve(), root)
    if kind in IN_MEMORY:
        raise NotMeasured(f"{folder} lies in memory ({kind}); take --out on the storage")
    path = folder / f".fairbed-record-{os.getpid()}"
    try:
        if shutil.disk_usage(folder).free < SPARE_RATIO * n_bytes:
            raise NotMeasured(f"{folder} has less than {SPARE_RATIO * n_bytes >> 20} MB free")
        try:
            _write(path, n_bytes)
            past_s = _read_s(path, is_cached=False)
            cached_s = _read_s(path, is_cached=True)
        finally:
            path.unlink(missing_ok=True)
    except OSError as exc:
        raise NotMeasured(f"{folder} must be writable, got: {exc.strerror or exc}") from exc
    if cached_s > CACHED_RATIO * past_s:
        raise NotMeasured(f"the system keeps what is read from {folder} in its cache")
    return Finding(
        n_bytes / past_s, f"{n_bytes >> 20} MB on {kind or 'its file system'}, past the cache"
    )


def filesystem(folder: Path, root: Path = Path("/")) -> str | None:
    """Return the kind of file system that a folder lies on; None if nobody tells."""
    found: tuple[int, str] | None = None
    for line in (read_text(root / "proc/self/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        mount = Path(fields[1])
        if folder.is_relative_to(mount) and (found is None or len(mount.parts) >= found[0]):
            found = (len(mount.parts), fields[2])
    return None if found is None else found[1]


def _write(path: Path, n_bytes: int) -> None:
    with path.open("wb") as file:
        for _ in range(n_bytes // BLOCK_BYTES):
            file.write(os.urandom(BLOCK_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _read_s(path: Path, *, is_cached: bool) -> float:
    block = memoryview(bytearray(BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        if not is_cached and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        while file.readinto(block):
            pass
        return max(time.perf_counter() - began, 1e-9)
