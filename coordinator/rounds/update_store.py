"""Models on disk instead of in memory, for rules that must see a whole round at once."""

import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.wire.tensors import vector_to_bytes


class UpdateStore:
    """The models of one round in a file without a name, which no crash leaves behind.

    The file is written, not mapped, while models arrive, so that they count as cache of the
    system and not as memory of this process; reading maps it.
    """

    def __init__(self, folder: Path, n_values: int) -> None:
        """Make the file.

        Raises:
            OSError: The folder cannot be written.
        """
        self._n_values = n_values
        self._count = 0
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - lives as long as we do
        weakref.finalize(self, self._file.close)

    def append(self, model: Vector) -> None:
        """Write a model, shape (n_values,), to the end.

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
