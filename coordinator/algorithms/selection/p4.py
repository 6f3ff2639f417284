"""P4, the problem that RBCS-F solves each round: who is fast enough and owed enough."""

import math
from heapq import heapify, heapreplace

import numpy as np

from coordinator.algorithms.arrays import Floats, Ints
from coordinator.algorithms.selection.pool import smallest

TIE_TOLERANCE = 1e-12
"""Two objective values closer than this are a tie; debts are sums of a few thousand roundings."""

BLOCK = 4096
"""Positions looked at together: few enough to stop soon, many enough to cost little each."""

GROWTH = 16
"""The quickest devices are sorted a block of them first, and so many times more if need be."""


def solve_p4(tau_bar_s: Floats, queues: Floats, k: int, V: float) -> Ints:
    """Return the k devices that trade exchange time against fairness debt best.

        minimise over S, |S| = k:   J(S) = V max_{n in S} tau_bar_n - sum_{n in S} Z_n

    Sort by tau_bar and sweep: for the prefix that ends at position j, the k largest debts
    (a heap keeps them) give the candidate V tau_bar_(j) - Q_j. No set is better than the
    candidate of its own slowest member, so the best candidate is the best set. One sort and at
    most N heap steps, O(N log N); the sweep stops where even the k largest debts of all would
    not pay for the time, and nobody is sorted who is slower than that by far.

    Ties: smaller J, then shorter prefix, then larger Z, then smaller tau_bar, then smaller
    position, so shuffle the devices to break what is left by chance.

    Args:
        tau_bar_s: Lower confidence bound of each exchange time, seconds, shape (N,), finite.
        queues: Fairness debts Z, shape (N,), finite.
        k: Devices to choose.
        V: Weight of time against debt, 1/seconds, at least 0.

    Returns:
        Positions, ascending, shape (min(k, N),).

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783), problem P4.
    Deviates:
        The published Algorithm 1 walks all devices once per device, O(N^2); the tests hold this
        form against it and against brute force.
    """
    n = len(tau_bar_s)
    if k >= n or k <= 0:
        return np.arange(n if k > 0 else 0, dtype=np.int64)
    most_debt = math.fsum(queues[smallest(-queues, k)].tolist())
    prefix, blocks = None, 1
    while prefix is None:
        size = k + blocks * BLOCK + 1
        order = smallest(tau_bar_s, size)
        debts = queues[order]
        prefix = _best_prefix(V * tau_bar_s[order], debts, k, most_debt, is_whole=size >= n)
        blocks *= GROWTH
    return np.sort(order[smallest(-debts[:prefix], k)])


def _best_prefix(
    costs: Floats, debts: Floats, k: int, most_debt: float, *, is_whole: bool
) -> int | None:
    """Return how many of the quickest devices the best set is taken from; None if not of these.

    Whoever owes less than the k largest debts so far changes nothing, so a block of positions at a
    time is searched for those who owe more, and only they are looked at one by one.

    Args:
        costs: V tau_bar of the quickest, ascending, shape (M,), M > k.
        debts: Z in the same order, shape (M,).
        k: Devices to choose, at least 1.
        most_debt: Sum of the k largest debts of all devices.
        is_whole: These are all devices.
    """
    heap: list[float] = debts[:k].tolist()
    heapify(heap)
    debt = math.fsum(heap)
    best, prefix = float(costs[k - 1]) - debt, k
    for start in range(k, len(costs), BLOCK):
        if costs[start] - most_debt >= best - TIE_TOLERANCE:
            return prefix
        block = slice(start, start + BLOCK)
        owing = start + np.flatnonzero(debts[block] > heap[0])
        for j, cost, owed in zip(
            owing.tolist(), costs[owing].tolist(), debts[owing].tolist(), strict=True
        ):
            if owed > heap[0]:
                debt += owed - heapreplace(heap, owed)
                if cost - debt < best - TIE_TOLERANCE:
                    best, prefix = cost - debt, j + 1
    return prefix if is_whole else None
