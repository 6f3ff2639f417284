"""The cohorts of an application that selects devices by itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes


class ApplicationCohort:
    """Selects the available ones of the devices that the application has named for a round.

    It learns nothing and guarantees nothing: how often a device is selected is up to the
    application.
    """

    def __init__(self) -> None:
        self.rows: Sequence[int] = ()
        """What the application has named for the next selection."""

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return the distinct available rows that were named, ascending, whatever `k` is."""
        n = len(candidates.is_available)
        rows = np.unique(np.array([row for row in self.rows if 0 <= row < n], dtype=np.int64))
        return rows[candidates.is_available[rows]]

    def observe(self, outcomes: Outcomes) -> None:
        """Do nothing: the application learns for itself."""

    def queues(self, n: int) -> Floats:
        """Return zeros, shape (n,): there are no virtual queues."""
        return np.zeros(n)

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""
