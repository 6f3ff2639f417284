"""Defences against malicious updates: some leave out updates, some replace the weighted mean.

A filter treats the changes before any weighting: it leaves out updates or shortens them, and the
rule weights those that remain. A robust pseudo-gradient takes the place of the weighted mean.

Source:
    The defences that Li et al. compare, ICML 2021 (arXiv:2012.04221), section 4 and released code.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Changes, Treatment, Updates
from fairbed.coordinator.algorithms.aggregation.running_sum import total_of
from fairbed.coordinator.algorithms.arrays import Floats

BLOCK = 4096
"""Values of each change that are in memory together, so that 100 updates fit a cache of 4 MB."""

SMALLEST_DISTANCE = 1e-12
"""Distance from a point, relative to the largest, below which the point is the geometric median."""


def expected_malicious(m: int, share: float) -> int:
    """Return f, the expected number of malicious updates among m: m times their share, floored."""
    return math.floor(m * share + 1e-9)


class Clip:
    """Shortens each change to the median of the norms of the round."""

    needs_loss = False

    def kept(self, m: int) -> int:
        """Return m: every update counts."""
        return m

    def treat(self, updates: Updates) -> Treatment:
        """Keep all updates; scale those longer than the median norm down to it."""
        norms = np.sqrt(updates.squared_norms)
        limit = float(np.median(norms))
        scale = np.ones(len(norms))
        long = norms > limit
        scale[long] = limit / norms[long]
        return Treatment(np.ones(len(norms), dtype=np.bool_), scale)

    def problem(self, m: int) -> str:
        """Return nothing: a median of norms exists for every m."""
        return ""


class KNorm:
    """Leaves out the f changes with the largest norms."""

    needs_loss = False

    def __init__(self, malicious_share: float) -> None:
        self._share = malicious_share

    def kept(self, m: int) -> int:
        """Return m - f, at least 1."""
        return max(m - expected_malicious(m, self._share), 1)

    def treat(self, updates: Updates) -> Treatment:
        """Keep the m - f shortest changes; of equal norms the lower row."""
        m = len(updates)
        order = np.argsort(updates.squared_norms, kind="stable")
        return _keep(m, order[: self.kept(m)])

    def problem(self, m: int) -> str:
        """Return why no update would be left."""
        return _too_few(m, expected_malicious(m, self._share), 1, "f + 1", "k-norm")


class KLoss:
    """Keeps one update: the largest loss among the m - f smallest ones.

    It is the device that gains most of those presumed benign. A device that reports a loss near the
    others' is not found.
    """

    needs_loss = True

    def __init__(self, malicious_share: float) -> None:
        self._share = malicious_share

    def kept(self, m: int) -> int:
        """Return 1."""
        return 1

    def treat(self, updates: Updates) -> Treatment:
        """Keep the update with the (m - f)-th smallest loss; of equal losses the higher row."""
        m = len(updates)
        order = np.argsort(updates.losses, kind="stable")
        return _keep(m, order[[max(m - expected_malicious(m, self._share), 1) - 1]])

    def problem(self, m: int) -> str:
        """Return why no update would be left."""
        return _too_few(m, expected_malicious(m, self._share), 1, "f + 1", "k-loss")


class Krum:
    """Keeps the updates that are nearest to their neighbours.

    The score of an update is the sum of its squared distances to its m - f - 2 nearest others, at
    least one. Krum keeps the update with the lowest score, Multi-Krum the m - f lowest.

    Source:
        Blanchard et al., NeurIPS 2017 (arXiv:1703.02757), sections 3 and 4.
    """

    needs_loss = False

    def __init__(self, malicious_share: float, *, is_multiple: bool = False) -> None:
        self._share, self._is_multiple = malicious_share, is_multiple

    def kept(self, m: int) -> int:
        """Return 1, or m - f for Multi-Krum."""
        return max(m - expected_malicious(m, self._share), 1) if self._is_multiple else 1

    def treat(self, updates: Updates) -> Treatment:
        """Keep the updates with the lowest scores; of equal scores the lower row."""
        m, f = len(updates), expected_malicious(len(updates), self._share)
        assert updates.changes is not None, "krum needs the changes"
        scores = krum_scores(updates.changes.squared_distances(), f)
        order = np.argsort(scores, kind="stable")
        return _keep(m, order[: self.kept(m)])

    def problem(self, m: int) -> str:
        """Return why the theorem does not hold: it needs 2 f + 3 <= m."""
        f = expected_malicious(m, self._share)
        name = "multi-krum" if self._is_multiple else "krum"
        return _too_few(m, f, 2 * f + 3 - f, "2 f + 3", name)


def krum_scores(distances: Floats, f: int) -> Floats:
    """Return the score of each of m updates, shape (m,).

    Args:
        distances: Squared distances, shape (m, m).
        f: Expected number of malicious updates.
    """
    m = len(distances)
    nearest = max(m - f - 2, 1)
    others = np.sort(distances + np.diag(np.full(m, np.inf)), axis=1)[:, :nearest]
    scores: Floats = others.sum(axis=1)
    return scores


def blocks(changes: Changes) -> Iterator[Floats]:
    """Yield the K changes with their buffers, `BLOCK` values at a time, shape (K, <= BLOCK)."""
    size = changes.n_values
    for at in range(0, size, BLOCK):
        yield changes.part(at, min(at + BLOCK, size))


def sorted_blocks(changes: Changes) -> Iterator[Floats]:
    """Yield the values of the K changes in ascending order, shape (<= BLOCK, K).

    K values beside each other are sorted several times faster than K rows.
    """
    for block in blocks(changes):
        columns = np.ascontiguousarray(block.T)
        columns.sort(axis=1)
        yield columns


class Median:
    """The median of each value over the changes, whatever their weights.

    Source:
        Yin et al., ICML 2018 (arXiv:1803.01498), Algorithm 1, option I.
    """

    uses_weights = False

    def combine(self, updates: Updates, a: Floats) -> Floats:
        """Return d, shape (n_values,)."""
        assert updates.changes is not None, "the median needs the changes"
        low, high = (len(updates) - 1) // 2, len(updates) // 2
        parts = sorted_blocks(updates.changes)
        return np.concatenate([0.5 * (x[:, low] + x[:, high]) for x in parts])

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""


class TrimmedMean:
    """The mean of each value without the b smallest and the b largest ones, whatever their weights.

    b is f, the expected number of malicious updates.

    Source:
        Yin et al., ICML 2018 (arXiv:1803.01498), Algorithm 1, option II.
    """

    uses_weights = False

    def __init__(self, malicious_share: float) -> None:
        self._share = malicious_share

    def combine(self, updates: Updates, a: Floats) -> Floats:
        """Return d, shape (n_values,); at least one value of each is left."""
        assert updates.changes is not None, "the trimmed mean needs the changes"
        m = len(updates)
        b = min(expected_malicious(m, self._share), (m - 1) // 2)
        parts = sorted_blocks(updates.changes)
        return np.concatenate([x[:, b : m - b].mean(axis=1) for x in parts])

    def problem(self, m: int) -> str:
        """Return why no value would be left: it needs 2 f < m."""
        f = expected_malicious(m, self._share)
        return _too_few(m, f, f + 1, "2 f + 1", "trimmed-mean")

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""


class GeometricMedian:
    """The point with the smallest weighted sum of distances to the changes.

        d = argmin_z sum_k a_k |D_k - z|

    d is a weighted mean of the changes, so the iteration runs on K weights and the distances follow
    from the products of the changes. One update that is far away moves d little.

    Source:
        Pillutla et al., IEEE TSP 2022 (arXiv:1912.13445); Weiszfeld's iteration with the step of
        Vardi & Zhang, PNAS 2000, at a change.
    """

    def combine(self, updates: Updates, a: Floats) -> Floats:
        """Return d, shape (n_values,)."""
        assert updates.changes is not None, "the geometric median needs the changes"
        weights = geometric_median_weights(updates.changes.squared_distances(), a)
        parts = blocks(updates.changes)
        return np.concatenate([np.einsum("k,kp->p", weights, x) for x in parts])

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""


MAX_STEPS = 10_000
"""Limit on the iterations of the geometric median; 20 to 200 are usual."""

CONVERGED = 1e-13
"""Change of the weights of one iteration at which the geometric median is found."""


def geometric_median_weights(distances: Floats, a: Floats) -> Floats:
    """Return the weights of the points whose mean is their geometric median, shape (K,), sum 1.

    Args:
        distances: Squared distances of the points, shape (K, K).
        a: Weight of each point, shape (K,), at least 0, not all 0.
    """
    largest = float(distances.max())
    p = a / total_of(a)
    if largest == 0.0:
        return p
    for _ in range(MAX_STEPS):
        # |x_k - z|^2 for z = sum p_j x_j with sum p = 1, from the distances alone.
        to_points = _times(distances, p)
        r = np.sqrt(np.maximum(to_points - 0.5 * total_of(p * to_points), 0.0) / largest)
        at = r <= SMALLEST_DISTANCE
        pull = np.where(at, 0.0, a / np.where(at, 1.0, r))
        if not pull.any():
            return p
        step = pull / total_of(pull)
        if at.any():
            # z is a point: it stays if its own weight outweighs the pull R of the others.
            shift = step - p
            moved = -0.5 * total_of(shift * _times(distances, shift))
            length = math.sqrt(max(moved, 0.0) / largest)
            pulled = total_of(pull) * length
            held = float(a[at].sum())
            if pulled <= held:
                return p
            step = p + (1.0 - held / pulled) * shift
        if float(np.abs(step - p).sum()) <= CONVERGED:
            return step
        p = step
    return p


def _times(matrix: Floats, vector: Floats) -> Floats:
    """Return a product, shape (K,), whose bits do not depend on the number of threads of BLAS."""
    product: Floats = np.einsum("ij,j->i", matrix, vector)
    return product


def _keep(m: int, at: Any) -> Treatment:
    is_kept = np.zeros(m, dtype=np.bool_)
    is_kept[at] = True
    return Treatment(is_kept, np.ones(m))


def _too_few(m: int, f: int, more: int, rule: str, name: str) -> str:
    """Return one line if m < f + more."""
    if m >= f + more:
        return ""
    return (
        f"{name} needs at least {rule} updates per round, got {m} with f = {f} expected malicious "
        "ones; raise selection.per_round, or lower aggregation.malicious_share"
    )
