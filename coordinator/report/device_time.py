"""Device-seconds of a run: how long its devices were busy for it, summed over the devices."""

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.store.reader import ROUNDING_S, RunReader
from fairbed.coordinator.store.tables import ExchangeRow, LossQueryRow, RoundRow


def device_seconds(reader: RunReader) -> Floats:
    """Return the device-seconds up to the end of each closed round, shape (T,).

        sum over exchanges of busy_s  +  sum over loss queries of their duration

    An exchange counts when it ends: when its update has arrived, or when it is abandoned. The wait
    for an upload grant and the coordinator's own outages are not the device's. A loss query counts
    until its reply or, without one in time, until the end of the query. Exchanges that are still
    open when the run ends, and queries to devices that failed or left, have no known end and do
    not count.

    Raises:
        StoreError: The store cannot be read.
    """
    rounds = reader.columns(RoundRow, ("round", "closed_at_s", "loss_query_s"), "ORDER BY round")
    exchanges = reader.columns(
        ExchangeRow,
        ("dispatched_at_s", "queued_s", "busy_s"),
        "WHERE busy_s IS NOT NULL ORDER BY round, attempt, device",
    )
    queries = reader.columns(
        LossQueryRow, ("round", "outcome", "duration_s"), "ORDER BY round, device"
    )
    if not rounds:
        return np.zeros(0)
    closed_s: Floats = np.array([row[1] for row in rounds], dtype=np.float64)
    spent_s: Floats = np.zeros(len(rounds))
    started, queued, busy = np.array(exchanges, dtype=np.float64).reshape(-1, 3).T
    at = np.searchsorted(closed_s, started + queued + busy - ROUNDING_S)
    np.add.at(spent_s, np.minimum(at, len(rounds) - 1), busy)
    index = {row[0]: position for position, row in enumerate(rounds)}
    for round_id, outcome, duration_s in queries:
        position = index.get(round_id)
        if position is not None:
            limit_s = rounds[position][2] if outcome == "late" else 0.0
            spent_s[position] += limit_s if duration_s is None else duration_s
    totals: Floats = np.cumsum(spent_s)
    return totals
