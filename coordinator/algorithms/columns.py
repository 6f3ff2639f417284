"""Per-device columns that grow as devices join."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

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
