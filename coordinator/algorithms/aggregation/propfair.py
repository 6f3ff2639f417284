"""PropFair: proportional fairness, weights in proportion to 1 / (M - F)."""

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Note, Stateless, Updates
from fairbed.coordinator.algorithms.aggregation.guard import losses_beyond, normalised
from fairbed.coordinator.algorithms.arrays import Floats, Ints

LEAST_GAP = 0.2
"""Lower bound of M - F, nats: epsilon of the released code (huawei-noah/Federated-Learning)."""


class PropFair(Stateless):
    """Weights of the server form of PropFair, which maximises sum_k p_k log(M - F_k).

        a_k = c_k / sum_j c_j,   c_k = p_k / max(M - F_k, 0.2)

    p of `aggregation.weights`. The weights are continuous in each loss; all losses above M - 0.2
    count alike.

    Source:
        Zhang et al., TMLR 2023 (arXiv:2202.01666). Devices there ascend log(M - F) themselves;
        weights by 1 / (M - F_k) are the same gradient for one step on all examples, as in
        Hahn et al., ICML 2024 (arXiv:2405.20821).
    Deviates:
        Below the bound, the released code divides the gradient by M, a jump; here it is 0.2.
    """

    needs_loss = True
    needs_norms = needs_models = False

    def __init__(self, M: float) -> None:
        """Set M, nats, which should lie above every loss.

        Raises:
            ValueError: M is at most 0.2, so that all weights would be p_k.
        """
        if not M > LEAST_GAP:
            raise ValueError(
                f"propfair: M must be above {LEAST_GAP}, got {M}; take one above every loss"
            )
        self._M = M

    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        """Return c_k, shape (K,), and exponents of 0."""
        c = updates.shares / np.maximum(self._M - updates.losses, LEAST_GAP)
        return c, np.zeros(len(updates), dtype=np.int64)

    def decide(self, updates: Updates) -> Floats:
        """Return a_k, shape (K,)."""
        return normalised(self.factors(updates)[0])

    def notes(self, updates: Updates) -> list[Note]:
        """Return a note if losses are above M - 0.2."""
        return losses_beyond("propfair", self._M, LEAST_GAP, updates)
