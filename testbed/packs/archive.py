"""A pack as a file: a tar archive, compressed with Zstandard, whose first member is the manifest.

A pack of another person is not trusted: only regular files that the manifest names are read, each
with the size and the hash that it states. Headers of tar are read one by one, because a library
would follow them: links, devices, and names of any length.
"""

import hashlib
import io
import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from fairbed.testbed.packs.manifest import (
    MANIFEST,
    Manifest,
    PackedFile,
    PackError,
    read_manifest,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    import backports.zstd as zstd

LEVEL = 9
WINDOW_LOG = 27
"""Largest window of a compressed frame that is read, 128 MB: a frame may ask for 2 GB."""

BLOCK_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 64 << 20

MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of Zstandard."""

Advance = Callable[[int], object]
"""Called with the number of bytes that were done."""


def write_archive(
    target: Path, manifest: Manifest, sources: Mapping[str, "Path | bytes"], advance: Advance
) -> None:
    """Write a pack; a file that exists is not replaced, and a failure leaves none.

    Args:
        target: The new file.
        manifest: What is in it.
        sources: Content, or file with the content, of each place.
        advance: Follows it.

    Raises:
        PackError: The file exists, or a source has changed since it was hashed.
        OSError: It cannot be written.
    """
    if target.exists():
        raise PackError(f"{target}: must be a new file, got one that exists; choose another name")
    partial = target.with_name(f"{target.name}.partial")
    try:
        with (
            zstd.open(partial, "wb", level=LEVEL) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
        ):
            content = msgspec.json.format(msgspec.json.encode(manifest))
            tar.addfile(_header(MANIFEST, len(content)), io.BytesIO(content))
            for file in manifest.files:
                with _opened(sources[file.place]) as opened:
                    hashed = _Hashed(opened, file, advance)
                    tar.addfile(_header(file.place, file.bytes), hashed)
                    hashed.check()
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _opened(source: "Path | bytes") -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def _header(place: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(place)
    info.size = size
    return info


class _Hashed(io.RawIOBase):
    """Reads a file, and checks that it is the one of the manifest."""

    def __init__(self, opened: IO[bytes], file: PackedFile, advance: Advance) -> None:
        self._opened, self._file, self._advance = opened, file, advance
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._opened.read(size)
        self._digest.update(block)
        self._advance(len(block))
        return block

    def check(self) -> None:
        if self._digest.hexdigest() != self._file.sha256 or self._opened.read(1):
            raise PackError(
                f"{self._file.place}: must not change while it is packed, got another content; "
                "pack again"
            )


def sha256_of(source: "Path | bytes") -> tuple[int, str]:
    """Return size and hash of a file or a content."""
    digest, size = hashlib.sha256(), 0
    with _opened(source) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


class PackReader:
    """Reads a pack from its begin to its end, once.

    Args:
        path: The file, for messages.
        stream: Its decompressed bytes.
    """

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path, self._stream = path, stream
        first = self._next()
        if first is None or first.name != MANIFEST or first.size > MAX_MANIFEST_BYTES:
            raise PackError(
                f"{path}: must be a pack, which begins with {MANIFEST}, got another archive; "
                "`fairbed pack` writes one"
            )
        content = b"".join(self._blocks(first.size))
        self.manifest = read_manifest(content, str(path))
        """What is in it."""

    def files(self) -> Iterator[tuple[PackedFile, Iterator[bytes]]]:
        """Yield each file with its content in blocks, which must be read before the next file.

        Raises:
            PackError: The archive is cut or has other files; or the content of one is another.
        """
        waiting = {file.place: file for file in self.manifest.files}
        while (info := self._next()) is not None:
            file = waiting.pop(info.name, None)
            if file is None or file.bytes != info.size:
                raise PackError(
                    f"{self._path}: must have the files of its {MANIFEST}, each once, got "
                    f"{info.name!r} of {info.size} bytes"
                )
            yield file, self._checked(file)
        if waiting:
            raise PackError(
                f"{self._path}: must have the files of its {MANIFEST}, got none at "
                f"{next(iter(waiting))!r}; copy the pack again"
            )

    def _checked(self, file: PackedFile) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for block in self._blocks(file.bytes):
            digest.update(block)
            yield block
        if digest.hexdigest() != file.sha256:
            raise PackError(
                f"{self._path}: {file.place} must have the hash of {MANIFEST}, got another "
                "content; copy the pack again"
            )

    def _next(self) -> tarfile.TarInfo | None:
        """Return the header of the next file; None at the end."""
        block = self._read(tarfile.BLOCKSIZE)
        if not any(block):
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.TarError as exc:
            raise PackError(f"{self._path}: must be a tar archive, got {exc}") from exc
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.size < 0:
            raise PackError(
                f"{self._path}: must have regular files only, got {info.name!r} of type "
                f"{info.type!r}; unpack it with care: it is not written by Fairbed"
            )
        return info

    def _blocks(self, size: int) -> Iterator[bytes]:
        left = size
        while left:
            block = self._read(min(left, BLOCK_BYTES))
            left -= len(block)
            yield block
        if rest := -size % tarfile.BLOCKSIZE:
            self._read(rest)

    def _read(self, size: int) -> bytes:
        """Return so many bytes."""
        try:
            block = self._stream.read(size)
        except (zstd.ZstdError, EOFError) as exc:
            raise PackError(
                f"{self._path}: must be a whole Zstandard file, got {exc}; copy the pack again"
            ) from exc
        if len(block) != size:
            raise PackError(f"{self._path}: must be a whole pack, got a part; copy it again")
        return block


@contextmanager
def opened_pack(path: Path) -> Iterator[PackReader]:
    """Open a pack for reading.

    Raises:
        PackError: It is none.
        OSError: It cannot be read.
    """
    try:
        file = path.open("rb")
    except OSError as exc:
        raise PackError(f"{path}: must be a pack, got: {exc.strerror}") from exc
    with file:
        if file.read(len(MAGIC)) != MAGIC:
            raise PackError(f"{path}: must be a pack, got another file; `fairbed pack` writes one")
        file.seek(0)
        limits: dict[int, int] = {zstd.DecompressionParameter.window_log_max: WINDOW_LOG}
        with zstd.open(file, "rb", options=limits) as stream:
            yield PackReader(path, io.BufferedReader(stream))


def unpack_archive(reader: PackReader, folder: Path, advance: Advance) -> None:
    """Write the files of a pack into a new folder; a failure leaves no folder.

    Args:
        reader: The pack.
        folder: Must not exist.
        advance: Follows it.

    Raises:
        PackError: The folder exists, or the pack is damaged or names a file inside another one.
        OSError: A file cannot be written.
    """
    if folder.exists():
        raise PackError(
            f"{folder}: must be a new folder, got one that exists; name another by --to"
        )
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(parents=True)
    try:
        content = msgspec.json.format(msgspec.json.encode(reader.manifest))
        (partial / MANIFEST).write_bytes(content)
        for file, blocks in reader.files():
            path = partial.joinpath(*file.place.split("/"))
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                target = path.open("xb")
            except (FileExistsError, NotADirectoryError) as exc:
                raise PackError(
                    f"{file.place}: must be a file of its own, got a place that is in use"
                ) from exc
            with target:
                for block in blocks:
                    target.write(block)
                    advance(len(block))
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
