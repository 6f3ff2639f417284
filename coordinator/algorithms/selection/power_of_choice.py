"""Power-of-Choice: of a few candidates drawn by chance, those who do worst."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.columns import grown
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes
from fairbed.coordinator.algorithms.selection.pool import available_rows, weighted_draw


class PowerOfChoice:
    """Draws d candidates in proportion to their examples, and takes the k with the largest loss.

        A   = d of the available devices, without replacement, probability ~ n_k
        S_t = the k of A with the largest L_n

    This is rpow-d: L_n is the mean training loss of the device's last round, infinite for a device
    that has never taken part, so that each is tried once. Ties are broken by chance. With d = k it
    is sampling by examples; a larger d is more biased towards devices that do badly. The loss is
    what a device says of itself: one that lies is always chosen.

    Source:
        Cho, Wang & Joshi, AISTATS 2022 (arXiv:2010.01243), section 4, rpow-d.
    """

    def __init__(self, candidates: int) -> None:
        """Set the number d of candidates; fewer than k are raised to k.

        Raises:
            ValueError: It is not positive.
        """
        if candidates < 1:
            raise ValueError(
                f"power-of-choice: candidates must be >= 1, got {candidates}; 2 per_round is usual"
            )
        self._candidates = candidates
        self._loss: Floats = np.zeros(0)
        """Of the last round of each device, NaN before its first, shape (N,)."""

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, available) distinct rows, ascending; changes no state.

        Raises:
            ValueError: `k` is negative.
        """
        rows = available_rows(candidates, k)
        drawn = rows[weighted_draw(rng, candidates.n_k[rows], max(self._candidates, k))]
        loss = self._known(len(candidates.is_available))[drawn]
        worst_first = np.argsort(-np.where(np.isnan(loss), np.inf, loss), kind="stable")
        return np.sort(drawn[worst_first[:k]])

    def observe(self, outcomes: Outcomes) -> None:
        """Remember the losses of who took part; one that is no number is not believed."""
        n = len(outcomes.is_selected)
        self._loss = self._known(max(n, len(self._loss))).copy()
        if outcomes.loss is not None:
            told = outcomes.is_aggregated & np.isfinite(outcomes.loss)
            self._loss[:n][told] = outcomes.loss[told]

    def queues(self, n: int) -> Floats:
        """Return zeros, shape (n,): nobody is owed anything."""
        return np.zeros(n)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        return {"loss": [None if np.isnan(loss) else loss for loss in self._loss.tolist()]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        self._loss = np.array(
            [np.nan if loss is None else loss for loss in state["loss"]], dtype=np.float64
        )

    def _known(self, n: int) -> Floats:
        known: Floats = grown(self._loss, n)
        if len(known) > len(self._loss):
            known[len(self._loss) :] = np.nan
        return known
