"""Weights of updates: equal, by examples, or corrected for a biased selection."""

from typing import Any, Literal, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.columns import grown

Weights: TypeAlias = Literal["equal", "n", "n_over_pi"]
"""p_k of a rule, up to a common factor: 1, n_k or n_k / pi_k."""

RATE_FLOOR = 0.01
"""Lower bound of a rate: the weight of an update grows by at most a factor of 100."""


class Participation:
    """Counts aggregated updates per row; their rate estimates the inclusion probability pi.

    The rounds of a row are counted from the first report of this or any later row: rows are only
    appended, so the device existed by then.
    """

    def __init__(self) -> None:
        self._aggregated: Ints = np.zeros(0, dtype=np.int64)
        self._rounds: Ints = np.zeros(0, dtype=np.int64)

    def rate(self, row: int) -> float:
        """Return the pi that a row has if it is aggregated in this round."""
        is_known = row < len(self._rounds)
        aggregated, rounds = (self._aggregated[row], self._rounds[row]) if is_known else (0, 0)
        return max(float((aggregated + 1) / (rounds + 1)), RATE_FLOOR)

    def observe(self, rows: Ints) -> Floats:
        """Count a round that aggregates `rows`, shape (K,); return their pi, shape (K,)."""
        n = int(rows.max()) + 1
        self._aggregated, self._rounds = grown(self._aggregated, n), grown(self._rounds, n)
        self._rounds += 1
        self._aggregated[rows] += 1
        return np.maximum(self._aggregated[rows] / self._rounds[rows], RATE_FLOOR)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return {"merged": self._aggregated.tolist(), "rounds": self._rounds.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._aggregated = np.array(state["merged"], dtype=np.int64)
        self._rounds = np.array(state["rounds"], dtype=np.int64)


class Weighting:
    """Weights p_k of the updates, up to a common factor: 1, n_k or n_k / pi_k.

    pi_k is the device's running aggregation rate. Division by it corrects for a selector that
    prefers some devices.

    Source:
        Inverse probability weights after Horvitz & Thompson (1952), normalised.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights: Weights = weights
        self._participation = Participation()

    def of(self, rows: Ints, n_k: Ints) -> Floats:
        """Return p_k from rows and example counts, all of shape (K,)."""
        if self._weights == "equal":
            return np.ones(len(rows))
        p: Floats = n_k.astype(np.float64)
        if self._weights == "n_over_pi":
            p /= [self._participation.rate(row) for row in rows.tolist()]
        return p

    def observe(self, rows: Ints) -> None:
        """Count a round that aggregates `rows`, shape (K,)."""
        if self._weights == "n_over_pi":
            self._participation.observe(rows)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return self._participation.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._participation.load_state(state)
