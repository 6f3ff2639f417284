"""Model files of a run, and states too large for the database: written completely or not at all.

A model file has one flat float32 vector, and the raw bytes of a client if it has any.
"""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.store.errors import StoreError
from fairbed.wire.tensors import vector_to_bytes

FOLDER = "models"
TENSOR = "vector"
"""Name of the vector in a file: `[params | buffers]`."""
RAW = "raw"
"""Name of the raw bytes, which only a client reads (`wire.records`)."""


def file_of(round_id: int) -> str:
    """Return the file of the model after a round, relative to the run folder."""
    return f"{FOLDER}/round-{round_id:05d}.safetensors"


def sha256_of(vector: Vector, raw: bytes = b"") -> str:
    """Return the hash of a model as it travels on the wire, the vector and its raw part, in hex."""
    digest = hashlib.sha256(vector_to_bytes(vector))
    digest.update(raw)
    return digest.hexdigest()


def save_model(folder: Path, round_id: int, vector: Vector, raw: bytes = b"") -> str:
    """Write a model durably and return its sha256; a crash leaves a whole file or no file.

    Raises:
        StoreError: The disk could not store it.
    """
    path = folder / file_of(round_id)
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(exist_ok=True)
        tensor = np.ascontiguousarray(vector, dtype="<f4")
        tensors: dict[str, NDArray[Any]] = {TENSOR: tensor}
        if raw:
            tensors[RAW] = np.frombuffer(raw, np.uint8)
        save_file(tensors, partial, metadata={"round": str(round_id)})
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)
    except (OSError, SafetensorError) as exc:
        partial.unlink(missing_ok=True)
        raise _write_error(path, "model", exc) from exc
    return sha256_of(tensor, raw)


def _write_error(path: Path, noun: str, exc: Exception) -> StoreError:
    """Return the error of a file that could not be written: what is wrong, and what to do."""
    folder = path.parent.parent
    if not folder.is_dir():
        return StoreError(
            f"{folder}: the folder of the run must exist, got a deleted one; the run is lost, "
            "start it again"
        )
    if isinstance(exc, OSError) and exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreError(f"{path}: must be writable, got {exc}; make the folder writable")
    return StoreError(f"{path}: the {noun} must fit on the disk, got {exc}; free space")


def load_model(folder: Path, file: str, sha256: str) -> tuple[Vector, bytes]:
    """Return the vector of a model file, shape (n_values,), and its raw part.

    Raises:
        StoreError: The file is missing, truncated, or not the vector that was saved.
    """
    path = folder / file
    try:
        tensors = load_file(path)
        vector: Vector = tensors[TENSOR]
        raw = tensors[RAW].tobytes() if RAW in tensors else b""
    except (OSError, KeyError, SafetensorError) as exc:
        raise StoreError(f"{path}: must be a readable model file, got {exc!r}") from exc
    if (found := sha256_of(vector, raw)) != sha256:
        raise StoreError(f"{path}: sha256 must be {sha256[:12]}, got {found[:12]}")
    return vector, raw


def state_file_of(round_id: int) -> str:
    """Return the file of the state after a round, relative to the run folder."""
    return f"{FOLDER}/round-{round_id:05d}.state"


def save_state(folder: Path, round_id: int, state: bytes) -> str:
    """Write a state durably and return its sha256; a crash leaves a whole file or no file.

    Raises:
        StoreError: The disk could not store it.
    """
    path = folder / state_file_of(round_id)
    partial = path.with_suffix(".partial-state")
    try:
        path.parent.mkdir(exist_ok=True)
        partial.write_bytes(state)
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)
    except OSError as exc:
        partial.unlink(missing_ok=True)
        raise _write_error(path, "state", exc) from exc
    return hashlib.sha256(state).hexdigest()


def load_state(folder: Path, round_id: int, sha256: str) -> bytes:
    """Return the bytes of a state file.

    Raises:
        StoreError: The file is missing, truncated, or not the state that was saved.
    """
    path = folder / state_file_of(round_id)
    try:
        state = path.read_bytes()
    except OSError as exc:
        raise StoreError(f"{path}: must be a readable state file, got {exc!r}") from exc
    if (found := hashlib.sha256(state).hexdigest()) != sha256:
        raise StoreError(f"{path}: sha256 must be {sha256[:12]}, got {found[:12]}")
    return state


def remove_models(folder: Path, keep: set[str]) -> None:
    """Delete all model and state files except `keep` (paths relative to the run folder)."""
    for name in os.listdir(folder / FOLDER):
        if name.startswith("round-") and f"{FOLDER}/{name}" not in keep:
            (folder / FOLDER / name).unlink(missing_ok=True)


def set_aside_models(folder: Path, after: int) -> None:
    """Rename the model and state files of rounds later than `after`, which are repeated.

    A round that is repeated writes them again; until then they must not count as closed rounds.
    """
    for name in os.listdir(folder / FOLDER) if (folder / FOLDER).is_dir() else ():
        number = name.partition("-")[2].partition(".")[0]
        if name.startswith("round-") and number.isdigit() and int(number) > after:
            path = folder / FOLDER / name
            path.replace(path.with_name(f"damaged-{name}"))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
