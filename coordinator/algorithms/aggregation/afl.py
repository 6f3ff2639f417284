"""AFL: weights that follow the mixture of devices with the largest loss."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Updates
from fairbed.coordinator.algorithms.aggregation.running_sum import total_of
from fairbed.coordinator.algorithms.aggregation.weighting import (
    JoinedDevices,
    joined,
    weights_of,
)
from fairbed.coordinator.algorithms.arrays import Floats

LARGEST_STEP = 1e300
"""Upper bound of a step of a weight, so that losses of any size stay comparable."""


def nearest_on_simplex(v: Floats, total: float = 1.0) -> Floats:
    """Return the point with p >= 0 and sum p = `total` that is nearest to `v`, shape (K,).

        p_k = max(v_k - theta, 0),   theta so that sum p = total

    theta is at least max v - total, which bounds the values above it; its value for these rises
    until none of them is below it. No sort: a million values take three or four passes.

    Source:
        Michelot, J. Optim. Theory Appl. 50 (1986); the same point as Duchi et al., ICML 2008,
        Figure 1, which sorts.
    """
    v = v - v.max()
    above = v[v > -total]
    while True:
        theta = (above.sum() - total) / len(above)
        keeps = above > theta
        if keeps.all():
            break
        above = above[keeps]
    p: Floats = np.maximum(v - theta, 0.0)
    return p


class Afl:
    """Weights that AFL moves towards the devices with the largest losses.

        lambda' = nearest point to lambda + gamma g with lambda' >= 0 and the same sum over Q
        g_k = |Q| / |R| F_k(w_t) for the reports R, 0 for the others of Q
        a_k = lambda'_k / sum of lambda' over R

    Q are the reports and the devices that were not drawn. Every device starts with 1/K, and so does
    one that joins. One that is away, or fails, is not in Q and keeps its weight: it would have none
    after a few rounds, because g is never negative. If all of Q have no weight, each gets 1/K from
    the others. The new weights merge the updates of the same round, and the last model is the
    result. If all reports have weight 0, they count equally.

    Source:
        Mohri et al., ICML 2019, Algorithm 1 (arXiv:1902.00146).
    Deviates:
        The paper has all losses in every round, so that Q is all devices; g is an unbiased estimate
        where the reports are a uniform sample of Q. It returns the mean of all models. Buffers are
        averaged with the a_k.
    """

    needs_loss = True
    needs_norms = needs_models = False

    def __init__(self, gamma: float) -> None:
        """Set the step size of the weights, 1/nat."""
        self._gamma = gamma
        self._joined = JoinedDevices()
        self._p: Floats = np.zeros(0)

    def decide(self, updates: Updates) -> Floats:
        """Update the weights of all devices with the losses of a round; return a, shape (K,)."""
        taking_part = self._joined.add(updates)
        rows, p = self._joined.places(updates.rows), joined(self._p, len(self._joined))
        n, K = len(taking_part), len(p)
        Q = slice(None) if n == K else taking_part
        total = 1.0 if n == K else total_of(p[Q])
        if total <= 0.0:
            total = n / K
            p *= 1.0 - total
            p[Q] = 1.0 / K
        with np.errstate(over="ignore"):
            step = self._gamma * (n / len(rows)) * updates.losses
        p[rows] += np.minimum(step, LARGEST_STEP)
        p[Q] = nearest_on_simplex(p[Q], total)
        self._p = p
        return weights_of(p, rows)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return {"lambda": self._p.tolist(), "joined": self._joined.to_state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._p = np.array(state["lambda"], dtype=np.float64)
        self._joined.load_state(state["joined"])
