"""What a store keeps of a crowd: who was ever chosen, and how even that was, in one row a round."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.algorithms.fairness import jain, rate_slack
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.store.tables import FleetStatsRow, Record
from fairbed.testbed.replay.engine import Played

Told: TypeAlias = Callable[[int], Sequence[Record]]
"""Given a row, returns what is known of that device, and what is true of it."""


class Census:
    """Counts a crowd, since nobody keeps a row for each of a million devices.

    Args:
        devices: N.
        told: Asked once for every device that is chosen.
    """

    def __init__(self, devices: int, told: Told) -> None:
        self._told = told
        self._selected: Ints = np.zeros(devices, dtype=np.int64)
        self._merged: Ints = np.zeros(devices, dtype=np.int64)

    def count(self, played: Played, decisions: Decisions) -> list[Record]:
        """Return the rows of devices that were chosen for the first time, and of the crowd."""
        rows = played.choice.rows
        new = rows[self._selected[rows] == 0]
        self._selected[rows] += 1
        self._merged[played.merged] += 1
        n, round_id = len(self._selected), played.choice.round
        settings = decisions.config.selection
        counted = self._selected if settings.queue_counts == "selected" else self._merged
        slack = rate_slack(counted, round_id, settings.beta, decisions.selector.queues(n))
        evenness = jain(self._selected)
        crowd = FleetStatsRow(
            round=round_id,
            devices=n,
            selected=int(np.count_nonzero(self._selected)),
            min_selection_rate=float(self._selected.min()) / round_id,
            min_aggregation_rate=float(self._merged.min()) / round_id,
            jain=None if np.isnan(evenness) else evenness,
            slack=float(slack.min()),
        )
        return [*(record for row in new.tolist() for record in self._told(row)), crowd]

    def to_state(self) -> dict[str, Any]:
        """Return the counts."""
        return {"selected": self._selected.tobytes(), "merged": self._merged.tobytes()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over counts that `to_state` returned."""
        self._selected = np.frombuffer(state["selected"], dtype=np.int64).copy()
        self._merged = np.frombuffer(state["merged"], dtype=np.int64).copy()
