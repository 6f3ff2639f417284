"""RBCS-F: short rounds with a guaranteed selection rate for every device.

`solve_p4` solves the problem of each round: exchange time against virtual queues.
"""

import math
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import grown
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes
from fairbed.coordinator.algorithms.selection.pool import available_rows, require_finite, smallest

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.selection.explanation import Explanation


TIE_TOLERANCE = 1e-12
"""Two objective values closer than this are a tie; queues are sums of a few thousand roundings."""

BLOCK = 4096
"""Positions examined together: few enough to stop early, enough to make the cost of each small."""

GROWTH = 16
"""Factor on the number of fastest devices sorted, if one block of them is not enough."""


def solve_p4(tau_bar_s: Floats, queues: Floats, k: int, V: float) -> Ints:
    """Return the k devices with the best trade-off of exchange time against virtual queues.

        minimise over S, |S| = k:   J(S) = V max_{n in S} tau_bar_n - sum_{n in S} Z_n

    Sort by tau_bar and sweep: for the prefix that ends at position j, the k largest queues, kept
    in a heap, give the candidate V tau_bar_(j) - Q_j. No set is better than the candidate of its
    own slowest member, so the best candidate is the best set. One sort and at most N heap steps,
    O(N log N). The sweep stops where even the k largest queues of all devices would not outweigh
    the time; much slower devices are not sorted.

    Ties are broken by, in this order: shorter prefix, larger Z, smaller tau_bar, smaller position.
    Shuffle the devices to break the last kind at random.

    Args:
        tau_bar_s: Lower confidence bound of each exchange time, seconds, shape (N,), finite.
        queues: Virtual queues Z, shape (N,), finite.
        k: Devices to choose.
        V: Weight of time against the queues, 1/seconds, at least 0.

    Returns:
        Positions, ascending, shape (min(k, N),).

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783), problem P4.
    Deviates:
        The published Algorithm 1 scans all devices once per device, O(N^2); the tests compare this
        form with it and with brute force.
    """
    n = len(tau_bar_s)
    if k >= n or k <= 0:
        return np.arange(n if k > 0 else 0, dtype=np.int64)
    max_queue_sum = math.fsum(queues[smallest(-queues, k)].tolist())
    prefix, blocks = None, 1
    while prefix is None:
        size = k + blocks * BLOCK + 1
        order = smallest(tau_bar_s, size)
        sorted_queues = queues[order]
        costs = V * tau_bar_s[order]
        prefix = _best_prefix(costs, sorted_queues, k, max_queue_sum, is_whole=size >= n)
        blocks *= GROWTH
    return np.sort(order[smallest(-sorted_queues[:prefix], k)])


def _best_prefix(
    costs: Floats, queues: Floats, k: int, max_queue_sum: float, *, is_whole: bool
) -> int | None:
    """Return the length of the prefix that contains the best set; None if it may be longer.

    A queue below the k largest so far changes nothing, so each block of positions is searched for
    larger ones, and only these are examined one by one.

    Args:
        costs: V tau_bar of the fastest devices, ascending, shape (M,), M > k.
        queues: Z in the same order, shape (M,).
        k: Devices to choose, at least 1.
        max_queue_sum: Sum of the k largest queues of all devices.
        is_whole: These are all devices.
    """
    heap: list[float] = queues[:k].tolist()
    heapify(heap)
    queue_sum = math.fsum(heap)
    best, prefix = float(costs[k - 1]) - queue_sum, k
    for start in range(k, len(costs), BLOCK):
        if costs[start] - max_queue_sum >= best - TIE_TOLERANCE:
            return prefix
        block = slice(start, start + BLOCK)
        larger = start + np.flatnonzero(queues[block] > heap[0])
        for j, cost, queue in zip(
            larger.tolist(), costs[larger].tolist(), queues[larger].tolist(), strict=True
        ):
            if queue > heap[0]:
                queue_sum += queue - heapreplace(heap, queue)
                if cost - queue_sum < best - TIE_TOLERANCE:
                    best, prefix = cost - queue_sum, j + 1
    return prefix if is_whole else None


