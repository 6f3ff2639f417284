"""Available rows, and draws from them, for the selectors.

Every draw takes one number for each row of the fleet, available or not. A device that is absent in
one arm of a comparison, and not in another, therefore changes no draw of the other devices.
"""

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates


def available_rows(
    candidates: Candidates, k: int, shuffled_by: np.random.Generator | None = None
) -> Ints:
    """Return the rows that are available, shape (<= N,): ascending, or in random order.

    Raises:
        ValueError: `k` is negative.
    """
    if k < 0:
        raise ValueError(f"selection: k must be >= 0, got {k}; raise per_round")
    if shuffled_by is not None:
        return shuffled_rows(shuffled_by, candidates.is_available)
    return np.flatnonzero(candidates.is_available).astype(np.int64)


def shuffled_rows(rng: np.random.Generator, is_candidate: Bools) -> Ints:
    """Return the rows of the candidates in random order, shape (<= N,).

    The order of two candidates does not depend on which other rows are candidates.

    Args:
        rng: Random number generator.
        is_candidate: Shape (N,).
    """
    order = rng.permutation(len(is_candidate))
    rows: Ints = order[is_candidate[order]]
    return rows


def weighted_draw(rng: np.random.Generator, weights: Floats | Ints, rows: Ints, size: int) -> Ints:
    """Draw rows without replacement, each in proportion to its weight.

        keys_i = E_i / w_i,  E_i exponential;  the `size` smallest keys

    E_i depends on the row i only, not on which other rows may be drawn.

    Args:
        rng: Random number generator.
        weights: Of the whole fleet, at least 0, shape (N,); rows of weight 0 are drawn last,
            uniformly.
        rows: The rows that may be drawn, shape (M,).
        size: Number of rows to draw; all M if it is larger.

    Returns:
        Rows in the order drawn, shape (<= size,).

    Source:
        Efraimidis & Spirakis, Information Processing Letters 97 (2006), in logarithms.
    """
    waits = rng.exponential(size=len(weights))[rows]
    weights = weights[rows].astype(np.float64)
    has_weight = weights > 0.0
    keys = waits / np.where(has_weight, weights, 1.0)
    heavy, light = np.flatnonzero(has_weight), np.flatnonzero(~has_weight)
    first = heavy[smallest(keys[heavy], size)]
    at = np.concatenate([first, light[smallest(keys[light], size - len(first))]])
    drawn: Ints = rows[at]
    return drawn


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
