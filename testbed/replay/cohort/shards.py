"""Training examples by device, read from the one copy in the data set."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.wire.evaluation import Targets, positions_of
from fairbed.wire.shard import make_shard

PIXEL_MAX = np.float32(255.0)
"""uint8 values are pixels, which a device divides by this (`wire.shard`)."""


class Examples:
    """Examples as rows of numbers, and the rows of each device.

    Args:
        x: Examples of all devices, float32, uint8 or int64, shape (n, features).
        y: Targets, shape (n, *y_shape).
        train_rows: Rows of each device, shape (n_k,).
    """

    def __init__(self, x: NDArray[Any], y: Targets, train_rows: Sequence[Ints]) -> None:
        self.x, self.y, self.train_rows = x, y, train_rows

    def rows(self, device: int) -> Ints:
        """Return the rows of a device's examples in the data set, shape (n_k,)."""
        return self.train_rows[device]

    def take(self, rows: Ints) -> tuple[NDArray[Any], Targets]:
        """Return x, shape (*rows.shape, features), and y, shape (*rows.shape, *y_shape).

        x is float32, or int64 for tokens.
        """
        found = np.take(self.x, rows, axis=0)
        if found.dtype.kind == "i":
            return found.astype(np.int64, copy=False), self.y[rows]
        x: Vector = found.astype(np.float32, copy=False)
        if found.dtype == np.uint8:
            x /= PIXEL_MAX
        return x, self.y[rows]


class DividedData(Protocol):
    """A data set and the training examples of each device, such as `FleetData`."""

    @property
    def dataset(self) -> Dataset:
        """All examples."""
        ...

    @property
    def train_rows(self) -> tuple[Ints, ...]:
        """Rows of the data set that each device trains on."""
        ...


class Shards(Examples):
    """The training data of a fleet.

    Args:
        data: Data set and its partition.
        x_shape: Shape of one example, as the model takes it.
    """

    def __init__(self, data: DividedData, x_shape: tuple[int, ...]) -> None:
        dataset = data.dataset
        super().__init__(dataset.x.reshape(dataset.n, -1), dataset.y, data.train_rows)
        self._data = data
        self._x_shape = x_shape
        self.n_k: Ints = np.array([len(rows) for rows in data.train_rows], dtype=np.int64)
        """Training examples of each device, shape (N,)."""

    @property
    def positions(self) -> Ints | None:
        """Positions of the training examples of each device that have a target, shape (N,).

        None with one each.
        """
        if self.y.ndim == 1:
            return None
        counts = positions_of(self.y)
        return np.array([counts[rows].sum() for rows in self.train_rows], dtype=np.int64)

    def whole(self, device: int) -> tuple[Vector | Ints, Targets]:
        """Return x, shape (n_k, *x_shape), and y, shape (n_k, *y_shape), as on the device."""
        rows, dataset = self.train_rows[device], self._data.dataset
        x, y = make_shard(dataset.x[rows], dataset.y[rows]).arrays()
        return x.reshape((len(y), *self._x_shape)), y