FEATURES = 3
"""d of the confidence bound: 1/mu, cold start and transfer."""
FREEZE_AFTER = 5
"""Consecutive failures after which a queue is frozen (`counts="aggregated"`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoryAlpha:
    """Confidence weight alpha_t from the self-normalised bound of a linear model.

        alpha_t = R sqrt(d ln((1 + t L^2 / lambda) / delta)) + sqrt(lambda) Smax,   d = 3

    The defaults cover the experiment of the RBCS-F paper: training 1 to 4 s on one core, mu from
    0.5 to 2, tau +- 10 % uniform.

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
        """Return alpha_t of round `round_id`, 1 for the first."""
        growth = 1.0 + round_id * self.context_norm**2 / self.ridge_lambda
        radius = self.noise_s * math.sqrt(FEATURES * math.log(growth / self.delta))
        return radius + math.sqrt(self.ridge_lambda) * self.theta_norm


class RbcsF:
    """Reputation-based selection with a fairness guarantee, as Lyapunov drift plus penalty.

        tau_bar_n = max(tau_hat_n - alpha_t width_n, floor)        lower bound: time is a cost
        S_t       = argmin V max_{n in S} tau_bar_n - sum_{n in S} Z_n,  |S| = min(k, available)
        Z_n      <- max(Z_n + beta - x_n, 0)      every device of the fleet, available or not

    It always holds that rate_n >= beta - Z_n / T, with T the rounds since the device joined, except
    for a device whose queue was capped by `z_max` or frozen. A device that has left the fleet keeps
    its queue and its T.

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783).
    Deviates:
        tau_bar is floored at 0, because a negative bound makes slow devices look fast. Ties are
        broken at random, because in an order by row late rows would wait at the start.
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
        """Set the parameters.

        Args:
            beta: Guaranteed long-run selection rate, in [0, 1].
            V: Weight of time against fairness, 1/seconds, at least 0.
            alpha: Confidence weight, or its schedule.
            lcb_floor_s: Lowest tau_bar, seconds; None leaves it unbounded.
            counts: x_n = 1 for a device that was selected (the paper), or aggregated.
            z_max: Upper limit of a queue; None for no limit, as in the paper.
            freeze_after: With `counts="aggregated"`, consecutive failures that freeze a queue.

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
        rows = available_rows(candidates, k, shuffled_by=rng)
        queues = self.queues(len(candidates.is_available))[rows]
        return np.sort(rows[solve_p4(self._tau_bar_s(candidates, rows), queues, k, self._V)])

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> "Explanation":
        """Return why `select` chose this cohort; the score is V tau_bar - Z, low ones first.

        The objective is that of P4, J(S); the margin of a device is the smallest increase of J by
        an exchange of it with one device on the other side.

        Raises:
            ValueError: A prediction of an available device is not finite.
        """
        from fairbed.coordinator.algorithms.selection.explanation import explain_ranking

        n, rows = len(candidates.is_available), available_rows(candidates, k)
        queues = self.queues(n)[rows]
        costs = self._V * self._tau_bar_s(candidates, rows)
        return explain_ranking(n, rows, chosen, costs=costs, gains=queues, score=costs - queues)

    def observe(self, outcomes: Outcomes) -> None:
        """Advance every queue by one round; a new row starts from Z = 0.

        Raises:
            ValueError: A known row is missing.
        """
        n = len(outcomes.is_selected)
        if n < len(self._z):
            raise ValueError(
                f"rbcs-f: outcomes must have a row for each of {len(self._z)} known devices, "
                f"got {n}; rows are only ever appended"
            )
        self._grow(n)
        has_left = outcomes.has_left
        here: Bools = np.ones(n, dtype=np.bool_) if has_left is None else ~has_left
        self._rounds += here
        self._selected += outcomes.is_selected
        self._aggregated += outcomes.is_aggregated
        failed = outcomes.is_selected & ~outcomes.is_aggregated
        self._failures = np.where(outcomes.is_aggregated, 0, self._failures + failed)
        counted = outcomes.is_selected if self._counts == "selected" else outcomes.is_aggregated
        advanced = np.maximum(self._z + self._beta - counted, 0.0)
        self._z = np.where(
            self._is_frozen() | ~here, self._z, np.minimum(advanced, self._ceiling())
        )

    def queues(self, n: int) -> Floats:
        """Return the virtual queues Z of the first `n` rows, shape (n,); 0 for a new row."""
        z: Floats = grown(self._z, n)[:n].copy()
        return z

    @property
    def frozen(self) -> Ints:
        """Rows with a frozen queue, after too many consecutive failures, ascending."""
        return np.flatnonzero(self._is_frozen()).astype(np.int64)

    def rates(self, n: int) -> tuple[Floats, Floats]:
        """Return selection and aggregation rates of the first `n` rows, each of shape (n,).

        Rates are over the rounds since the row was added; 0 for a row without a round.
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
        """Restore a state that `to_state` returned."""
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
