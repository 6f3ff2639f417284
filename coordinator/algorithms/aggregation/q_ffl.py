"""q-FedAvg: the more a device loses with the current model, the more its update counts."""

import math
from typing import Any, Literal

import numpy as np

from coordinator.algorithms.aggregation.base import Merge, Reports
from coordinator.algorithms.aggregation.guard import normalised, usable, weighted_sum
from coordinator.algorithms.aggregation.participation import Participation
from coordinator.algorithms.arrays import Floats, Ints, Vector

SMALLEST_LOSS = 1e-10
"""Floor of a loss before it is raised to a power (q - 1 may be negative); nats."""


def q_ffl_weights(
    squared_norms: Floats, losses: Floats, p: Floats, q: float, lipschitz: float
) -> Floats:
    """Return how far the model moves towards each client model.

        g_k     = L (w - w_k)
        Delta_k = F_k^q g_k
        h_k     = q F_k^(q-1) |g_k|^2 + L F_k^q
        w'      = w - sum_k p_k Delta_k / sum_k p_k h_k = w + sum_k a_k (w_k - w)
        a_k     = p_k L F_k^q / sum_j p_j h_j

    All F^q are taken relative to the largest, which changes no a_k and cannot overflow.

    Args:
        squared_norms: |w - w_k|^2 over the parameters, shape (K,).
        losses: F_k(w) before local training, nats, shape (K,), at least 0.
        p: Factor of each client in both sums, shape (K,), all positive.
        q: Fairness exponent; 0 is a plain mean, large is minimax.
        lipschitz: L = 1 / eta_l, the local learning rate.

    Returns:
        a, shape (K,), sums to at most 1; the rest stays at w. Do not renormalise it.

    Source:
        Li et al., ICLR 2020, Algorithm 2 (arXiv:1905.10497).
    """
    floored = np.maximum(losses, SMALLEST_LOSS)
    power = np.exp(q * (np.log(floored) - np.log(floored.max())))
    h = power * (q / floored * lipschitz**2 * squared_norms + lipschitz)
    a: Floats = p * power * lipschitz / (p * h).sum()
    return a


class QFedAvg:
    """Merges by q-FFL: parameters by its formula, buffers as an n_k-weighted mean.

    With `sampling_weights="uniform"` clients are drawn without regard to their data, so p_k =
    n_k / n enters both sums (divided by the running rate of merged updates with
    `weights="n_over_pi"`); with "none" they were drawn in proportion to n_k, and p_k = 1, where
    q = 0 is exactly the unweighted mean.

    Source:
        Li et al., ICLR 2020, Algorithm 2 (arXiv:1905.10497).
    """

    needs_loss = True

    def __init__(
        self,
        q: float,
        sampling_weights: Literal["uniform", "none"] = "uniform",
        weights: Literal["n", "n_over_pi"] = "n",
    ) -> None:
        """Choose the fairness exponent.

        Raises:
            ValueError: `q` is negative or not finite.
        """
        if not (math.isfinite(q) and q >= 0.0):
            raise ValueError(f"q-fedavg: q must be finite and >= 0, got {q}; 0 is FedAvg")
        self._q, self._sampling_weights, self._weights = q, sampling_weights, weights
        self._participation = Participation()

    def merge(self, vector: Vector, n_params: int, reports: Reports) -> Merge:
        """Return the next model, shape (n_values,).

        It is the same model, with zero weights, if no report is usable, or if q > 0 and every
        device already has loss 0.

        Raises:
            ValueError: The reports carry no losses at all.
        """
        weights = np.zeros(len(reports.models))
        at = usable(vector, reports, needs_loss=True)
        losses = np.zeros(0) if reports.loss_before is None else reports.loss_before[at]
        if at.size == 0 or (self._q > 0.0 and not losses.any()):
            return Merge(vector.copy(), weights)
        sent = vector[:n_params].astype(np.float64)
        params = [reports.models[k][:n_params] for k in at]
        buffers = [reports.models[k][n_params:] for k in at]
        n_k = reports.n_k[at].astype(np.float64)
        weights[at] = q_ffl_weights(
            np.array([np.square(sent - w_k).sum() for w_k in params]),
            losses,
            self._p(n_k, reports.rows[at]),
            self._q,
            1.0 / reports.learning_rate,
        )
        moved = (1.0 - weights[at].sum()) * sent + weighted_sum(params, weights[at])
        averaged = weighted_sum(buffers, normalised(n_k))
        return Merge(np.concatenate([moved, averaged]).astype(np.float32), weights)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return self._participation.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        self._participation.load_state(state)

    def _p(self, n_k: Floats, rows: Ints) -> Floats:
        """Return the factor of each client, shape (K,), from its examples and its row."""
        if self._sampling_weights == "none":
            return np.ones(len(n_k))
        if self._weights == "n_over_pi":
            return normalised(n_k / self._participation.observe(rows))
        return normalised(n_k)
