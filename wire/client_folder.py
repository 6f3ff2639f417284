"""The hash of a folder with the code of a client: equal files, equal hashes, on every machine."""

import hashlib
import os
from pathlib import Path

MAX_FILES, MAX_BYTES = 10_000, 1 << 28
"""Bounds of a folder of code; data of a device belong into another folder."""

LEFT_OUT = frozenset({"__pycache__", "comparisons", "node_modules", "runs", "site-packages"})
"""Folders that are no code of the client, beside hidden ones; runs and comparisons are results."""


class ClientFolderError(Exception):
    """A folder of a client cannot be used; the message is one line."""


def files_of(folder: Path) -> list[Path]:
    """Return the files of a client, relative to its folder, sorted by their parts.

    Hidden files and folders, caches and links to other folders are left out.

    Raises:
        ClientFolderError: There is no such folder, or it has too many files.
    """
    if not folder.is_dir():
        raise ClientFolderError(f"{folder}: must be a folder with the code of a client")
    found = list[Path]()
    for path, folders, files in os.walk(folder):
        folders[:] = [x for x in folders if x not in LEFT_OUT and not x.startswith(".")]
        names = (x for x in files if not x.startswith(".") and not x.endswith((".pyc", ".pyo")))
        found += [Path(path, name).relative_to(folder) for name in names]
        if len(found) > MAX_FILES:
            raise ClientFolderError(
                f"{folder}: must have at most {MAX_FILES} files; keep data in another folder"
            )
    return sorted(found, key=lambda path: path.parts)


def is_code(path: Path, folder: Path) -> bool:
    """Return whether what is written at a path would be code of the client of a folder."""
    inside = os.path.relpath(os.path.realpath(path), os.path.realpath(folder)).split(os.sep)
    if inside[0] == os.pardir:
        return False
    return not any(part in LEFT_OUT or part.startswith(".") for part in inside if part != ".")


def folder_sha256(folder: Path) -> bytes:
    """Return the hash of the names and contents of a client's files.

    Raises:
        ClientFolderError: The folder cannot be read, or has too many files or bytes.
    """
    total, digest = 0, hashlib.sha256()
    for path in files_of(folder):
        try:
            content = (folder / path).read_bytes()
        except OSError as exc:
            raise ClientFolderError(f"{folder / path}: must be readable, got {exc}") from exc
        total += len(content)
        if total > MAX_BYTES:
            raise ClientFolderError(
                f"{folder}: must have at most {MAX_BYTES:,} bytes; keep data in another folder"
            )
        name = path.as_posix().encode()
        digest.update(b"%d %s %d " % (len(name), name, len(content)))
        digest.update(content)
    return digest.digest()
