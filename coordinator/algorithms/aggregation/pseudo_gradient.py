"""Pseudo-gradients: how the weighted changes of the devices become one change of the model."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Updates
from fairbed.coordinator.algorithms.aggregation.running_sum import total_of
from fairbed.coordinator.algorithms.arrays import Floats, Ints


class Average:
    """The weighted sum of the changes, d = sum_k a_k D_k."""

    def factors(self, updates: Updates) -> Floats:
        """Return 1 for each update, shape (K,)."""
        return np.ones(len(updates))

    def coefficients(self, updates: Updates, a: Floats) -> Floats:
        """Return the weights, shape (K,)."""
        return a

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""


class FedNova(Average):
    """The average direction of the devices, whatever the number of their local steps.

        d = tau_eff sum_k a_k D_k / |a_k|_1,   tau_eff = sum_k a_k |a_k|_1

    |a_k|_1 counts the tau_k local steps of device k as `effective_steps` does. A device with many
    local steps moves far, and FedAvg would follow it; here each device counts by its direction.
    The b_k sum to at least 1, and to more where devices differ in their steps. With a proximal term
    tau_eff is sum_k a_k tau_k, as in the authors' code: then the step is longer than FedAvg's even
    for equal tau_k.

    Source:
        Wang et al., NeurIPS 2020 (arXiv:2007.07481); tau_eff with a proximal term after the
        authors' code, github.com/JYWa/FedNova.
    Deviates:
        The authors' code has one recursion for momentum and one for a proximal term; here both
        together follow the recursion of the local steps, see `effective_steps`.
    """

    rescales_step = True

    def __init__(self, momentum: float = 0.0, proximal: float = 0.0) -> None:
        """Set how devices train.

        Args:
            momentum: rho of local SGD, which starts at 0 in every round; in [0, 1).
            proximal: mu of FedProx; mu times the local learning rate must be at most 1.
        """
        self._momentum, self._proximal = momentum, proximal

    def factors(self, updates: Updates) -> Floats:
        """Return 1 / |a_k|_1, shape (K,)."""
        return 1.0 / self._norms(updates)

    def coefficients(self, updates: Updates, a: Floats) -> Floats:
        """Return b_k = a_k tau_eff / |a_k|_1, shape (K,); a_k itself if devices do not differ."""
        norms = self._norms(updates)
        if self._proximal:
            tau_eff = total_of(a * updates.steps)
        elif norms.min() == norms.max():
            return a
        else:
            tau_eff = total_of(a * norms)
        b: Floats = a * (tau_eff / norms)
        return b

    def _norms(self, updates: Updates) -> Floats:
        shrinkage = updates.learning_rate * self._proximal
        return effective_steps(updates.steps, self._momentum, shrinkage)


def effective_steps(steps: Ints, momentum: float, shrinkage: float) -> Floats:
    """Return |a_k|_1: how far tau_k local steps lead along a constant gradient, over eta_l.

        v <- rho v + 1 - eta_l mu x,   x <- x + v,   from v = x = 0;   |a_k|_1 = x after tau_k steps

    It is tau_k for plain SGD. With momentum alone it is sum_j c_j, c_j = rho c_(j-1) + 1; with a
    proximal term alone, x <- (1 - eta_l mu) x + 1. Steps are taken by repeated squaring.

    Args:
        steps: tau_k, shape (K,), all positive.
        momentum: rho.
        shrinkage: eta_l mu, in [0, 1].

    Returns:
        Shape (K,), all positive.

    Source:
        Wang et al., NeurIPS 2020 (arXiv:2007.07481), accumulated local gradients.
    """
    x, v = np.zeros(len(steps)), np.zeros(len(steps))
    xx, xv, vx, vv = 1.0 - shrinkage, momentum, -shrinkage, momentum
    x1 = v1 = 1.0
    for bit in range(int(steps.max()).bit_length()):
        # One application is 2^bit steps: x <- xx x + xv v + x1, v <- vx x + vv v + v1.
        is_taken = (steps >> bit) & 1 == 1
        x, v = (
            np.where(is_taken, xx * x + xv * v + x1, x),
            np.where(is_taken, vx * x + vv * v + v1, v),
        )
        x1, v1 = xx * x1 + xv * v1 + x1, vx * x1 + vv * v1 + v1
        xx, xv, vx, vv = (
            xx * xx + xv * vx,
            xx * xv + xv * vv,
            vx * xx + vv * vx,
            vx * xv + vv * vv,
        )
    return x
