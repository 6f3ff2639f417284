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


def weighted_draw(rng: np.random.Generator, weights: Floats | Ints, size: int) -> Ints:
    """Draw positions one after the other without replacement, each in proportion to its weight.

        keys_i = E_i / w_i,  E_i exponential;  the `size` smallest keys

    Args:
        rng: Source of chance.
        weights: At least 0, shape (N,); who has none comes last, all alike.
        size: How many, at most N.

    Returns:
        Positions in the order drawn, shape (size,).

    Source:
        Efraimidis & Spirakis, Information Processing Letters 97 (2006), in logarithms.
    """
    weights = weights.astype(np.float64)
    waits = rng.exponential(size=len(weights))
    has_weight = weights > 0.0
    keys = waits / np.where(has_weight, weights, 1.0)
    return np.lexsort((keys, ~has_weight))[:size].astype(np.int64)


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
