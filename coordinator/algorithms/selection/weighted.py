"""Weighted random selection."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes
from fairbed.coordinator.algorithms.selection.pool import available_rows, weighted_draw

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.selection.explanation import Explanation


class Weighted:
    """Draws available devices without replacement, each in proportion to its weight.

        P(next = n) = w_n / sum_{i not drawn yet} w_i,   w = the weights given, or n_k

    A device of weight 0, or without a weight because it joined later, is drawn only if no other is
    left. Combine weights n_k with `aggregation.weights = "equal"`: with "n", data set sizes would
    count twice.

    Source:
        Given weights: Huang et al., TPDS 2021 (arXiv:2011.01783), whose experiments on fairness
        draw by fixed probabilities. n_k: Li et al., ICLR 2020 (arXiv:1905.10497), Algorithm 2.
    """

    def __init__(self, weights: Sequence[float] | None = None) -> None:
        """Set the weights.

        Args:
            weights: One per device in the order of rows, finite and at least 0; None takes n_k.

        Raises:
            ValueError: A weight is negative or not finite, or no weight is positive.
        """
        self._weights: Floats | None = None
        if weights is None:
            return
        self._weights = np.array(weights, dtype=np.float64)
        is_good = np.isfinite(self._weights) & (self._weights >= 0.0)
        if not is_good.all():
            at = int(np.flatnonzero(~is_good)[0])
            raise ValueError(
                f"weighted: weights must be finite and >= 0, got {weights[at]} at row {at}; "
                "give shares of the draws"
            )
        if not self._weights.any():
            raise ValueError(
                f"weighted: at least one weight must be > 0, got {len(weights)} zeros; "
                "leave selection.weights out to draw by n_k"
            )

    @property
    def goes_by_row(self) -> bool:
        """Weights were given by row, so equal devices may be drawn with different probability."""
        return self._weights is not None

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, available) distinct rows, ascending; changes no state."""
        rows = available_rows(candidates, k)
        return np.sort(weighted_draw(rng, self._of(candidates), rows, k))

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> "Explanation":
        """Return why `select` chose this cohort; the score is the probability of the first draw."""
        from fairbed.coordinator.algorithms.selection.explanation import explain_draw

        rows = available_rows(candidates, k)
        weights = self._of(candidates)[rows]
        score = weights / max(float(weights.sum()), np.finfo(np.float64).tiny)
        return explain_draw(len(candidates.is_available), rows, chosen, score=score)

    def observe(self, outcomes: Outcomes) -> None:
        """Do nothing: the draw has no memory."""

    def queues(self, n: int) -> Floats:
        """Return zeros, shape (n,): there are no virtual queues."""
        return np.zeros(n)

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""

    def _of(self, candidates: Candidates) -> Floats:
        """Return the weight of each row, shape (N,)."""
        if self._weights is None:
            return candidates.n_k.astype(np.float64)
        n = len(candidates.n_k)
        weights: Floats = np.zeros(n)
        weights[: len(self._weights)] = self._weights[:n]
        return weights
