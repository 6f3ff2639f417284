"""A selector of devices: Template."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection import Candidates, Outcomes


class Template:
    """Draws devices at random; one that was selected less often than the mean counts `boost` times.

    Args:
        boost: At least 1; 1 is a uniform draw. The keys of `[selection.options]` are arguments.
    """

    def __init__(self, boost: float = 2.0) -> None:
        if boost < 1.0:
            raise ValueError(f"boost must be >= 1, got {boost}; 1 is a uniform draw")
        self._boost = boost
        self._counts: dict[int, int] = {}
        """Number of selections of each row."""

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, available) distinct rows; must change no state."""
        rows = np.flatnonzero(candidates.is_available).astype(np.int64)
        if not rows.size:
            return rows
        counts = np.array([self._counts.get(row, 0) for row in rows.tolist()])
        weights = np.where(counts < counts.mean(), self._boost, 1.0)
        drawn = rng.choice(rows, min(k, len(rows)), replace=False, p=weights / weights.sum())
        return np.sort(drawn)

    def observe(self, outcomes: Outcomes) -> None:
        """Learn the outcome of the selection; called once for every round, void ones included."""
        for row in np.flatnonzero(outcomes.is_selected).tolist():
            self._counts[row] = self._counts.get(row, 0) + 1

    def queues(self, n: int) -> Floats:
        """Return the virtual queues of the first n devices; zeros for a policy without queues."""
        return np.zeros(n)

    def to_state(self) -> dict[str, Any]:
        """Return the state for a resumed run, as plain numbers and lists."""
        return {"counts": sorted(self._counts.items())}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._counts = {int(row): int(count) for row, count in state["counts"]}
