"""FedCS: as many devices as can finish before a deadline."""

import math
from typing import Any, Literal

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes
from fairbed.coordinator.algorithms.selection.pool import available_rows, require_finite, smallest


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
        rows = rng.permutation(available_rows(candidates, k))
        if k == 0 or rows.size == 0:
            return rows[:0]
        tau_s = np.maximum(require_finite("tau_hat_s", candidates.tau_hat_s, rows), 0.0)
        transfer_s = require_finite("transfer_hat_s", candidates.transfer_hat_s, rows)
        if self._uploads == "parallel":
            chosen = greedy_parallel(tau_s, self._deadline_s, k)
        else:
            half_s = np.clip(transfer_s, 0.0, tau_s) / 2.0
            update_s = tau_s - 2.0 * half_s
            chosen = greedy_sequential(half_s, update_s, half_s, self._deadline_s, k)
        if chosen.size == 0:
            chosen = np.array([tau_s.argmin()])
        return np.sort(rows[chosen])

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
