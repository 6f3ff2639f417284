"""Training examples by device and place, read from the one copy that the data set is."""

import numpy as np

from coordinator.algorithms.arrays import Ints, Vector
from testbed.shards import FleetData
from wire.shard import make_shard

PIXEL_MAX = np.float32(255.0)
"""uint8 stands for pixels, and a device divides by this (`wire.shard`)."""


class Shards:
    """The training data of a fleet.

    Args:
        data: Who holds what.
        x_shape: Shape of one example, as the model takes it.
    """

    def __init__(self, data: FleetData, x_shape: tuple[int, ...]) -> None:
        self._data = data
        self._x_shape = x_shape
        self._flat = data.dataset.x.reshape(data.dataset.n, -1)
        self.n_k: Ints = np.array([len(rows) for rows in data.train_rows], dtype=np.int64)
        """Training examples of each device, shape (N,)."""

    def rows(self, device: int) -> Ints:
        """Return the rows of a device's examples in the data set, shape (n_k,)."""
        return self._data.train_rows[device]

    def take(self, rows: Ints) -> tuple[Vector, Ints]:
        """Return x, float32, shape (*rows.shape, features), and y, shape (*rows.shape)."""
        found = np.take(self._flat, rows, axis=0)
        x: Vector = found.astype(np.float32, copy=False)
        if found.dtype == np.uint8:
            x /= PIXEL_MAX
        return x, np.take(self._data.dataset.y, rows)

    def whole(self, device: int) -> tuple[Vector | Ints, Ints]:
        """Return x, shape (n_k, *x_shape), and y, shape (n_k,), as the device itself has them."""
        rows, dataset = self._data.train_rows[device], self._data.dataset
        x, y = make_shard(dataset.x[rows], dataset.y[rows]).arrays()
        return x.reshape((len(y), *self._x_shape)), y
