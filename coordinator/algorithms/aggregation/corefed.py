"""CoreFed: no group of devices would gain enough alone to leave."""

import numpy as np

from coordinator.algorithms.aggregation.running import total_of
from coordinator.algorithms.arrays import Floats

LEAST_UTILITY = 0.05
"""Smallest utility, relative to M: no update counts more than 20 / M times its share."""


def utilities(losses: Floats, M: float | Floats) -> Floats:
    """Return u_i = max(M - F_i, M / 20), shape (K,), from losses in nats, shape (K,).

    M, one for all or of shape (K,), is to lie above every loss there is; utilities compare only
    with the same M.
    """
    u: Floats = np.maximum(M - losses, LEAST_UTILITY * M)
    return u


def corefed_weights(
    losses: Floats, M: float | Floats, w: Floats | None = None, *, normalise: bool = False
) -> Floats:
    """Return how far the model moves towards each client model.

        maximise  sum_i w_i log u_i,   u_i = M_i - F_i
        theta' = theta + sum_i a_i (theta_i - theta),   a_i = w_i / (u_i sum_j w_j)

    They are not normalised: utilities below 1 lengthen the step. Where a loss is so near M, or
    above it, that its utility is the smallest there is, they are: a model that has not learned
    anything would else be thrown far.

    Args:
        losses: F_k(theta) before local training, nats, shape (K,), at least 0.
        M: Above every loss, nats, one for all or shape (K,).
        w: Weight of each client, shape (K,), all positive; None is 1 each. n_k is natural.
        normalise: Always make them sum to 1: the same direction, a step as long as FedAvg's.

    Returns:
        a, shape (K,).

    Raises:
        ValueError: M is not positive or not finite.

    Source:
        Ray Chaudhury et al., NeurIPS 2022, Algorithm 1 and section 4.5 (arXiv:2211.02091).
    Deviates:
        The smallest utility, and normalised weights while it is in use; the paper takes M for
        granted. It does not say what the weighted sum is divided by: sum w.
    """
    if not np.all(np.isfinite(M) & (np.asarray(M) > 0.0)):
        raise ValueError(f"corefed: M must be finite and > 0, got {M}; take one above every loss")
    share = np.ones(len(losses)) if w is None else w
    a: Floats = share / utilities(losses, M)
    is_near = bool((losses > M - LEAST_UTILITY * M).any())
    a /= total_of(a) if normalise or is_near else total_of(share)
    return a
