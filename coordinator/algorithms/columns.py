"""Per-device columns that grow as devices join."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Ints, distinct

Scalar = TypeVar("Scalar", bound=np.generic)


def grown(column: NDArray[Scalar], n: int) -> NDArray[Scalar]:
    """Return the column with at least `n` rows, shape (max(n, N), ...); added rows are zero.

    Args:
        column: One row per device, shape (N, ...); returned unchanged if it is long enough.
        n: Number of rows needed.
    """
    missing = n - len(column)
    if missing <= 0:
        return column
    added = np.zeros((missing, *column.shape[1:]), dtype=column.dtype)
    return np.concatenate([column, added])


def entries(column: NDArray[Scalar], rows: Ints | None, n: int) -> NDArray[Scalar]:
    """Return the entries of `rows`, or of the first `n` rows; those beyond the column are zero.

    Args:
        column: One row per device, shape (N, ...).
        rows: Rows of devices, shape (n,); None is the first `n`.
        n: Number of entries returned.
    """
    if rows is None:
        return grown(column, n)[:n]
    return grown(column, int(rows.max(initial=-1)) + 1)[rows]


class RowIndex:
    """Maps device rows to places in a compact array, for the rows that were ever observed.

    In a fleet of a million devices, one that was never measured takes the memory of one number.
    """

    def __init__(self) -> None:
        self.rows: Ints = np.zeros(0, dtype=np.int64)
        """Row of each place, in the order of first observations, shape (M,)."""
        self._place: Ints = np.zeros(0, dtype=np.int64)
        """1 + the place of each row, or 0 for a row without a place, shape (N,)."""

    @classmethod
    def restored(cls, rows: Ints) -> "RowIndex":
        """Return an index whose places have these rows, all different, shape (M,)."""
        index = cls()
        index._give_places(rows)
        return index

    def known(self, n: int) -> tuple[Ints | slice, Ints]:
        """Return places and rows, for those of the first `n` rows that have a place."""
        if len(self._place) <= n:
            return slice(None), self.rows
        places = np.flatnonzero(self.rows < n)
        return places, self.rows[places]

    def among(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return places of those of `rows` that have one, and where these are in `rows`."""
        place = entries(self._place, rows, len(rows))
        at = np.flatnonzero(place)
        return place[at] - 1, at

    def of(self, rows: Ints) -> Ints:
        """Return the places of `rows`, which is not empty, same shape; a new row gets a place."""
        self._place = grown(self._place, int(rows.max()) + 1)
        unknown = rows[self._place[rows] == 0]
        if unknown.size:
            self._give_places(distinct(unknown))
        return self._place[rows] - 1

    def _give_places(self, new: Ints) -> None:
        """Add rows without a place, shape (n,), in this order."""
        known = len(self.rows)
        self._place = grown(self._place, int(new.max(initial=-1)) + 1)
        self.rows = np.concatenate([self.rows, new])
        self._place[new] = 1 + np.arange(known, len(self.rows))
