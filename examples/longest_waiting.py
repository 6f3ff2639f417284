"""An example of a selector: it selects the devices that have waited longest, fast ones first.

    [selection]
    policy  = "longest_waiting:LongestWaiting"     # run in the folder of this file, or install it
    options = { patience = 3 }

Check it with `fairbed doctor --selector longest_waiting:LongestWaiting --option patience=3`.
"""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection import Candidates, Outcomes


class LongestWaiting:
    """Selects the devices whose last selection is oldest; faster ones first among equals.

    A device that has waited for less than `patience` rounds counts as one that has not waited.

    Source:
        An example, a form of round robin.
    """

    def __init__(self, patience: int = 1) -> None:
        """Take the keys of `[selection.options]` by name."""
        if patience < 1:
            raise ValueError(f"patience must be >= 1, got {patience}; 1 is plain round robin")
        self._patience = patience
        self._last: dict[int, int] = {}
        """Round in which each row was selected last."""

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, available) distinct rows; must change no state."""
        rows = rng.permutation(np.flatnonzero(candidates.is_available)).astype(np.int64)
        last = np.array([self._last.get(row, 0) for row in rows.tolist()], dtype=np.int64)
        waited = candidates.round - last
        waited = np.where(waited < self._patience, 0, waited)
        tau_s = np.nan_to_num(candidates.tau_hat_s[rows], nan=np.inf)
        return np.sort(rows[np.lexsort((tau_s, -waited))[:k]])

    def observe(self, outcomes: Outcomes) -> None:
        """Learn the outcome of the selection; called once for every round, void rounds included."""
        for row in np.flatnonzero(outcomes.is_selected).tolist():
            self._last[row] = outcomes.round

    def queues(self, n: int) -> Floats:
        """Return the virtual queues of the first n devices; zeros for a policy without queues."""
        return np.zeros(n)

    def to_state(self) -> dict[str, Any]:
        """Return the state for a resumed run, as plain numbers and lists."""
        return {"last": sorted(self._last.items())}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned, in this process or another."""
        self._last = {int(row): int(last) for row, last in state["last"]}
