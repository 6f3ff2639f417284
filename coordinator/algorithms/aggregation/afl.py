"""AFL: weights that follow the mixture of devices with the largest loss."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Updates
from fairbed.coordinator.algorithms.aggregation.weighting import joined, weights_of
from fairbed.coordinator.algorithms.arrays import Floats

LARGEST_STEP = 1e300
"""Upper bound of a step of a weight, so that losses of any size stay comparable."""


def nearest_on_simplex(v: Floats) -> Floats:
    """Return the point with p >= 0 and sum p = 1 that is nearest to `v`, shape (K,).

        p_k = max(v_k - theta, 0),   theta so that sum p = 1

    theta is at least max v - 1, which bounds the values above it; its value for these rises until
    none of them is below it. No sort: a million values take three or four passes.

    Source:
        Michelot, J. Optim. Theory Appl. 50 (1986); the same point as Duchi et al., ICML 2008,
        Figure 1, which sorts.
    """
    v = v - v.max()
    above = v[v > -1.0]
    while True:
        theta = (above.sum() - 1.0) / len(above)
        keeps = above > theta
        if keeps.all():
            break
        above = above[keeps]
    p: Floats = np.maximum(v - theta, 0.0)
    return p


class Afl:
    """Weights that AFL moves towards the devices with the largest losses.

        lambda' = nearest point of the simplex to lambda + gamma g
        g_k = K / |R| F_k(w_t) for the reports R, 0 for the others
        a_k = lambda'_k / sum of lambda' over R

    Every device starts with 1/K. The new weights merge the updates of the same round, and the last
    model is the result. If all reports have weight 0, they count equally. A device that joins gets
    1/K; one that leaves keeps its weight.

    Source:
        Mohri et al., ICML 2019, Algorithm 1 (arXiv:1902.00146).
    Deviates:
        The paper has all losses in every round; g is an unbiased estimate where the reports are a
        uniform sample. It returns the mean of all models. Buffers are averaged with the a_k.
    """

    needs_loss = True
    needs_norms = needs_models = False

    def __init__(self, gamma: float) -> None:
        """Set the step size of the weights, 1/nat."""
        self._gamma = gamma
        self._p: Floats = np.zeros(0)

    def decide(self, updates: Updates) -> Floats:
        """Update the weights of all devices with the losses of a round; return a, shape (K,)."""
        K, rows = max(updates.registered, len(self._p)), updates.rows
        p = joined(self._p, K)
        with np.errstate(over="ignore"):
            step = self._gamma * (K / len(rows)) * updates.losses
        p[rows] += np.minimum(step, LARGEST_STEP)
        self._p = nearest_on_simplex(p)
        return weights_of(self._p, rows)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return {"lambda": self._p.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._p = np.array(state["lambda"], dtype=np.float64)
