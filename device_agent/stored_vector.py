"""What never leaves this device: the personal model, vectors of a local rule, a client's state.

A file outlasts restarts and power loss: it is written under another name, flushed to the disk and
renamed, and begins with the sha256 of the rest. It is of one task and one run; the
device begins again in another one, and after a loss.
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

from fairbed.device_agent.host import Meter
from fairbed.wire.artifact import TaskSpec, initial_vector
from fairbed.wire.codec import unpack
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import LocalValues, RoundId, Sha256, Train
from fairbed.wire.tensors import BYTES_PER_VALUE, vector_from_bytes, vector_to_bytes, with_values

_log = logging.getLogger(__name__)

PERSONAL = "personal model"
"""The personal model v_k, `[params | buffers]`, shape (n_values,) (Ditto)."""
KEPT = "local rule vectors"
"""Vectors that a local rule keeps, before the round and after it: first all of them before, then
all after, each of shape (n_params,)."""
LOCAL = "local values"
"""The values of the model that this device keeps (`wire.tensors.Layout.local`), before the round
and after it, each of shape (n,)."""
OPTIMISER = "optimiser state"
"""The state of the optimiser (`device_agent.optimiser`), before the round and after it, each of
shape (n_state,)."""
SHA256_BYTES = 32
LENGTH = "<I"
"""Length of the header, in the file."""


class _Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Description of the vector in the file, between the checksum and the values."""

    task: Sha256
    run: str
    round: RoundId


_DECODER = msgspec.msgpack.Decoder(_Header)


