"""Uniform random selection, the baseline of every comparison."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes
from fairbed.coordinator.algorithms.selection.pool import available_rows

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.selection.explanation import Explanation


class Uniform:
    """Draws the cohort uniformly from the available devices, without replacement.

    Source:
        McMahan et al., AISTATS 2017, Algorithm 1 (arXiv:1602.05629): "random set of m clients".
    """

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, available) distinct rows, ascending; changes no state."""
        return np.sort(available_rows(candidates, k, shuffled_by=rng)[:k])

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> "Explanation":
        """Return why `select` chose this cohort; the score is the probability of a draw."""
        from fairbed.coordinator.algorithms.selection.explanation import explain_draw

        rows = available_rows(candidates, k)
        probability = min(k / max(len(rows), 1), 1.0)
        score = np.full(len(rows), probability)
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
