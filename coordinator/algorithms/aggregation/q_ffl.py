"""q-FFL: the larger a device's loss under the current model, the more its update counts."""

import math

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Stateless, Updates
from fairbed.coordinator.algorithms.aggregation.running_sum import power_of_two, total_of
from fairbed.coordinator.algorithms.arrays import Floats, Ints

SMALLEST_LOSS = 1e-10
"""Lower bound of a loss before it is raised to a power (q - 1 may be negative), nats."""

SMALLEST_RATIO = 0.01
"""Lower bound, relative to the largest loss, of the loss that divides h if 0 < q < 1."""


def q_ffl_weights(
    squared_norms: Floats,
    losses: Floats,
    p: Floats,
    q: float,
    slope: float,
    lipschitz: float | None = None,
) -> Floats:
    """Return the step of the model towards each client model.

        g_k     = (w - w_k) / eta_l,   L = 1 / eta_l unless it is given
        Delta_k = F_k^q g_k
        h_k     = q F_k^(q-1) |g_k|^2 + L F_k^q
        w'      = w - sum_k p_k Delta_k / sum_k p_k h_k = w + sum_k a_k (w_k - w)
        a_k     = p_k F_k^q / eta_l / sum_j p_j h_j

    With one local step on all examples, g_k is the gradient of F_k: this is q-FedSGD.

    For q < 1, F^(q-1) grows without bound as F falls, and one device without loss would stop the
    model. There F_k^(q-1) is F_k^q / max(F_k, max_j F_j / 100): a loss below a hundredth of the
    largest shortens the step less, and a loss of 0 hardly. All F^q are taken relative to the
    largest, which changes no a_k and cannot overflow.

    Args:
        squared_norms: |w - w_k|^2 over the parameters, shape (K,).
        losses: F_k(w) before local training, nats, shape (K,), at least 0.
        p: Factor of each client in both sums, shape (K,), all positive.
        q: Fairness exponent; 0 is a plain mean, large values approach minimax.
        slope: 1 / eta_l, eta_l the local learning rate.
        lipschitz: L, the Lipschitz constant of the gradients; None is 1 / eta_l.

    Returns:
        a, shape (K,). It must not be normalised. It sums to at most 1 / (eta_l L); what it lacks of
        1 stays at w.

    Source:
        Li et al., ICLR 2020, Algorithms 1 and 2 (arXiv:1905.10497).
    Deviates:
        The lower bounds of a loss: 1e-10 nats, and the hundredth in h for q < 1.
    """
    L = slope if lipschitz is None else lipschitz
    floored = np.maximum(losses, SMALLEST_LOSS)
    power = np.exp(q * (np.log(floored) - np.log(floored.max())))
    divisor = np.maximum(floored, SMALLEST_RATIO * floored.max()) if q < 1.0 else floored
    h = power * (q / divisor * slope**2 * squared_norms + L)
    a: Floats = p * power * slope / total_of(p * h)
    return a


class QFedAvg(Stateless):
    """Weights of q-FFL, `q_ffl_weights`: q-FedAvg, and q-FedSGD with one local step.

    `aggregation.weights = "n"` is for clients drawn uniformly: p_k = n_k / n enters both sums.
    "equal" is for clients drawn in proportion to n_k: p_k = 1, and q = 0 is exactly the unweighted
    mean. "n_over_pi" corrects for a selector that prefers some clients.

    Source:
        Li et al., ICLR 2020, Algorithms 1 and 2 (arXiv:1905.10497).
    """

    needs_loss = needs_norms = True
    needs_models = False

    def __init__(self, q: float, lipschitz: float | None = None) -> None:
        """Set the fairness exponent, and L of q-FedSGD; None is 1 / eta_l of each round.

        Raises:
            ValueError: `q` is negative or not finite.
        """
        if not (math.isfinite(q) and q >= 0.0):
            raise ValueError(f"q-fedavg: q must be finite and >= 0, got {q}; 0 is FedAvg")
        self._q, self._lipschitz = q, lipschitz
        self.rescales_step = q != 0.0 or lipschitz is not None

    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        """Return p_k F_k^q as mantissas and binary exponents, two arrays of shape (K,)."""
        exponents = self._q * np.log2(np.maximum(updates.losses, SMALLEST_LOSS))
        mantissas, whole = power_of_two(exponents)
        return updates.shares * mantissas, whole

    def decide(self, updates: Updates) -> Floats:
        """Return a_k, shape (K,); all are 0 if q > 0 and every device has loss 0."""
        if self._q > 0.0 and not updates.losses.any():
            return np.zeros(len(updates))
        return q_ffl_weights(
            updates.squared_norms,
            updates.losses,
            updates.shares,
            self._q,
            1.0 / updates.learning_rate,
            self._lipschitz,
        )
