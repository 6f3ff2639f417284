"""FedCS: as many devices as fit into a deadline."""

import math
from typing import Any, Literal

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes
from fairbed.coordinator.algorithms.selection.pool import available_rows, require_finite, smallest


def greedy_sequential(
    download_s: Floats, update_s: Floats, upload_s: Floats, deadline_s: float, k: int
) -> Ints:
    """Return who fits into the deadline when devices upload one after another.

        Td(S) = max_{n in S} download_n                        one broadcast, the slowest link
        Theta(S + n) = upload_n + max(Theta(S), update_n)      updates overlap, uploads do not
        add argmin_n Td(S + n) + Theta(S + n)                  while that is < deadline, |S| < k

    The paper's score 1 / (Td(S+n) - Td(S) + upload_n + max(0, update_n - Theta)) has the same
    argmax: what is subtracted does not depend on n. A device that does not fit never will,
    because Td and Theta only grow, so all such are dropped at once: O(k N).

    Args:
        download_s: Time to receive the model, seconds, shape (N,).
        update_s: Time to train, seconds, shape (N,).
        upload_s: Time to send the update, seconds, shape (N,).
        deadline_s: Round deadline, with the coordinator's own time already taken off, seconds.
        k: Most devices to choose.

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
    """Return who fits into the deadline when transfers do not hinder each other.

    The round then lasts max tau, so the greedy takes the quickest first: O(N).

    Args:
        tau_s: Exchange time of each device, seconds, shape (N,).
        deadline_s: Round deadline, with the coordinator's own time already taken off, seconds.
        k: Most devices to choose.

    Returns:
        Positions, quickest first, shape (<= k,); a tie goes to the smaller position.
    """
    quickest = smallest(tau_s, k)
    return quickest[tau_s[quickest] < deadline_s]


class FedCs:
    """Picks greedily the devices whose predicted exchanges fit into a deadline.

    Times come from the estimator: update = tau_hat - transfer_hat. The transfer is taken as half
    down, half up, so that one device alone needs exactly tau_hat. A device never seen has
    tau_hat = 0, so it fits and comes first: each is tried once before any is preferred. Ties are
    broken by chance, so that devices that never answer cannot block the others for good. If
    nobody fits, the quickest device goes alone.

    Source:
        Nishio & Yonetani, ICC 2019 (arXiv:1804.08333).
    Deviates:
        The paper asks a random share of the clients for their resources; here every available
        device is a candidate. Its uploads share one channel (`uploads="sequential"`); ours do
        not, so the default is `parallel`.
    """

    fills_cohort = False
    """It selects fewer devices than it may where fewer fit into the deadline."""

    def __init__(
        self, *, deadline_s: float, uploads: Literal["parallel", "sequential"] = "parallel"
    ) -> None:
        """Set the time budget of a round.

        Args:
            deadline_s: Seconds from dispatch to the last update.
            uploads: Whether uploads overlap or queue for one channel.

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
            way_s = np.clip(transfer_s, 0.0, tau_s) / 2.0
            update_s = tau_s - 2.0 * way_s
            chosen = greedy_sequential(way_s, update_s, way_s, self._deadline_s, k)
        if chosen.size == 0:
            chosen = np.array([tau_s.argmin()])
        return np.sort(rows[chosen])

    def observe(self, outcomes: Outcomes) -> None:
        """Learn nothing: what there is to learn, the estimator learns."""

    def queues(self, n: int) -> Floats:
        """Return zeros, shape (n,): nobody is owed anything."""
        return np.zeros(n)

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over the empty state."""
