"""A bound on the weight of one update, for any rule."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import (
    Note,
    Updates,
    WeightRule,
    max_devices_of,
    max_updates_of,
    notes_of,
    rescales_step,
)
from fairbed.coordinator.algorithms.aggregation.running_sum import total_of
from fairbed.coordinator.algorithms.arrays import Floats


def capped(p: Floats, cap: float) -> Floats:
    """Return the weights with sum 1 and none above `cap` that are nearest to p.

        p'_k = min(cap, tau p_k),   tau so that sum p' = 1

    Nearest in relative entropy: the weights below the cap keep their ratios. If too few p_k are
    above 0, the rest is shared equally among those that are 0; if cap < 1 / K, all are 1 / K.

    Args:
        p: Weights, shape (K,), at least 0, sum 1.
        cap: Largest weight.

    Source:
        Warmuth & Kuzmin, JMLR 9 (2008): projection onto the capped simplex.
    """
    if cap * len(p) <= 1.0:
        return np.full(len(p), 1.0 / len(p))
    is_at_cap = np.zeros(len(p), dtype=np.bool_)
    capped_p: Floats = p.copy()
    while not is_at_cap.all():
        below = ~is_at_cap
        left, mass = 1.0 - cap * np.count_nonzero(is_at_cap), total_of(p[below])
        share = p[below] / mass if mass > 0.0 else 1.0 / np.count_nonzero(below)
        capped_p[below] = share * left
        over = below & (capped_p > cap)
        if not over.any():
            break
        is_at_cap |= over
        capped_p[over] = cap
    return capped_p


class MaxWeight:
    """The weights of another rule, none above a share of their sum.

    Losses are claims of devices, and rules for fairness reward large ones: a cap bounds what one
    device gains by a false loss. The sum of the weights, the length of the step, does not change.

    Source:
        `capped`.
    """

    def __init__(self, rule: WeightRule, cap: float) -> None:
        """Cap the weights of `rule` at `cap`, a share of their sum above 0 and at most 1."""
        self.rule, self._cap = rule, cap
        self.needs_loss, self.needs_norms = rule.needs_loss, rule.needs_norms
        self.needs_models = rule.needs_models
        self.max_devices, self.max_updates = max_devices_of(rule), max_updates_of(rule)
        self.rescales_step = rescales_step(rule)

    def decide(self, updates: Updates) -> Floats:
        """Return a_k, shape (K,)."""
        a = self.rule.decide(updates)
        total = total_of(a)
        return capped(a / total, self._cap) * total if total > 0.0 else a

    def notes(self, updates: Updates) -> list[Note]:
        """Return the notes of the rule."""
        return notes_of(self.rule, updates)

    def to_state(self) -> dict[str, Any]:
        """Return the state of the rule."""
        return self.rule.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self.rule.load_state(state)
