"""Comparators for a regret: the greedy policy, and any policy with true expected times."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Selector
from fairbed.coordinator.algorithms.selection.pool import available_rows, require_finite, smallest

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.selection.explanation import Explanation


class Fastest:
    """Selects the devices with the shortest predicted exchange times, without exploration.

    Ties, such as all devices before the first exchange, are broken at random.

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783): the greedy extreme of its experiments.
    """

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, available) distinct rows, ascending; changes no state.

        Raises:
            ValueError: `k` is negative, or a prediction of an available device is not finite.
        """
        rows = available_rows(candidates, k, shuffled_by=rng)
        tau_s = require_finite("tau_hat_s", candidates.tau_hat_s, rows)
        return np.sort(rows[smallest(tau_s, k)])

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> "Explanation":
        """Return why `select` chose this cohort; score and objective are predicted seconds."""
        from fairbed.coordinator.algorithms.selection.explanation import explain_ranking

        rows = available_rows(candidates, k)
        tau_s, n = candidates.tau_hat_s[rows], len(candidates.is_available)
        zeros = np.zeros(len(rows))
        return explain_ranking(n, rows, chosen, costs=tau_s, gains=zeros, score=tau_s)

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


class OracleTimes:
    """Any policy, given the true expected exchange times instead of estimates.

    With RBCS-F it solves the paper's P3, the comparator of its regret. Only a replay knows these
    times.

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783), problem P3.
    """

    def __init__(self, policy: Selector) -> None:
        self._policy = policy

    @property
    def fills_cohort(self) -> bool:
        """The policy selects min(k, available) devices."""
        return bool(getattr(self._policy, "fills_cohort", True))

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return the selection of the policy, given true times; changes no state.

        Raises:
            ValueError: The true times are unknown, or the policy raises.
        """
        return self._policy.select(_informed(candidates), k, rng)

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> "Explanation | None":
        """Return the explanation of the policy, given true times; None if it has none."""
        from fairbed.coordinator.algorithms.selection.explanation import ExplainingSelector

        if not isinstance(self._policy, ExplainingSelector):
            return None
        return self._policy.explain(_informed(candidates), chosen, k, rng)

    def observe(self, outcomes: Outcomes) -> None:
        """Pass the outcome of the selection to the policy."""
        self._policy.observe(outcomes)

    def queues(self, n: int) -> Floats:
        """Return the policy's virtual queues, shape (n,)."""
        return self._policy.queues(n)

    def to_state(self) -> dict[str, Any]:
        """Return the policy's state."""
        return self._policy.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._policy.load_state(state)


def _informed(candidates: Candidates) -> Candidates:
    """Return the candidates with true times for estimates.

    Raises:
        ValueError: They are unknown.
    """
    if candidates.true_tau_s is None:
        raise ValueError(
            "selection: true exchange times must be known, got None; use the policy in a replay"
        )
    nothing = np.zeros(len(candidates.true_tau_s))
    return replace(
        candidates, tau_hat_s=candidates.true_tau_s, width_s=nothing, transfer_hat_s=nothing
    )
