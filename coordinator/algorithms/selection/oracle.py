"""Policies that know what others have to learn: the comparators of a regret."""

from dataclasses import replace
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Selector
from fairbed.coordinator.algorithms.selection.pool import available_rows, require_finite, smallest


class Fastest:
    """Picks the devices with the shortest predicted exchange, and nobody else, ever.

    Ties, such as all devices before the first exchange, are broken by chance.

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783): the greedy extreme of its experiments.
    """

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, available) distinct rows, ascending; changes no state.

        Raises:
            ValueError: `k` is negative, or a prediction of an available device is not finite.
        """
        rows = rng.permutation(available_rows(candidates, k))
        tau_s = require_finite("tau_hat_s", candidates.tau_hat_s, rows)
        return np.sort(rows[smallest(tau_s, k)])

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


class OracleTimes:
    """Any policy, told the expected exchange times instead of estimates.

    With RBCS-F it solves the paper's P3, the comparator of its regret. Only a replay knows the
    times that it needs.

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783), problem P3.
    """

    def __init__(self, policy: Selector) -> None:
        self._policy = policy

    @property
    def fills_cohort(self) -> bool:
        """The policy selects as many devices as it may."""
        return bool(getattr(self._policy, "fills_cohort", True))

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return what the policy chooses when it knows; changes no state.

        Raises:
            ValueError: Nobody knows the times, or the policy refuses.
        """
        if candidates.true_tau_s is None:
            raise ValueError(
                "selection: expected times must be known, got none; only a replay knows them"
            )
        nothing = np.zeros(len(candidates.true_tau_s))
        told = replace(
            candidates, tau_hat_s=candidates.true_tau_s, width_s=nothing, transfer_hat_s=nothing
        )
        return self._policy.select(told, k, rng)

    def observe(self, outcomes: Outcomes) -> None:
        """Tell the policy what became of the selection."""
        self._policy.observe(outcomes)

    def queues(self, n: int) -> Floats:
        """Return the policy's fairness debts, shape (n,)."""
        return self._policy.queues(n)

    def to_state(self) -> dict[str, Any]:
        """Return the policy's state."""
        return self._policy.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        self._policy.load_state(state)
