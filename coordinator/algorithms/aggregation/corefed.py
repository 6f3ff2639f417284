"""CoreFed: weights whose model is in the core, so that no group of devices gains by leaving."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Merge, Report, Reports, merge_one_by_one
from fairbed.coordinator.algorithms.aggregation.guard import is_usable
from fairbed.coordinator.algorithms.aggregation.running_sum import RunningSum, total_of
from fairbed.coordinator.algorithms.aggregation.weighting import Weighting, Weights
from fairbed.coordinator.algorithms.arrays import Floats, Vector

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


def corefed_weights(
    losses: Floats, M: float | Floats, w: Floats | None = None, *, normalise: bool = False
) -> Floats:
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
        normalise: Always normalise the a_i: the same direction, a step as long as FedAvg's.

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
    a /= total_of(a) if normalise else max(total_of(share), total_of(a) / longest)
    return a


class CoreFed:
    """Merges by CoreFed: parameters by `corefed_weights`, buffers as an n_k-weighted mean.

    With `weights="equal"` each device has w_i = 1; otherwise it is weighted CoreFed with
    w_i = n_i, or with n_i / pi_i for a selector that prefers some devices.

    Source:
        Ray Chaudhury et al., NeurIPS 2022, Algorithm 1 and section 4.5 (arXiv:2211.02091).
    """

    needs_loss = True

    def __init__(self, M: float, *, normalise: bool = False, weights: Weights = "equal") -> None:
        """Set the upper bound of losses; see `corefed_weights`."""
        self._M, self._normalise, self._weighting = M, normalise, Weighting(weights)

    def begin(
        self, vector: Vector, n_params: int, learning_rate: float, registered: int = 0
    ) -> "CoreMerge":
        """Return the empty merge of a round in which `vector`, shape (n_values,), was sent."""
        return CoreMerge(
            vector,
            n_params,
            M=self._M,
            normalise=self._normalise,
            weighting=self._weighting,
            registered=registered,
        )

    def merge(self, vector: Vector, n_params: int, reports: Reports) -> Merge:
        """Return the next model, shape (n_values,), or the same one if no report is usable.

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


class CoreMerge:
    """One round of CoreFed as running sums of c_k w_k, c_k = w_k / u_k.

    w' = (sum_k c_k w_k + (H - C) w) / H,   C = sum_k c_k,   H = C / sum_k a_k
    """

    def __init__(
        self,
        sent: Vector,
        n_params: int,
        *,
        M: float,
        normalise: bool,
        weighting: Weighting,
        registered: int,
    ) -> None:
        self._sent, self._n_params = sent, n_params
        self._M, self._normalise = M, normalise
        self._weighting, self._registered = weighting, registered
        self._params = RunningSum(n_params)
        self._buffers = RunningSum(sent.size - n_params)
        self._at, self._rows, self._n_k, self._count = list[int](), list[int](), list[int](), 0
        self._losses, self._shares = list[float](), list[float]()

    def add(self, report: Report) -> None:
        """Add an update to the sums if it is usable.

        Raises:
            ValueError: The report has no loss.
        """
        at, self._count = self._count, self._count + 1
        if not is_usable(self._sent, report):
            return
        assert report.loss_before is not None
        self._at.append(at)
        self._rows.append(report.row)
        self._n_k.append(report.n_k)
        self._losses.append(report.loss_before)
        self._shares += self._weighting.of(np.array([report.row]), np.array([report.n_k])).tolist()
        (utility,) = utilities(np.array(self._losses[-1:]), self._M)
        self._params.add(self._shares[-1] / float(utility), report.model[: self._n_params])
        self._buffers.add(float(report.n_k), report.model[self._n_params :])

    def finish(self) -> Merge:
        """Return the next model, shape (n_values,), or the same one if no update was usable."""
        weights = np.zeros(self._count)
        if not self._at:
            return Merge(self._sent.copy(), weights)
        self._weighting.observe(np.array(self._rows), self._registered)
        losses, shares = np.array(self._losses), np.array(self._shares)
        a = corefed_weights(losses, self._M, shares, normalise=self._normalise)
        weights[self._at] = a
        coefficients = total_of(shares / utilities(losses, self._M))
        divisor = coefficients / total_of(a)
        self._params.add(divisor - coefficients, self._sent[: self._n_params])
        moved = self._params.divided_by(divisor)
        averaged = self._buffers.divided_by(float(sum(self._n_k)))
        return Merge(np.concatenate([moved, averaged]), weights)
