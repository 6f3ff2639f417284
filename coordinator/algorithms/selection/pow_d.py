"""Power-of-Choice with queried losses: of d candidates, the devices with the largest loss."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Reason, Sample
from fairbed.coordinator.algorithms.selection.pool import (
    available_rows,
    shuffled_rows,
    weighted_draw,
)

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.selection.explanation import Explanation


class PowD:
    """Draws d candidates in proportion to their examples, and takes the k with the largest loss.

        A   = d of the available devices, without replacement, probability ~ n_k
        S_t = the k of A with the largest F_n(w_t)

    This is pow-d if F_n is the loss over the whole training set of a device, and cpow-d if it is
    that of one mini-batch. A candidate without a finite loss in time is not available, so fewer
    than k may be left. Ties are broken at random. With d = k it is sampling by examples; a larger d
    is more biased towards devices with a large loss. The loss is reported by the device, so a
    device that reports a false, large loss is always selected.

    Source:
        Cho, Wang & Joshi, AISTATS 2022 (arXiv:2010.01243), section 4, pow-d and cpow-d.
    """

    def __init__(self, candidates: int, sample: Sample = "all") -> None:
        """Set the number d of candidates, raised to k if smaller, and the examples they evaluate.

        Raises:
            ValueError: `candidates` is not positive.
        """
        if candidates < 1:
            raise ValueError(
                f"power-of-choice: candidates must be >= 1, got {candidates}; 2 per_round is usual"
            )
        self._candidates, self._sample = candidates, sample

    @property
    def sample(self) -> Sample:
        """Examples that the candidates evaluate."""
        return self._sample

    def candidates(self, fleet: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return max(d, k) distinct available rows, or all of them, ascending.

        Raises:
            ValueError: `k` is negative.
        """
        rows = available_rows(fleet, k)
        if k == 0:
            return rows[:0]
        return np.sort(weighted_draw(rng, fleet.n_k, rows, max(self._candidates, k)))

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, replies) distinct rows, ascending; changes no state.

        Raises:
            ValueError: `k` is negative, or no losses were queried.
        """
        available_rows(candidates, k)
        if candidates.loss is None:
            raise ValueError(
                "power-of-choice: losses must be queried before the selection, got None; "
                'use variant = "rpow-d" where no model is trained'
            )
        has_replied = candidates.is_available & np.isfinite(candidates.loss)
        answered = shuffled_rows(rng, has_replied)
        worst_first = np.argsort(-candidates.loss[answered], kind="stable")
        return np.sort(answered[worst_first[:k]])

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> "Explanation | None":
        """Return why `select` chose this cohort; the score is the reported loss, nats.

        The objective is the sum of the losses of the cohort. None: no losses were queried.
        """
        from fairbed.coordinator.algorithms.selection.explanation import explain_largest

        if candidates.loss is None:
            return None
        is_candidate = candidates.is_available & np.isfinite(candidates.loss)
        rows = np.flatnonzero(is_candidate).astype(np.int64)
        why = explain_largest(len(is_candidate), rows, chosen, candidates.loss[rows])
        return replace(why, reason=np.where(is_candidate, why.reason, Reason.NOT_DRAWN))

    def observe(self, outcomes: Outcomes) -> None:
        """Do nothing: the losses are queried in each round."""

    def queues(self, n: int) -> Floats:
        """Return zeros, shape (n,): there are no virtual queues."""
        return np.zeros(n)

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""
