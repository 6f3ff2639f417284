"""FedBuff: what an update counts that was made from an earlier version of the model."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairbed.coordinator.algorithms.arrays import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """How an update that comes s versions late enters the model of now.

        w_k'  = w + a(s) (w_k - w_base),   a(s) = (1 + s)^-exponent,   or a(s) = 1

    w is the version of now, w_base the one that the device trained, w_k what it made of it.
    A rule that averages models then moves w by sum_k p_k a(s_k) D_k with the weights p_k of
    updates that are not late: a late one moves the model less, and gives no more to the others.
    Buffers are blended alike, b + a(s) (b_k - b): they are statistics, not steps.

    Source:
        Nguyen et al., AISTATS 2022 (arXiv:2106.06639), Algorithm 1 and section 3; the exponent
        1/2 is theirs, after the polynomial of Xie et al. (arXiv:1903.03934).
    """

    staleness: Literal["polynomial", "constant"] = "polynomial"
    """Whether an update counts less with age, or not."""
    exponent: float = 0.5

    def weight(self, staleness: int) -> float:
        """Return a(s), 1 for an update that is not late.

        Raises:
            ValueError: A staleness is not negative.
        """
        if staleness < 0:
            raise ValueError(f"staleness: must be >= 0, got {staleness}")
        if self.staleness == "constant":
            return 1.0
        return float((1.0 + staleness) ** -self.exponent)

    def rebased(
        self, model: Vector, *, base: Vector, now: Vector, n_params: int, staleness: int
    ) -> Vector:
        """Return what a late update makes of the version of now, shape (n_values,).

        Args:
            model: What the device has made, shape (n_values,), `[params | buffers]`.
            base: The version that it made it from, shape (n_values,).
            now: The version of now, shape (n_values,).
            n_params: Parameters among the values.
            staleness: Versions made since `base`.
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
