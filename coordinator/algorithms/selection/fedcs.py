"""FedCS: as many devices as can finish before a deadline."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Reason
from fairbed.coordinator.algorithms.selection.pool import available_rows, require_finite, smallest

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.selection.explanation import Explanation


def greedy_sequential(
    download_s: Floats, update_s: Floats, upload_s: Floats, deadline_s: float, k: int
) -> Ints:
    """Return the devices that meet the deadline if they upload one after another.

        Td(S) = max_{n in S} download_n                        one broadcast, the slowest link
        Theta(S + n) = upload_n + max(Theta(S), update_n)      updates overlap, uploads do not
        add argmin_n Td(S + n) + Theta(S + n)                  while that is < deadline, |S| < k

    The paper's score 1 / (Td(S+n) - Td(S) + upload_n + max(0, update_n - Theta)) has the same
    argmax: what is subtracted does not depend on n. Td and Theta only grow, so a device that misses
    the deadline once is dropped: O(k N).

    Args:
        download_s: Time to receive the model, seconds, shape (N,).
        update_s: Time to train, seconds, shape (N,).
        upload_s: Time to send the update, seconds, shape (N,).
        deadline_s: Round deadline minus the coordinator's own time, seconds.
        k: Maximum number of devices.

    Returns:
        Positions in the order chosen, shape (<= k,); a tie goes to the smaller position.

    Source:
        Nishio & Yonetani, ICC 2019, client selection (arXiv:1804.08333).
    """
    chosen: list[int] = []
    left = np.arange(len(download_s))
    broadcast_s = theta_s = 0.0
    while len(chosen) < k:
        then_s = upload_s[left] + np.maximum(theta_s, update_s[left])
        total_s = np.maximum(broadcast_s, download_s[left]) + then_s
        fits = total_s < deadline_s
        if not fits.any():
            break
        left, total_s, then_s = left[fits], total_s[fits], then_s[fits]
        at = int(total_s.argmin())
        broadcast_s = max(broadcast_s, float(download_s[left[at]]))
        theta_s = float(then_s[at])
        chosen.append(int(left[at]))
        left = np.delete(left, at)
    return np.array(chosen, dtype=np.int64)


def greedy_parallel(tau_s: Floats, deadline_s: float, k: int) -> Ints:
    """Return the devices that meet the deadline if transfers do not share a channel.

    The round lasts max tau, so the greedy choice is the fastest devices: O(N).

    Args:
        tau_s: Exchange time of each device, seconds, shape (N,).
        deadline_s: Round deadline minus the coordinator's own time, seconds.
        k: Maximum number of devices.

    Returns:
        Positions, fastest first, shape (<= k,); a tie goes to the smaller position.
    """
    fastest = smallest(tau_s, k)
    return fastest[tau_s[fastest] < deadline_s]


class FedCs:
    """Selects greedily the devices whose predicted exchanges meet a deadline.

    Times come from the estimator: update = tau_hat - transfer_hat. Half of the transfer counts as
    download, half as upload, so that one device alone needs exactly tau_hat. A device never
    measured has tau_hat = 0 and comes first, so each is tried once. Ties are broken at random, so
    that devices that never reply cannot block the others for good. If no device meets the deadline,
    the fastest one is selected alone.

    Source:
        Nishio & Yonetani, ICC 2019 (arXiv:1804.08333).
    Deviates:
        The paper queries the resources of a random share of the clients; here every available
        device is a candidate. Its uploads share one channel (`uploads="sequential"`); the default
        here is `parallel`.
    """

    fills_cohort = False
    """It selects fewer devices than min(k, available) if fewer meet the deadline."""

    def __init__(
        self, *, deadline_s: float, uploads: Literal["parallel", "sequential"] = "parallel"
    ) -> None:
        """Set the time budget of a round.

        Args:
            deadline_s: Seconds from dispatch to the last update.
            uploads: Uploads overlap, or share one channel.

        Raises:
            ValueError: The deadline is not positive.
        """
        if not (math.isfinite(deadline_s) and deadline_s > 0.0):
            raise ValueError(f"fedcs: deadline_s must be > 0, got {deadline_s}; give seconds")
        self._deadline_s, self._uploads = deadline_s, uploads

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return at most min(k, available) distinct rows, ascending; changes no state.

        Raises:
            ValueError: `k` is negative, or a prediction of an available device is not finite.
        """
        rows = available_rows(candidates, k, shuffled_by=rng)
        if k == 0 or rows.size == 0:
            return rows[:0]
        tau_s, half_s, update_s = self._times_s(candidates, rows)
        if self._uploads == "parallel":
            chosen = greedy_parallel(tau_s, self._deadline_s, k)
        else:
            chosen = greedy_sequential(half_s, update_s, half_s, self._deadline_s, k)
        if chosen.size == 0:
            chosen = np.array([tau_s.argmin()])
        return np.sort(rows[chosen])

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> "Explanation":
        """Return why `select` chose this cohort; the score is the predicted time, seconds.

        The objective is the predicted duration of the round. With `uploads="sequential"` the only
        exchanges considered are those of the device that was added last.

        Raises:
            ValueError: A prediction of an available device is not finite.
        """
        from fairbed.coordinator.algorithms.selection.explanation import (
            explain_draw,
            explain_ranking,
            spread,
        )

        n, rows = len(candidates.is_available), available_rows(candidates, k)
        tau_s, half_s, update_s = self._times_s(candidates, rows)
        if chosen.size == 0:
            return explain_draw(n, rows, chosen, score=tau_s)
        is_chosen = np.isin(rows, chosen)
        is_movable, total_s = is_chosen, tau_s
        if self._uploads == "sequential":
            total_s, last = self._as_last_s(half_s, update_s, is_chosen, k)
            is_movable = np.arange(len(rows)) == last
        fits = total_s < self._deadline_s
        considered = is_movable | (fits & ~is_chosen)
        costs_s = total_s[considered]
        why = explain_ranking(
            n,
            rows[considered],
            rows[is_movable],
            costs=costs_s,
            gains=np.zeros(len(costs_s)),
            score=costs_s,
        )
        reason, margin = why.reason, why.margin
        late = ~fits & ~is_chosen
        reason[rows[late]] = Reason.OVER_DEADLINE
        margin[rows[late]] = total_s[late] - self._deadline_s
        is_fallback = not fits[is_movable].any()
        reason[chosen] = Reason.FALLBACK if is_fallback else reason[rows[is_movable][0]]
        return replace(why, score=spread(n, rows, tau_s))

    def observe(self, outcomes: Outcomes) -> None:
        """Do nothing: only the estimator learns."""

    def queues(self, n: int) -> Floats:
        """Return zeros, shape (n,): there are no virtual queues."""
        return np.zeros(n)

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""

    def _times_s(self, candidates: Candidates, rows: Ints) -> tuple[Floats, Floats, Floats]:
        """Return exchange, half of the transfer, and update of some rows, seconds, each (M,)."""
        tau_s = np.maximum(require_finite("tau_hat_s", candidates.tau_hat_s, rows), 0.0)
        transfer_s = require_finite("transfer_hat_s", candidates.transfer_hat_s, rows)
        half_s = np.clip(transfer_s, 0.0, tau_s) / 2.0
        return tau_s, half_s, tau_s - 2.0 * half_s

    def _as_last_s(
        self, half_s: Floats, update_s: Floats, is_chosen: Bools, k: int
    ) -> tuple[Floats, int]:
        """Return the duration of the round with each device as the last, (M,), and the last one.

        Where places are left, a device outside the cohort would follow all of it; otherwise it
        would take the place of the last.
        """
        at = np.flatnonzero(is_chosen)
        order = at[greedy_sequential(half_s[at], update_s[at], half_s[at], math.inf, len(at))]
        last = int(order[-1])
        alone_s = half_s[last] + max(0.0, update_s[last]) + half_s[last]
        is_fallback = len(order) == 1 and alone_s >= self._deadline_s
        has_places = len(order) < k and not is_fallback
        total_s = _appended_s(half_s, update_s, order if has_places else order[:-1])
        total_s[last] = _appended_s(half_s, update_s, order[:-1])[last]
        return total_s, last


def _appended_s(half_s: Floats, update_s: Floats, before: Ints) -> Floats:
    """Return the duration of a round in which each device follows those `before`, shape (M,)."""
    theta_s = 0.0
    for position in before.tolist():
        theta_s = float(half_s[position] + max(theta_s, update_s[position]))
    broadcast_s = half_s[before].max(initial=0.0)
    total_s: Floats = np.maximum(broadcast_s, half_s) + half_s + np.maximum(theta_s, update_s)
    return total_s
