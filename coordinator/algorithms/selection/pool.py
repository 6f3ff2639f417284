"""What a selector may choose from."""

import numpy as np

from coordinator.algorithms.arrays import Floats, Ints
from coordinator.algorithms.selection.base import Candidates


def available_rows(candidates: Candidates, k: int) -> Ints:
    """Return the rows that are available, ascending, shape (<= N,).

    Raises:
        ValueError: `k` is negative.
    """
    if k < 0:
        raise ValueError(f"selection: k must be >= 0, got {k}; ask for at least no device")
    return np.flatnonzero(candidates.is_available).astype(np.int64)


def require_finite(name: str, column: Floats, rows: Ints) -> Floats:
    """Return `column[rows]`, shape (len(rows),), or refuse it.

    Raises:
        ValueError: A chosen value is NaN or infinite; rows that are not chosen may be.
    """
    chosen = column[rows]
    if not np.isfinite(chosen).all():
        at = int(np.flatnonzero(~np.isfinite(chosen))[0])
        raise ValueError(
            f"selection: {name} of an available device must be finite, got {chosen[at]} "
            f"at row {rows[at]}; clamp its context before predicting"
        )
    return chosen
