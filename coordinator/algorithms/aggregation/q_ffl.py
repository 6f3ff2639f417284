"""q-FedAvg: the larger a device's loss under the current model, the more its update counts."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Merge, Report, Reports, merge_one_by_one
from fairbed.coordinator.algorithms.aggregation.guard import is_usable
from fairbed.coordinator.algorithms.aggregation.running_sum import (
    RunningSum,
    squared_distance,
    total_of,
)
from fairbed.coordinator.algorithms.aggregation.weighting import Weighting, Weights
from fairbed.coordinator.algorithms.arrays import Floats, Vector

SMALLEST_LOSS = 1e-10
"""Lower bound of a loss before it is raised to a power (q - 1 may be negative), nats."""

SMALLEST_RATIO = 0.01
"""Lower bound, relative to the largest loss, of the loss that divides h if 0 < q < 1."""

HEADROOM = 512
"""Most powers of two by which a coefficient may exceed the unit of its sum; float64 has 1023."""


def q_ffl_weights(
    squared_norms: Floats, losses: Floats, p: Floats, q: float, lipschitz: float
) -> Floats:
    """Return the step of the model towards each client model.

        g_k     = L (w - w_k)
        Delta_k = F_k^q g_k
        h_k     = q F_k^(q-1) |g_k|^2 + L F_k^q
        w'      = w - sum_k p_k Delta_k / sum_k p_k h_k = w + sum_k a_k (w_k - w)
        a_k     = p_k L F_k^q / sum_j p_j h_j

    For q < 1, F^(q-1) grows without bound as F falls, and one device without loss would stop the
    model. There F_k^(q-1) is F_k^q / max(F_k, max_j F_j / 100): a loss below a hundredth of the
    largest shortens the step less, and a loss of 0 hardly. All F^q are taken relative to the
    largest, which changes no a_k and cannot overflow.

    Args:
        squared_norms: |w - w_k|^2 over the parameters, shape (K,).
        losses: F_k(w) before local training, nats, shape (K,), at least 0.
        p: Factor of each client in both sums, shape (K,), all positive.
        q: Fairness exponent; 0 is a plain mean, large values approach minimax.
        lipschitz: L = 1 / eta_l, the local learning rate.

    Returns:
        a, shape (K,). It sums to at most 1 and must not be normalised: the rest stays at w.

    Source:
        Li et al., ICLR 2020, Algorithm 2 (arXiv:1905.10497).
    Deviates:
        The lower bounds of a loss: 1e-10 nats, and the hundredth in h for q < 1.
    """
    floored = np.maximum(losses, SMALLEST_LOSS)
    power = np.exp(q * (np.log(floored) - np.log(floored.max())))
    divisor = np.maximum(floored, SMALLEST_RATIO * floored.max()) if q < 1.0 else floored
    h = power * (q / divisor * lipschitz**2 * squared_norms + lipschitz)
    a: Floats = p * power * lipschitz / total_of(p * h)
    return a


@dataclass(frozen=True, slots=True)
class _Client:
    """Numbers of an update whose model is in the sums."""

    at: int
    """Position among the reports."""
    row: int
    n_k: int
    p: float
    loss: float
    squared_norm: float
    mantissa: float
    exponent: int
    """p F^q = mantissa 2^exponent, which cannot overflow."""


class QFedAvg:
    """Merges by q-FFL: parameters by `q_ffl_weights`, buffers as an n_k-weighted mean.

    `weights="n"` is for clients drawn uniformly: p_k = n_k / n enters both sums. "equal" is for
    clients drawn in proportion to n_k: p_k = 1, and q = 0 is exactly the unweighted mean.
    "n_over_pi" corrects for a selector that prefers some clients.

    Source:
        Li et al., ICLR 2020, Algorithm 2 (arXiv:1905.10497).
    """

    needs_loss = True

    def __init__(self, q: float, weights: Weights = "n") -> None:
        """Set the fairness exponent.

        Raises:
            ValueError: `q` is negative or not finite.
        """
        if not (math.isfinite(q) and q >= 0.0):
            raise ValueError(f"q-fedavg: q must be finite and >= 0, got {q}; 0 is FedAvg")
        self._q = q
        self._weighting = Weighting(weights)

    def begin(
        self, vector: Vector, n_params: int, learning_rate: float, registered: int = 0
    ) -> "QMerge":
        """Return the empty merge of a round in which `vector`, shape (n_values,), was sent."""
        return QMerge(
            vector,
            n_params,
            q=self._q,
            lipschitz=1.0 / learning_rate,
            weighting=self._weighting,
            registered=registered,
        )

    def merge(self, vector: Vector, n_params: int, reports: Reports) -> Merge:
        """Return the next model, shape (n_values,).

        It is the same model, with zero weights, if no report is usable, or if q > 0 and every
        device has loss 0.

        Raises:
            ValueError: The reports have no losses.
        """
        begun = self.begin(vector, n_params, reports.learning_rate, reports.registered)
        return merge_one_by_one(begun, reports)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return self._weighting.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._weighting.load_state(state)


class QMerge:
    """One round of q-FFL as running sums of c_k w_k, with c_k = p_k F_k^q in units of 2^unit.

        w' = (sum_k c_k w_k + (H - C) w) / H,   C = sum_k c_k,   H = c_k / a_k = C / sum_k a_k

    The unit grows when a loss arrives that would overflow it; as it is a power of two, the change
    causes no rounding.
    """

    def __init__(
        self,
        sent: Vector,
        n_params: int,
        *,
        q: float,
        lipschitz: float,
        weighting: Weighting,
        registered: int,
    ) -> None:
        self._sent, self._n_params = sent, n_params
        self._q, self._lipschitz = q, lipschitz
        self._weighting, self._registered = weighting, registered
        self._params = RunningSum(n_params)
        self._buffers = RunningSum(sent.size - n_params)
        self._unit = 0
        self._clients: list[_Client] = []
        self._count = 0

    def add(self, report: Report) -> None:
        """Add an update to the sums if it is usable.

        Raises:
            ValueError: The report has no loss.
        """
        at, self._count = self._count, self._count + 1
        if not is_usable(self._sent, report):
            return
        client = self._client(at, report)
        if not self._clients:
            self._unit = client.exponent
        elif client.exponent > self._unit + HEADROOM:
            self._params.shift(self._unit - client.exponent)
            self._unit = client.exponent
        self._clients.append(client)
        self._params.add(self._coefficient(client), report.model[: self._n_params])
        self._buffers.add(float(report.n_k), report.model[self._n_params :])

    def finish(self) -> Merge:
        """Return the next model, shape (n_values,), or the same one if no update changes it."""
        weights, clients = np.zeros(self._count), self._clients
        losses = np.array([client.loss for client in clients])
        if not clients or (self._q > 0.0 and not losses.any()):
            return Merge(self._sent.copy(), weights)
        self._weighting.observe(np.array([client.row for client in clients]), self._registered)
        a = q_ffl_weights(
            np.array([client.squared_norm for client in clients]),
            losses,
            np.array([client.p for client in clients]),
            self._q,
            self._lipschitz,
        )
        weights[[client.at for client in clients]] = a
        coefficients = total_of(np.array([self._coefficient(client) for client in clients]))
        divisor = coefficients / total_of(a)
        self._params.add(divisor - coefficients, self._sent[: self._n_params])
        moved = self._params.divided_by(divisor)
        averaged = self._buffers.divided_by(float(sum(client.n_k for client in clients)))
        return Merge(np.concatenate([moved, averaged]), weights)

    def _client(self, at: int, report: Report) -> _Client:
        assert report.loss_before is not None
        (p,) = self._weighting.of(np.array([report.row]), np.array([report.n_k])).tolist()
        exponent = self._q * math.log2(max(report.loss_before, SMALLEST_LOSS))
        whole = math.floor(exponent)
        return _Client(
            at=at,
            row=report.row,
            n_k=report.n_k,
            p=p,
            loss=report.loss_before,
            squared_norm=squared_distance(
                self._sent[: self._n_params], report.model[: self._n_params]
            ),
            mantissa=p * 2.0 ** (exponent - whole),
            exponent=whole,
        )

    def _coefficient(self, client: _Client) -> float:
        return math.ldexp(client.mantissa, client.exponent - self._unit)
