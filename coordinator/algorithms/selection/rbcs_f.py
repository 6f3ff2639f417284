"""RBCS-F: quick rounds, and a guaranteed share of them for every device.

P4, the problem that RBCS-F solves each round: who is fast enough and owed enough.
"""

import math
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any, Literal

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import grown
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes
from fairbed.coordinator.algorithms.selection.pool import available_rows, require_finite, smallest

TIE_TOLERANCE = 1e-12
"""Two objective values closer than this are a tie; debts are sums of a few thousand roundings."""

BLOCK = 4096
"""Positions looked at together: few enough to stop soon, many enough to cost little each."""

GROWTH = 16
"""The quickest devices are sorted a block of them first, and so many times more if need be."""


def solve_p4(tau_bar_s: Floats, queues: Floats, k: int, V: float) -> Ints:
    """Return the k devices that trade exchange time against virtual queues best.

        minimise over S, |S| = k:   J(S) = V max_{n in S} tau_bar_n - sum_{n in S} Z_n

    Sort by tau_bar and sweep: for the prefix that ends at position j, the k largest queues
    (a heap keeps them) give the candidate V tau_bar_(j) - Q_j. No set is better than the
    candidate of its own slowest member, so the best candidate is the best set. One sort and at
    most N heap steps, O(N log N); the sweep stops where even the k largest queues of all would
    not pay for the time, and devices far slower than that are not sorted.

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

    A queue below the k largest so far changes nothing, so a block of positions at a time is
    searched for larger ones, and only these are looked at one by one.

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


FEATURES = 3
"""1/mu, cold start, transfer: the dimension in the confidence bound."""
FREEZE_AFTER = 5
"""Failures in a row after which a queue stops growing (`counts="aggregated"`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoryAlpha:
    """Confidence weight that the self-normalised bound of a linear model asks for.

        alpha_t = R sqrt(d ln((1 + t L^2 / lambda) / delta)) + sqrt(lambda) Smax,   d = 3

    The defaults enclose the world of the paper's own experiment: training 1 to 4 s on one core,
    mu from 0.5 to 2, tau +- 10 % uniform.

    Source:
        Abbasi-Yadkori et al., NIPS 2011, Theorem 2, with det(H) bounded by its trace.
    """

    ridge_lambda: float = 1.0
    """Ridge penalty lambda of the estimator."""
    noise_s: float = 0.6
    """R, sub-Gaussian scale of the noise; +- 1.05 s uniform is 1.05 / sqrt(3)."""
    context_norm: float = 2.5
    """L, largest norm of a context."""
    theta_norm: float = 5.0
    """Smax, largest norm of a device's true theta."""
    delta: float = 0.05
    """Probability that the bound may fail."""

    def at(self, round_id: int) -> float:
        """Return alpha of a round, 1 for the first."""
        growth = 1.0 + round_id * self.context_norm**2 / self.ridge_lambda
        radius = self.noise_s * math.sqrt(FEATURES * math.log(growth / self.delta))
        return radius + math.sqrt(self.ridge_lambda) * self.theta_norm


class RbcsF:
    """Reputation-based selection with a fairness guarantee, as Lyapunov drift plus penalty.

        tau_bar_n = max(tau_hat_n - alpha_t width_n, floor)        lower bound: time is a cost
        S_t       = argmin V max_{n in S} tau_bar_n - sum_{n in S} Z_n,  |S| = min(k, available)
        Z_n      <- max(Z_n + beta - x_n, 0)                       every device, available or not

    It always holds that rate_n >= beta - Z_n / T, T the rounds since the device joined
    (`z_max` and a frozen queue give that up for the devices they touch).

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783).
    Deviates:
        tau_bar is floored at 0, because a negative bound makes slow contexts look fast. Ties are
        broken by chance, because an order by row would starve late rows at the start.
    """

    def __init__(
        self,
        *,
        beta: float,
        V: float,
        alpha: float | TheoryAlpha = 0.1,
        lcb_floor_s: float | None = 0.0,
        counts: Literal["selected", "aggregated"] = "selected",
        z_max: float | None = None,
        freeze_after: int = FREEZE_AFTER,
    ) -> None:
        """Choose the trade.

        Args:
            beta: Guaranteed long-run selection rate, in [0, 1].
            V: Weight of time against fairness, 1/seconds, at least 0.
            alpha: Confidence weight, or its schedule.
            lcb_floor_s: Lowest tau_bar, seconds; None leaves it unbounded.
            counts: x = 1 for a device that was selected (the paper), or that was merged.
            z_max: Cap on a queue; None for none, as in the paper.
            freeze_after: With `counts="aggregated"`, failures in a row that freeze a queue.

        Raises:
            ValueError: A value is out of range.
        """
        if not 0.0 <= beta <= 1.0:
            raise ValueError(f"rbcs-f: beta must be in [0, 1], got {beta}; it is a rate")
        if not (math.isfinite(V) and V >= 0.0):
            raise ValueError(f"rbcs-f: V must be finite and >= 0, got {V}; 0 ignores time")
        if freeze_after < 1:
            raise ValueError(f"rbcs-f: freeze_after must be >= 1, got {freeze_after}; raise it")
        self._beta, self._V, self._alpha = beta, V, alpha
        self._floor_s, self._counts, self._z_max = lcb_floor_s, counts, z_max
        self._freeze_after = freeze_after
        self._z: Floats = np.zeros(0)
        self._selected: Ints = np.zeros(0, dtype=np.int64)
        self._aggregated: Ints = np.zeros(0, dtype=np.int64)
        self._rounds: Ints = np.zeros(0, dtype=np.int64)
        self._failures: Ints = np.zeros(0, dtype=np.int64)

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, available) distinct rows, ascending; changes no state.

        Raises:
            ValueError: `k` is negative, or a prediction of an available device is not finite.
        """
        rows = available_rows(candidates, k)
        if k >= len(rows):
            return rows
        rows = rng.permutation(rows)
        queues = self.queues(len(candidates.is_available))[rows]
        return np.sort(rows[solve_p4(self._tau_bar_s(candidates, rows), queues, k, self._V)])

    def observe(self, outcomes: Outcomes) -> None:
        """Advance every queue by one round; a row that is new starts from Z = 0.

        Raises:
            ValueError: A row that was known is missing.
        """
        n = len(outcomes.is_selected)
        if n < len(self._z):
            raise ValueError(
                f"rbcs-f: outcomes must have a row for each of {len(self._z)} known devices, "
                f"got {n}; rows are only ever appended"
            )
        self._grow(n)
        self._rounds += 1
        self._selected += outcomes.is_selected
        self._aggregated += outcomes.is_aggregated
        failed = outcomes.is_selected & ~outcomes.is_aggregated
        self._failures = np.where(outcomes.is_aggregated, 0, self._failures + failed)
        counted = outcomes.is_selected if self._counts == "selected" else outcomes.is_aggregated
        advanced = np.maximum(self._z + self._beta - counted, 0.0)
        self._z = np.where(self._is_frozen(), self._z, np.minimum(advanced, self._ceiling()))

    def queues(self, n: int) -> Floats:
        """Return the fairness debt Z of the first `n` rows, shape (n,); 0 for a new row."""
        z: Floats = grown(self._z, n)[:n].copy()
        return z

    @property
    def frozen(self) -> Ints:
        """Rows whose queue stands still after too many failures in a row, ascending."""
        return np.flatnonzero(self._is_frozen()).astype(np.int64)

    def rates(self, n: int) -> tuple[Floats, Floats]:
        """Return how often each of the first `n` rows was selected and merged, two of shape (n,).

        Shares of the rounds since the row appeared; 0 for a row that no round has seen.
        """
        rounds = np.maximum(grown(self._rounds, n)[:n], 1)
        return grown(self._selected, n)[:n] / rounds, grown(self._aggregated, n)[:n] / rounds

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return {
            "queues": self._z.tolist(),
            "selected": self._selected.tolist(),
            "aggregated": self._aggregated.tolist(),
            "rounds": self._rounds.tolist(),
            "failures": self._failures.tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        self._z = np.array(state["queues"], dtype=np.float64)
        self._selected = np.array(state["selected"], dtype=np.int64)
        self._aggregated = np.array(state["aggregated"], dtype=np.int64)
        self._rounds = np.array(state["rounds"], dtype=np.int64)
        self._failures = np.array(state["failures"], dtype=np.int64)

    def _tau_bar_s(self, candidates: Candidates, rows: Ints) -> Floats:
        """Return the lower confidence bounds of some rows, seconds, shape (len(rows),)."""
        alpha = self._alpha
        weight = alpha.at(candidates.round) if isinstance(alpha, TheoryAlpha) else alpha
        tau_hat_s = require_finite("tau_hat_s", candidates.tau_hat_s, rows)
        width_s = require_finite("width_s", candidates.width_s, rows)
        tau_bar_s: Floats = tau_hat_s - weight * width_s
        return tau_bar_s if self._floor_s is None else np.maximum(tau_bar_s, self._floor_s)

    def _is_frozen(self) -> Bools:
        """Return which rows have a frozen queue, shape (N,)."""
        if self._counts == "selected":
            return np.zeros(len(self._z), dtype=np.bool_)
        return self._failures >= self._freeze_after

    def _ceiling(self) -> float:
        return math.inf if self._z_max is None else self._z_max

    def _grow(self, n: int) -> None:
        self._z = grown(self._z, n)
        self._selected = grown(self._selected, n)
        self._aggregated = grown(self._aggregated, n)
        self._rounds = grown(self._rounds, n)
        self._failures = grown(self._failures, n)
