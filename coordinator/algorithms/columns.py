"""Per-device columns that grow as devices join."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Ints

Scalar = TypeVar("Scalar", bound=np.generic)


def grown(column: NDArray[Scalar], n: int) -> NDArray[Scalar]:
    """Return the column with at least `n` rows, shape (max(n, N), ...); added rows are zero.

    Args:
        column: One row a device, shape (N, ...); returned as it is when it is long enough.
        n: Rows that are needed.
    """
    missing = n - len(column)
    if missing <= 0:
        return column
    added = np.zeros((missing, *column.shape[1:]), dtype=column.dtype)
    return np.concatenate([column, added])


class RowIndex:
    """Where what is learned of a row is kept, for rows of which anything was ever learned.

    Of a million devices only those that were ever measured take more room than one number.
    """

    def __init__(self) -> None:
        self.rows: Ints = np.zeros(0, dtype=np.int64)
        """Of each place, in the order of first observations, shape (M,)."""
        self._place: Ints = np.zeros(0, dtype=np.int64)
        """1 + the place of a row, or 0 for one that has none, shape (N,)."""

    def known(self, n: int) -> tuple[Ints | slice, Ints]:
        """Return the places and the rows of those of the first `n` rows that have one."""
        if len(self._place) <= n:
            return slice(None), self.rows
        places = np.flatnonzero(self.rows < n)
        return places, self.rows[places]

    def of(self, rows: Ints) -> Ints:
        """Return the places of rows, at least one of them, same shape; new rows get new ones."""
        self._place = grown(self._place, int(rows.max()) + 1)
        unknown = rows[self._place[rows] == 0]
        if unknown.size:
            new, known = np.unique(unknown), len(self.rows)
            self.rows = np.concatenate([self.rows, new])
            self._place[new] = 1 + np.arange(known, len(self.rows))
        return self._place[rows] - 1
