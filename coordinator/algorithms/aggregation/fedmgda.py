"""FedMGDA+: the common direction of descent of all devices, with updates of length 1."""

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Stateless, Updates
from fairbed.coordinator.algorithms.aggregation.quadratic import MOST_WEIGHTS, least_on_simplex
from fairbed.coordinator.algorithms.arrays import Floats

SMALLEST_NORM = 1e-12
"""An update that is shorter has no direction and is left out."""

RIDGE = 1e-10
"""Added to each squared length, so that the weights of equal updates are equal."""

SMALLEST_EPSILON = 1e-9
"""Weights that may differ from 1/n by at most this are 1/n."""


def common_descent(products: Floats, epsilon: float) -> Floats:
    """Return the weights of the shortest vector in the hull of unit updates.

        minimise  |sum_k lambda_k u_k|^2   subject to  |lambda_k - 1/n| <= epsilon,
                                                       lambda >= 0,  sum lambda = 1

    Args:
        products: <u_i, u_j> of unit vectors, shape (n, n).
        epsilon: 0 is the mean; 1 the common descent of multi-objective optimisation.

    Returns:
        lambda, shape (n,).
    """
    n = len(products)
    mean = np.full(n, 1.0 / n)
    if epsilon <= SMALLEST_EPSILON or n == 1:
        return mean
    lower, upper = max(0.0, 1.0 / n - epsilon), min(1.0, 1.0 / n + epsilon)
    return least_on_simplex(products + RIDGE * np.eye(n), np.zeros(n), mean, lower, upper)


class FedMgda(Stateless):
    """Weights lambda_k / |D_k| of FedMGDA+, so that w' = w + eta_s sum_k lambda_k D_k / |D_k|.

    The length of the step depends on `aggregation.server_learning_rate` and on how far the devices
    agree, not on the lengths of their updates. Where lambda is not at its bounds, no device's loss
    rises to first order. Buffers are averaged with the same weights.

    Source:
        Hu et al., IEEE Trans. Netw. Sci. Eng. 2022, Algorithm 1 (arXiv:2006.11489).
    Deviates:
        Updates shorter than 1e-12 are left out.
    """

    needs_models = True
    needs_loss = needs_norms = False
    rescales_step = True
    max_updates = MOST_WEIGHTS

    def __init__(self, epsilon: float) -> None:
        """Set the largest difference of a weight from 1/n."""
        self._epsilon = epsilon

    def decide(self, updates: Updates) -> Floats:
        """Return lambda_k / |D_k|, shape (K,); 0 for an update without length."""
        assert updates.changes is not None, "FedMGDA+ needs the changes"
        products = updates.changes.inner_products()
        norms = np.sqrt(np.diag(products))
        moved = np.flatnonzero(norms >= SMALLEST_NORM)
        a = np.zeros(len(updates))
        if moved.size:
            unit = products[np.ix_(moved, moved)] / np.multiply.outer(norms[moved], norms[moved])
            a[moved] = common_descent(unit, self._epsilon) / norms[moved]
        return a
