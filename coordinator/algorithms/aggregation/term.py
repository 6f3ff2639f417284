"""TERM: weights that grow, or fall, exponentially with the loss."""

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Stateless, Updates
from fairbed.coordinator.algorithms.aggregation.guard import normalised
from fairbed.coordinator.algorithms.aggregation.running_sum import power_of_two
from fairbed.coordinator.algorithms.arrays import Floats, Ints

LARGEST_EXPONENT = 1e9
"""Upper bound of |t F / ln 2|, an exponent of 2; larger ones count as equal."""


class Term(Stateless):
    """Weights in proportion to p_k e^(t F_k), p of `aggregation.weights`.

        a_k = p_k e^(t F_k) / sum_j p_j e^(t F_j)

    They are those of the gradient of the tilted loss 1/t log sum_k p_k e^(t F_k). t > 0 favours
    large losses, up to minimax; t < 0 small ones, which resists outliers; t = 0 is FedAvg.

    Source:
        Li et al., ICLR 2021 (arXiv:2007.01162), with one group of examples per device.
    Deviates:
        The released federated code averages e^(t F) over rounds that are scaled differently, and
        divides by the number of devices again.
    """

    needs_loss = True
    needs_norms = needs_models = False

    def __init__(self, tilt: float) -> None:
        """Set t, 1/nat."""
        self._tilt = tilt

    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        """Return p_k e^(t F_k) as mantissas and binary exponents, two arrays of shape (K,)."""
        with np.errstate(over="ignore"):
            exponents = self._tilt * updates.losses / np.log(2.0)
        mantissas, whole = power_of_two(np.clip(exponents, -LARGEST_EXPONENT, LARGEST_EXPONENT))
        return updates.shares * mantissas, whole

    def decide(self, updates: Updates) -> Floats:
        """Return a_k, shape (K,)."""
        mantissas, exponents = self.factors(updates)
        return normalised(np.ldexp(mantissas, exponents - exponents.max()))
