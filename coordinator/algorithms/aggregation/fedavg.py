"""FedAvg: the weighted average of the models."""

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Stateless, Updates
from fairbed.coordinator.algorithms.aggregation.guard import normalised
from fairbed.coordinator.algorithms.arrays import Floats, Ints


class FedAvg(Stateless):
    """Weights that do not depend on losses: a_k = p_k / sum p, p of `aggregation.weights`.

    With the plain server step the next model is the average of the models, without w.

    Source:
        McMahan et al., AISTATS 2017, Algorithm 1 (arXiv:1602.05629).
    """

    needs_loss = needs_norms = needs_models = False

    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        """Return p_k, shape (K,), and exponents of 0."""
        return updates.shares, np.zeros(len(updates), dtype=np.int64)

    def decide(self, updates: Updates) -> Floats:
        """Return p_k / sum p, shape (K,)."""
        return normalised(updates.shares)
