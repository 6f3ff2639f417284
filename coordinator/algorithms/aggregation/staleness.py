"""FedBuff: weights of updates that were trained on an earlier version of the model."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairbed.coordinator.algorithms.arrays import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessRule:
    """Rule by which an update of staleness s enters the current model.

        w_k'  = w + a(s) (w_k - w_base),   a(s) = (1 + s)^-exponent,   or a(s) = 1

    w is the current version, w_base the version that the device was sent, w_k its trained model.
    A rule that averages models then moves w by sum_k p_k a(s_k) D_k, D_k = w_k - w_base, with the
    weights p_k of fresh updates: a stale update moves the model less, and the others not more.
    Buffers are statistics, not steps, and are blended: b + a(s) (b_k - b).

    Source:
        Nguyen et al., AISTATS 2022 (arXiv:2106.06639), Algorithm 1 and section 3; the exponent
        1/2 is theirs, after the polynomial of Xie et al. (arXiv:1903.03934).
    """

    staleness: Literal["polynomial", "constant"] = "polynomial"
    """a(s): polynomial decay, or constant 1."""
    exponent: float = 0.5

    def weight(self, staleness: int) -> float:
        """Return a(s), 1 for a fresh update.

        Raises:
            ValueError: The staleness is negative.
        """
        if staleness < 0:
            raise ValueError(f"staleness: must be >= 0, got {staleness}")
        if self.staleness == "constant":
            return 1.0
        return float((1.0 + staleness) ** -self.exponent)

    def rebased(
        self, model: Vector, *, base: Vector, now: Vector, n_params: int, staleness: int
    ) -> Vector:
        """Return the stale update as a model based on the current version, shape (n_values,).

        Args:
            model: Model trained by the device, shape (n_values,), `[params | buffers]`.
            base: The version that the device was sent, shape (n_values,).
            now: The current version, shape (n_values,).
            n_params: Number of parameters; the other values are buffers.
            staleness: Number of versions since `base`.
        """
        weight = self.weight(staleness)
        made = model.astype(np.float64)
        made[:n_params] -= base[:n_params]
        made[n_params:] -= now[n_params:]
        made *= weight
        made += now
        with np.errstate(over="ignore"):  # the rule refuses what is not finite
            rebased: Vector = made.astype(np.float32)
        return rebased
