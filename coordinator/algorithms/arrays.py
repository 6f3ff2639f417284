"""Type aliases of the arrays that algorithms take and return, and their different values."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Vector: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values of an array in their order, shape (m,).

    Without the counts `np.unique` imports `numpy.ma`, to look for a mask: 20 ms of a start.
    """
    return np.unique(values, return_counts=True)[0]
