"""The time of a transfer, by the rate that was measured last and by how long the last one took."""

from typing import Any

import numpy as np

from coordinator.algorithms.arrays import Bools, Floats, Ints
from coordinator.algorithms.columns import grown
from coordinator.algorithms.estimation.elasticity import Elasticities

NEWEST_SHARE = 0.5
"""What the newest transfer counts in a rate that a device reports (`device_agent.link`)."""

MOST = 4.0
"""So many times faster or slower than its nominal time a transfer may have been at most: beyond
that the rate was measured anew in between, or the transfer met a hole."""


class Transfers:
    """Learns the times of transfers from nominal ones, and from how long the last one took.

        y = e^(a + d q) c^b,   q = -ln(s + (1 - s) r),   r = c_last / y_last  within [1/4, 4]

    A rate that a device reports is a mean of what its last transfers needed, of which the newest
    counts s = 1/2 only: enough on a link that never moves, and old news on one that does. How long
    the newest took, y_last, where c_last was its nominal time, was measured here; so c e^q is the
    nominal time of the next one at the rate of the newest alone. Sizes cancel out: a model may be
    packed now and have been whole then. `Elasticities` learns b and d: whether the newest transfer
    says more than the mean, or noise.

    Source:
        Own.
    """

    def __init__(self, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior: see `Elasticities`.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        self._times = Elasticities(lambda_, discount)
        self._ratio: Floats = np.zeros(0)
        """r of each device, shape (N,); 0 where there was no transfer yet."""

    def predict(self, c: Floats) -> tuple[Floats, Floats]:
        """Return y_hat and width for the nominal time of each device, each of shape (N,)."""
        n = len(c)
        return self._times.predict(c, _news(grown(self._ratio, n)[:n]))

    def observe(self, rows: Ints, c: Floats, y: Floats) -> None:
        """Learn: rows (K,), nominal times (K,), measured (K,); at most one a device.

        Where one of the two is not positive there was no transfer, and nothing is learned. Before
        the first of a device the one before is thought to have taken as long.
        """
        known: Bools = (c > 0.0) & (y > 0.0)
        if not known.any():
            return
        rows, c, y = rows[known], c[known], y[known]
        self._ratio = grown(self._ratio, int(rows.max()) + 1)
        ratio = np.clip(c / y, 1.0 / MOST, MOST)
        last = np.where(self._ratio[rows] > 0.0, self._ratio[rows], ratio)
        self._times.observe(rows, c, y, _news(last))
        self._ratio[rows] = ratio

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        rows = np.flatnonzero(self._ratio)
        last = {"rows": rows.tolist(), "ratio": self._ratio[rows].tolist()}
        return {"times": self._times.to_state(), "last": last}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned, of one with the same prior."""
        self._times.load_state(state["times"])
        rows = np.array(state["last"]["rows"], dtype=np.int64)
        self._ratio = np.zeros(int(rows.max()) + 1 if rows.size else 0)
        self._ratio[rows] = np.array(state["last"]["ratio"], dtype=np.float64)


def _news(ratio: Floats) -> Floats:
    """Return q, shape (N,), given r; 0 where there was no transfer yet."""
    news = np.zeros(len(ratio))
    known: Bools = ratio > 0.0
    news[known] = -np.log(NEWEST_SHARE + (1.0 - NEWEST_SHARE) * ratio[known])
    return news
