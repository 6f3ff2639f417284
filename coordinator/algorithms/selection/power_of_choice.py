"""Power-of-Choice with past losses: of d random candidates, the devices with the largest loss."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.columns import grown
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Reason
from fairbed.coordinator.algorithms.selection.pool import available_rows, weighted_draw

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.selection.explanation import Explanation


class PowerOfChoice:
    """Draws d candidates in proportion to their examples, and takes the k with the largest loss.

        A   = d of the available devices, without replacement, probability ~ n_k
        S_t = the k of A with the largest L_n

    This is rpow-d: L_n is the mean training loss of the device's last round, infinite for a device
    that has never taken part, so that each is tried once. Ties are broken at random. With d = k it
    is sampling by examples; a larger d is more biased towards devices with a large loss. The loss
    is reported by the device, so a device that reports a false, large loss is always selected.

    Source:
        Cho, Wang & Joshi, AISTATS 2022 (arXiv:2010.01243), section 4, rpow-d.
    """

    def __init__(self, candidates: int) -> None:
        """Set the number d of candidates; fewer than k are raised to k.

        Raises:
            ValueError: `candidates` is not positive.
        """
        if candidates < 1:
            raise ValueError(
                f"power-of-choice: candidates must be >= 1, got {candidates}; 2 per_round is usual"
            )
        self._candidates = candidates
        self._loss: Floats = np.zeros(0)
        """Loss of the last round of each device, NaN before its first, shape (N,)."""

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, available) distinct rows, ascending; changes no state.

        Raises:
            ValueError: `k` is negative.
        """
        drawn = self._draw(candidates, k, rng)
        worst_first = np.argsort(-self._ranks(len(candidates.is_available))[drawn], kind="stable")
        return np.sort(drawn[worst_first[:k]])

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> "Explanation":
        """Return why `select` chose this cohort; the score is the last loss, nats, NaN for none.

        The objective is the sum of the losses of the cohort.
        """
        from fairbed.coordinator.algorithms.selection.explanation import explain_largest

        n = len(candidates.is_available)
        drawn, ranks = self._draw(candidates, k, rng), self._ranks(n)
        why = explain_largest(n, drawn, chosen, ranks[drawn])
        is_drawn = np.zeros(n, dtype=np.bool_)
        is_drawn[drawn] = True
        reason = np.where(is_drawn, why.reason, Reason.NOT_DRAWN)
        return replace(why, reason=reason, score=np.where(np.isinf(ranks), np.nan, ranks))

    def observe(self, outcomes: Outcomes) -> None:
        """Store the finite losses of aggregated devices."""
        n = len(outcomes.is_selected)
        self._loss = self._known(max(n, len(self._loss))).copy()
        if outcomes.loss is not None:
            is_known = outcomes.is_aggregated & np.isfinite(outcomes.loss)
            self._loss[:n][is_known] = outcomes.loss[is_known]

    def queues(self, n: int) -> Floats:
        """Return zeros, shape (n,): there are no virtual queues."""
        return np.zeros(n)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        return {"loss": [None if np.isnan(loss) else loss for loss in self._loss.tolist()]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._loss = np.array(
            [np.nan if loss is None else loss for loss in state["loss"]], dtype=np.float64
        )

    def _draw(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return A in the order drawn, shape (max(d, k),) or smaller."""
        rows = available_rows(candidates, k)
        return weighted_draw(rng, candidates.n_k, rows, max(self._candidates, k))

    def _ranks(self, n: int) -> Floats:
        """Return the last losses, infinite for a device that has never taken part, shape (n,)."""
        loss = self._known(n)
        ranks: Floats = np.where(np.isnan(loss), np.inf, loss)
        return ranks

    def _known(self, n: int) -> Floats:
        known: Floats = grown(self._loss, n)
        if len(known) > len(self._loss):
            known[len(self._loss) :] = np.nan
        return known
