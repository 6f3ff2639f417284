"""Limit on the selection of devices for which one round after another waits in vain."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import grown

RETRY_ROUNDS = 100
"""Rounds without a selection after which a device without a guaranteed rate is tried again; the
number doubles with each further miss, so that T rounds have at most log2(T / 100) trials."""

MAX_DOUBLINGS = 40
"""Upper bound of the exponent: more rounds than any run has."""

TOLERANCE = 1e-9
"""Slack of a virtual queue, which is a sum of rounded numbers."""


class MissLimit:
    """Excludes devices that missed the last deadlines, but for the rate that they are guaranteed.

    An exchange for which a round waited in vain is missed, too, even if it ended before the
    deadline.

        misses_n      consecutive misses of device n; an aggregated update resets them to 0
        n is limited  if misses_n >= limit
        n is excluded if it is limited, and

            Z_n + beta < 1                               with a guaranteed selection rate beta
            t - last_n < 100 x 2^(misses_n - limit)      without one

    Z_n is the virtual queue, last_n the round of the last miss. A selection reduces Z_n by 1, so a
    limited device is selected at most beta T times in T rounds. If all devices of the fleet are
    limited, none is excluded: then the deadline is at fault, and not the devices.

    Source:
        Own.
    """

    def __init__(self, limit: int, beta: float = 0.0, z_max: float | None = None) -> None:
        """Set the limit.

        Args:
            limit: Consecutive misses from which a device is limited; 0 for no limit.
            beta: Selection rate that the policy guarantees, in [0, 1]; 0 without a guarantee.
            z_max: Upper limit of a virtual queue; None for no limit.
        """
        self.limit = limit
        self._beta = beta
        self._owed = 1.0 - beta if z_max is None else min(1.0 - beta, z_max)
        self._misses: Ints = np.zeros(0, dtype=np.int64)
        self._last: Ints = np.zeros(0, dtype=np.int64)
        self._reported: Bools = np.zeros(0, dtype=np.bool_)
        self.reached: Ints = np.zeros(0, dtype=np.int64)
        """Rows that the last call of `observe` limited for the first time, ascending."""

    @property
    def uses_queues(self) -> bool:
        """`candidates` reads the virtual queues."""
        return self._beta > 0.0

    def candidates(self, is_available: Bools, round_id: int, queues: Floats | None) -> Bools:
        """Return which available devices may be selected, shape (N,); changes no state.

        Args:
            is_available: I_{t,n}, shape (N,).
            round_id: The round of the selection.
            queues: Virtual queues Z, shape (N,); None if `uses_queues` is False.
        """
        rows = self.limited(len(is_available))
        if rows.size in (0, len(is_available)):
            return is_available
        if self.uses_queues and queues is not None:
            is_excluded = queues[rows] < self._owed - TOLERANCE
        else:
            doublings = np.minimum(self._misses[rows] - self.limit, MAX_DOUBLINGS)
            waits = RETRY_ROUNDS * np.exp2(doublings)
            is_excluded = round_id - self._last[rows] < waits
        may_be_selected: Bools = is_available.copy()
        may_be_selected[rows[is_excluded]] = False
        return may_be_selected

    def limited(self, n: int) -> Ints:
        """Return which of the first `n` rows are limited, ascending."""
        if not self.limit:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(self._misses[:n] >= self.limit).astype(np.int64)

    def observe(self, round_id: int, aggregated: Ints, missed: Ints) -> None:
        """Count the misses of a round.

        Args:
            round_id: The round.
            aggregated: Rows of the devices whose updates were aggregated.
            missed: Rows of the devices that missed the deadline, or held the round up.
        """
        self.reached = np.zeros(0, dtype=np.int64)
        if not self.limit:
            return
        missed = np.setdiff1d(missed, aggregated)
        n = int(max(aggregated.max(initial=-1), missed.max(initial=-1))) + 1
        self._grow(n)
        self._misses[aggregated] = 0
        self._misses[missed] += 1
        self._last[missed] = round_id
        is_new = (self._misses[missed] >= self.limit) & ~self._reported[missed]
        self.reached = missed[is_new]
        self._reported[self.reached] = True

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        rows = np.flatnonzero((self._misses > 0) | self._reported)
        return {
            "rows": rows.tolist(),
            "misses": self._misses[rows].tolist(),
            "last": self._last[rows].tolist(),
            "reported": self._reported[rows].tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        rows = np.array(state["rows"], dtype=np.int64)
        self._misses, self._last = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self._reported, self.reached = np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int64)
        self._grow(int(rows.max(initial=-1)) + 1)
        self._misses[rows], self._last[rows] = state["misses"], state["last"]
        self._reported[rows] = state["reported"]

    def _grow(self, n: int) -> None:
        self._misses, self._last = grown(self._misses, n), grown(self._last, n)
        self._reported = grown(self._reported, n)
