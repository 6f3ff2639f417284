"""Available rows, and draws from them, for the selectors."""

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates


def available_rows(candidates: Candidates, k: int) -> Ints:
    """Return the rows that are available, ascending, shape (<= N,).

    Raises:
        ValueError: `k` is negative.
    """
    if k < 0:
        raise ValueError(f"selection: k must be >= 0, got {k}; raise per_round")
    return np.flatnonzero(candidates.is_available).astype(np.int64)


def weighted_draw(rng: np.random.Generator, weights: Floats | Ints, size: int) -> Ints:
    """Draw positions without replacement, each in proportion to its weight.

        keys_i = E_i / w_i,  E_i exponential;  the `size` smallest keys

    Args:
        rng: Random number generator.
        weights: At least 0, shape (N,); positions of weight 0 are drawn last, uniformly.
        size: Number of positions; all N if it is larger.

    Returns:
        Positions in the order drawn, shape (size,).

    Source:
        Efraimidis & Spirakis, Information Processing Letters 97 (2006), in logarithms.
    """
    weights = weights.astype(np.float64)
    waits = rng.exponential(size=len(weights))
    has_weight = weights > 0.0
    keys = waits / np.where(has_weight, weights, 1.0)
    heavy, light = np.flatnonzero(has_weight), np.flatnonzero(~has_weight)
    first = heavy[smallest(keys[heavy], size)]
    return np.concatenate([first, light[smallest(keys[light], size - len(first))]])


def smallest(values: Floats, k: int) -> Ints:
    """Return the positions of the k smallest values, smallest first, shape (min(k, N),): O(N).

    A tie goes to the smaller position, as in a stable sort. Ties of the smallest value are handled
    separately: all devices never measured are equal, and `np.partition` takes ten times as long if
    most values are.

    Args:
        values: Shape (N,), not NaN.
        k: Number of positions, at least 0.
    """
    if k <= 0:
        return np.zeros(0, dtype=np.int64)
    if k < len(values):
        least = values.min()
        lowest = np.flatnonzero(values == least)
        rest = k - len(lowest)
        if rest <= 0:
            return lowest[:k].astype(np.int64)
        last = np.partition(values[values > least], rest - 1)[rest - 1]
        below, equal = np.flatnonzero(values < last), np.flatnonzero(values == last)
        chosen = np.concatenate([below, equal[: k - len(below)]])
    else:
        chosen = np.arange(len(values), dtype=np.int64)
    return chosen[np.argsort(values[chosen], kind="stable")].astype(np.int64)


def require_finite(name: str, column: Floats, rows: Ints) -> Floats:
    """Return `column[rows]`, shape (len(rows),), and check that it is finite.

    Raises:
        ValueError: A value is NaN or infinite; values outside `rows` may be.
    """
    chosen = column[rows]
    if not np.isfinite(chosen).all():
        at = int(np.flatnonzero(~np.isfinite(chosen))[0])
        raise ValueError(
            f"selection: {name} of an available device must be finite, got {chosen[at]} "
            f"at row {rows[at]}; clamp its context before predicting"
        )
    return chosen
