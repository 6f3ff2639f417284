"""CoreFed: weights whose model is in the core, so that no group of devices gains by leaving."""

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Note, Stateless, Updates
from fairbed.coordinator.algorithms.aggregation.guard import losses_beyond
from fairbed.coordinator.algorithms.aggregation.running_sum import total_of
from fairbed.coordinator.algorithms.arrays import Floats, Ints

LEAST_UTILITY = 0.05
"""Lower bound of a utility, relative to M: no update counts more than 20 / M times its share."""

LONGEST_STEP = 2.0
"""Upper bound of the sum of the weights, as a multiple of FedAvg's sum 1, or of 1 / M if that is
larger: on an L-smooth loss, gradient descent diverges beyond twice the step 1 / L."""


def utilities(losses: Floats, M: float | Floats) -> Floats:
    """Return u_i = max(M - F_i, M / 20), shape (K,), from losses in nats, shape (K,).

    M, a scalar or of shape (K,), should lie above every loss; utilities are comparable only for
    the same M.
    """
    u: Floats = np.maximum(M - losses, LEAST_UTILITY * M)
    return u


def corefed_weights(losses: Floats, M: float | Floats, w: Floats | None = None) -> Floats:
    """Return the step of the model towards each client model.

        maximise  sum_i w_i log u_i,   u_i = max(M_i - F_i, M_i / 20)
        theta' = theta + sum_i a_i (theta_i - theta)
        a_i = c_i / max(sum_j w_j, sum_j c_j / B),   c_i = w_i / u_i,   B = 2 max(1, 1 / min_j M_j)

    The a_i are not normalised: utilities below 1 lengthen the step, up to B. Each a_i is
    continuous; a larger F_i never lowers a_i or the sum, and never raises another a_j.

    Args:
        losses: F_k(theta) before local training, nats, shape (K,), at least 0.
        M: Upper bound of the losses, nats, a scalar or shape (K,).
        w: Weight of each client, shape (K,), all positive, usually n_k; None is 1 each.

    Returns:
        a, shape (K,).

    Raises:
        ValueError: M is not positive or not finite.

    Source:
        Ray Chaudhury et al., NeurIPS 2022, Algorithm 1 and section 4.5 (arXiv:2211.02091).
    Deviates:
        The bounds of utilities and of the step. The paper has neither: it assumes that M exceeds
        the loss of every model, the untrained one too. It does not state the divisor of the
        weighted sum; here it is sum w.
    """
    if not np.all(np.isfinite(M) & (np.asarray(M) > 0.0)):
        raise ValueError(f"corefed: M must be finite and > 0, got {M}; take one above every loss")
    share = np.ones(len(losses)) if w is None else w
    a: Floats = share / utilities(losses, M)
    longest = LONGEST_STEP * max(1.0, 1.0 / float(np.min(M)))
    a /= max(total_of(share), total_of(a) / longest)
    return a


class CoreFed(Stateless):
    """Weights of CoreFed, `corefed_weights`.

    With `aggregation.weights = "equal"` each device has w_i = 1; otherwise it is weighted CoreFed
    with w_i = n_i, or with n_i / pi_i for a selector that prefers some devices.

    Source:
        Ray Chaudhury et al., NeurIPS 2022, Algorithm 1 and section 4.5 (arXiv:2211.02091).
    """

    needs_loss = True
    needs_norms = needs_models = False
    rescales_step = True

    def __init__(self, M: float) -> None:
        """Set the upper bound of losses; see `corefed_weights`."""
        self._M = M

    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        """Return w_k / u_k, shape (K,), and exponents of 0."""
        c = updates.shares / utilities(updates.losses, self._M)
        return c, np.zeros(len(updates), dtype=np.int64)

    def decide(self, updates: Updates) -> Floats:
        """Return a_k, shape (K,)."""
        return corefed_weights(updates.losses, self._M, updates.shares)

    def notes(self, updates: Updates) -> list[Note]:
        """Return a note if losses are above 0.95 M."""
        return losses_beyond("corefed", self._M, LEAST_UTILITY * self._M, updates)
