"""The queues of a policy that keeps none: every arm is held against the same promise."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.algorithms.arrays import Bools, Floats, Ints
from coordinator.store import RunReader, Tally
from coordinator.store.records import SelectionRow

MAX_ENTRIES = 50_000_000
"""Rounds x devices; larger runs are not counted anew."""


@dataclass(frozen=True, slots=True)
class Debts:
    """Queues Z over all devices after each round, each of shape (T,)."""

    total: Floats
    largest: Floats


def debts(counted: Bools, first: Ints, beta: float) -> Debts:
    """Return the virtual queues that a selection history would have left.

        Z_n <- max(Z_n + beta - x_n, 0)   in each round since n joined

    No queue is capped or frozen, as those of rbcs-f may be.

    Args:
        counted: x, shape (T, N).
        first: Index of each device's first round, shape (N,).
        beta: Promised rate.

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783), equation 8.
    """
    queues: Floats = np.zeros(counted.shape[1])
    total, largest = np.zeros(len(counted)), np.zeros(len(counted))
    for t, x in enumerate(counted):
        queues = np.where(first <= t, np.maximum(queues + beta - x, 0.0), 0.0)
        total[t], largest[t] = queues.sum(), queues.max(initial=0.0)
    return Debts(total, largest)


def debts_of(
    reader: RunReader, rounds: Sequence[int], tallies: Sequence[Tally], beta: float
) -> Debts | None:
    """Return the queues of a run's history; None if it is too large to be counted anew.

    Args:
        reader: Of the run.
        rounds: Its closed rounds, shape (T,).
        tallies: Of all devices, over all rounds.
        beta: What would have been promised.
    """
    if not tallies or len(rounds) * len(tallies) > MAX_ENTRIES:
        return None
    at_round = {round_id: t for t, round_id in enumerate(rounds)}
    at_device = {tally.device: n for n, tally in enumerate(tallies)}
    counted: Bools = np.zeros((len(rounds), len(tallies)), dtype=np.bool_)
    which = f"is_{reader.plan.selection.counts}"
    for round_id, device in reader.columns(SelectionRow, ("round", "device"), f"WHERE {which}"):
        counted[at_round[round_id], at_device[device]] = True
    first = np.array([len(rounds) - tally.rounds for tally in tallies], dtype=np.int64)
    return debts(counted, first, beta)
