"""Models on disk instead of in memory, for rules that must see a whole round at once."""

import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.wire.tensors import vector_to_bytes


class UpdateStore:
    """The models of one round in an unnamed temporary file, which a crash cannot leave behind.

    While models arrive the file is written, not mapped: they count as page cache of the system and
    not as memory of this process. Reading maps the file.
    """

    def __init__(self, folder: Path, n_values: int) -> None:
        """Create the file.

        Raises:
            OSError: The folder cannot be written.
        """
        self._n_values = n_values
        self._count = 0
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as this object
        weakref.finalize(self, self._file.close)

    def append(self, model: Vector) -> None:
        """Append a model, shape (n_values,).

        Raises:
            OSError: The disk is full.
        """
        self._file.write(vector_to_bytes(model))
        self._count += 1

    def all(self) -> Sequence[Vector]:
        """Return the models in their order, each a read-only view of the file."""
        if not self._count:
            return []
        self._file.flush()
        shape = (self._count, self._n_values)
        return list(np.memmap(self._file, dtype=np.float32, mode="r", shape=shape))
