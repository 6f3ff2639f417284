"""The personal model v_k of this device, which never leaves it (Ditto).

The file outlasts restarts and power loss: it is written under another name, flushed to the disk and
renamed, and begins with the sha256 of the rest. A device keeps one personal model, of one task and
one run; it begins again in another one, and after a loss.

Source: Li et al., ICML 2021, Algorithm 1 (arXiv:2012.04221).
"""

import hashlib
import logging
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fairbed.wire.codec import unpack
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import RoundId, Sha256
from fairbed.wire.tensors import BYTES_PER_VALUE, vector_from_bytes, vector_to_bytes

_log = logging.getLogger(__name__)

FILE = "personal-model"
SHA256_BYTES = 32
LENGTH = "<I"
"""Length of the header, in the file."""


class _Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Description of the model in the file, between the checksum and the values."""

    task: Sha256
    run: str
    round: RoundId


_DECODER = msgspec.msgpack.Decoder(_Header)


@dataclass(frozen=True, slots=True)
class PersonalModel:
    """A personal model."""

    task: bytes
    """Hash of the task."""
    run: str
    round: int
    """Last round in which it was trained."""
    vector: NDArray[np.float32]
    """`[params | buffers]`, shape (n_values,); not changed."""


class PersonalStore:
    """Keeps the personal model in a file; all methods block on the disk.

    Args:
        folder: Folder of the file, which may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._unsaved: PersonalModel | None = None
        """The model while the disk does not take it."""

    def load(self, task: bytes, run: str, n_values: int) -> PersonalModel | None:
        """Return the personal model of a task and run; None if there is none, with one log line."""
        model = self._unsaved or self._read()
        if model is None:
            return None
        if (model.task, model.run) != (task, run) or len(model.vector) != n_values:
            _log.info("personal model: belongs to run %s; this run begins a new one", model.run)
            return None
        return model

    def save(self, model: PersonalModel) -> bool:
        """Keep a model; return whether it is on the disk.

        If the disk is full or cannot be written, the model is kept in memory, with one log line.
        """
        header = _Header(task=model.task, run=model.run, round=model.round)
        description = msgspec.msgpack.encode(header)
        parts = (struct.pack(LENGTH, len(description)), description, vector_to_bytes(model.vector))
        try:
            self._write(parts)
        except OSError as exc:
            _log.warning(
                "personal model: must be written to %s, got: %s; training goes on, but a restart "
                "of this agent loses it; free disk space",
                self._path,
                exc.strerror or exc,
            )
            self._unsaved = model
            return False
        self._unsaved = None
        return True

    def _read(self) -> PersonalModel | None:
        try:
            content = memoryview(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as exc:
            _log.warning(
                "personal model: cannot be read: %s; it begins again",
                exc.strerror or exc,
            )
            return None
        checksum, rest = content[:SHA256_BYTES], content[SHA256_BYTES:]
        try:
            if hashlib.sha256(rest).digest() != checksum:
                raise DecodeError("personal model: its checksum must match, got another")
            start = struct.calcsize(LENGTH)
            end = start + struct.unpack(LENGTH, rest[:start])[0]
            header, values = unpack(_DECODER, rest[start:end], "personal model"), rest[end:]
            vector = vector_from_bytes(values, len(values) // BYTES_PER_VALUE)
        except DecodeError as exc:
            _log.warning("%s; %s: it begins again", exc, self._path)
            return None
        return PersonalModel(header.task, header.run, header.round, vector)

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write the checksum of some parts, and the parts, without a copy of them.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        checksum = hashlib.sha256()
        for part in parts:
            checksum.update(part)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_name(f"{FILE}.{os.getpid()}.part")
        try:
            with scratch.open("wb") as file:
                file.writelines([checksum.digest(), *parts])
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self._path)
        finally:
            scratch.unlink(missing_ok=True)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too, must outlast a power loss
        finally:
            os.close(folder)
