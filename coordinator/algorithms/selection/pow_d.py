"""Power-of-Choice with losses of now: of a few candidates, those that the model serves worst."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Sample
from fairbed.coordinator.algorithms.selection.pool import available_rows, weighted_draw


class PowD:
    """Draws d candidates in proportion to their examples, asks them, and takes the k worst off.

        A   = d of the available devices, without replacement, probability ~ n_k
        S_t = the k of A with the largest F_n(w_t)

    This is pow-d where F_n is the loss over the whole training set of a device, and cpow-d where it
    is that of one mini-batch. A candidate that does not answer, or not with a number, is not
    available; so fewer than k may be left. Ties are broken by chance. With d = k it is sampling by
    examples; a larger d is more biased towards devices that do badly. The loss is what a device
    says of itself: one that lies is always chosen.

    Source:
        Cho, Wang & Joshi, AISTATS 2022 (arXiv:2010.01243), section 4, pow-d and cpow-d.
    """

    def __init__(self, candidates: int, sample: Sample = "all") -> None:
        """Set the number d of candidates, and what they evaluate; fewer than k are raised to k.

        Raises:
            ValueError: There are none.
        """
        if candidates < 1:
            raise ValueError(
                f"power-of-choice: candidates must be >= 1, got {candidates}; 2 per_round is usual"
            )
        self._candidates, self._sample = candidates, sample

    @property
    def sample(self) -> Sample:
        """What the candidates evaluate."""
        return self._sample

    def candidates(self, fleet: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return max(d, k) distinct available rows, or all of them, ascending.

        Raises:
            ValueError: `k` is negative.
        """
        rows = available_rows(fleet, k)
        if k == 0:
            return rows[:0]
        return np.sort(rows[weighted_draw(rng, fleet.n_k[rows], max(self._candidates, k))])

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, answered) distinct rows, ascending; changes no state.

        Raises:
            ValueError: `k` is negative, or nobody was asked.
        """
        rows = available_rows(candidates, k)
        if candidates.loss is None:
            raise ValueError(
                "power-of-choice: losses must be asked for before the selection, got none; "
                'use variant = "rpow-d" where no model is trained'
            )
        answered = rng.permutation(rows[np.isfinite(candidates.loss[rows])])
        worst_first = np.argsort(-candidates.loss[answered], kind="stable")
        return np.sort(answered[worst_first[:k]])

    def observe(self, outcomes: Outcomes) -> None:
        """Learn nothing: the losses are asked for anew in each round."""

    def queues(self, n: int) -> Floats:
        """Return zeros, shape (n,): nobody is owed anything."""
        return np.zeros(n)

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over the empty state."""