def file_of(noun: str) -> str:
    """Return the name of the file of a vector."""
    return noun.replace(" ", "-")


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Bytes in a file."""

    task: bytes
    """Hash of the task."""
    run: str
    round: int
    """Last round in which they changed."""
    content: bytes | memoryview


@dataclass(frozen=True, slots=True)
class StoredVector:
    """A vector in a file."""

    task: bytes
    """Hash of the task."""
    run: str
    round: int
    """Last round in which it changed."""
    vector: NDArray[np.float32]
    """Shape (n,); not to be changed."""


class ByteStore:
    """Keeps bytes in a file; all methods block on the disk.

    Args:
        folder: Folder of the file, which may not exist yet.
        noun: What the bytes are; it names the file.
    """

    def __init__(self, folder: Path, noun: str) -> None:
        self._noun = noun
        self._path = folder / file_of(noun)
        self._unsaved: StoredBytes | None = None
        """The bytes while the disk does not take them."""

    def load_bytes(self, task: bytes, run: str, size: int | None = None) -> StoredBytes | None:
        """Return the bytes of a task and run, and of a size if one is given.

        None if there are none, with one log line if there are others.
        """
        found = self._unsaved or self._read()
        if found is None:
            return None
        if (found.task, found.run) == (task, run) and size not in (None, len(found.content)):
            _log.warning(
                "%s: must have %d bytes for this model and its settings, got %d of another vector; "
                "it begins again",
                self._noun,
                size,
                len(found.content),
            )
            return None
        if (found.task, found.run) != (task, run):
            _log.info("%s: belongs to run %s; this run begins a new one", self._noun, found.run)
            return None
        return found

    def save_bytes(self, stored: StoredBytes) -> bool:
        """Keep bytes; return whether they are on the disk.

        If the disk is full or cannot be written, they are kept in memory, with one log line.
        """
        header = _Header(task=stored.task, run=stored.run, round=stored.round)
        description = msgspec.msgpack.encode(header)
        parts = (struct.pack(LENGTH, len(description)), description, stored.content)
        try:
            self._write(parts)
        except OSError as exc:
            _log.warning(
                "%s: must be written to %s, got: %s; training goes on, but a restart of this agent "
                "loses it; free disk space",
                self._noun,
                self._path,
                exc.strerror or exc,
            )
            self._unsaved = stored
            return False
        self._unsaved = None
        return True

    def _read(self) -> StoredBytes | None:
        try:
            content = memoryview(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as exc:
            _log.warning(
                "%s: cannot be read: %s; it begins again",
                self._noun,
                exc.strerror or exc,
            )
            return None
        checksum, rest = content[:SHA256_BYTES], content[SHA256_BYTES:]
        try:
            if hashlib.sha256(rest).digest() != checksum:
                raise DecodeError(f"{self._noun}: its checksum must match, got another")
            start = struct.calcsize(LENGTH)
            if len(rest) < start:
                raise DecodeError(f"{self._noun}: must have a header, got {len(rest)} bytes")
            end = start + struct.unpack(LENGTH, rest[:start])[0]
            header, values = unpack(_DECODER, rest[start:end], self._noun), rest[end:]
            self._check(values)
        except DecodeError as exc:
            _log.warning("%s; %s: it begins again", exc, self._path)
            return None
        return StoredBytes(header.task, header.run, header.round, values)

    def _check(self, content: memoryview) -> None:
        """Check bytes that were read.

        Raises:
            DecodeError: They are not what this store keeps.
        """

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write the checksum of some parts, and the parts, without a copy of them.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        checksum = hashlib.sha256()
        for part in parts:
            checksum.update(part)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
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


class VectorStore(ByteStore):
    """Keeps a vector in a file; all methods block on the disk."""

    def load(self, task: bytes, run: str, size: int) -> StoredVector | None:
        """Return the vector of a task and run, shape (size,).

        None if there is none, with one log line if there is another one.
        """
        found = self.load_bytes(task, run, size * BYTES_PER_VALUE)
        if found is None:
            return None
        return StoredVector(found.task, found.run, found.round, _values(found.content))

    def save(self, stored: StoredVector) -> bool:
        """Keep a vector; return whether it is on the disk, as `save_bytes` does."""
        content = vector_to_bytes(stored.vector)
        return self.save_bytes(StoredBytes(stored.task, stored.run, stored.round, content))

    def _check(self, content: memoryview) -> None:
        _values(content)


def _values(content: bytes | memoryview) -> NDArray[np.float32]:
    return vector_from_bytes(content, len(content) // BYTES_PER_VALUE)


class LocalValueStore:
    """The values of a model that this device keeps for itself (`wire.tensors.Layout.local`).

    Args:
        state: Folder of the file.
    """

    def __init__(self, state: Path) -> None:
        self._store = VectorStore(state, LOCAL)

    def put_into(
        self,
        received: NDArray[np.float32],
        spec: TaskSpec,
        task: bytes,
        values: LocalValues,
        meter: Meter,
    ) -> NDArray[np.float32]:
        """Return a model, shape (n_values,), with the values that this device keeps.

        Those after the last round count only if its update was merged, else those before it.
        """
        local, first, stored = spec.layout.local, values.merged is None, None
        if not first:
            stored = self._store.load(task, values.run, 2 * local.size)
        if stored is None:
            if not first:
                _log.warning("local values: lost; they begin at those of the model before round 1")
            if values.init_seed is None:
                return received
            return with_values(received, local, initial_vector(spec, values.init_seed)[local])
        meter.read(stored.vector.nbytes)
        before, after = stored.vector.reshape(2, local.size)
        return with_values(received, local, after if stored.round == values.merged else before)

    def keep(
        self,
        task: bytes,
        values: LocalValues,
        round_id: int,
        before: NDArray[np.float32],
        after: NDArray[np.float32],
    ) -> None:
        """Save the values that this device keeps, from before the round and after it."""
        both = np.concatenate([before, after])
        self._store.save(StoredVector(task, values.run, round_id, both))


class OptimiserStore:
    """The state of the optimiser that this device keeps from round to round.

    Args:
        state: Folder of the file.
    """

    def __init__(self, state: Path) -> None:
        self._store = VectorStore(state, OPTIMISER)

    def load(
        self, task: bytes, train: Train, size: int, meter: Meter
    ) -> NDArray[np.float32] | None:
        """Return the state at which a round begins, shape (size,); None: at zero.

        That after the last round counts only if its update was merged, else the one before it.
        """
        kept = train.hyperparameters.optimiser
        if kept is None or kept.merged is None:
            return None
        stored = self._store.load(task, kept.run, 2 * size)
        if stored is None:
            _log.warning("optimiser state: lost; it begins at zero")
            return None
        meter.read(stored.vector.nbytes)
        before, after = stored.vector.reshape(2, size)
        valid: NDArray[np.float32] = after if stored.round == kept.merged else before
        return valid

    def keep(
        self,
        task: bytes,
        train: Train,
        before: NDArray[np.float32] | None,
        after: NDArray[np.float32],
    ) -> None:
        """Save the state from before the round, None for zero, and from after it."""
        kept = train.hyperparameters.optimiser
        assert kept is not None, "the optimiser keeps a state"
        both = np.concatenate([np.zeros_like(after) if before is None else before, after])
        self._store.save(StoredVector(task, kept.run, train.round, both))
