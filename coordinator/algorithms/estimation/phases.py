"""One regression for each phase of an exchange, since we observe phases and not only their sum."""

from functools import reduce
from typing import Any

import numpy as np

from coordinator.algorithms.arrays import Floats, Ints
from coordinator.algorithms.estimation.base import (
    COLD,
    CONTEXT,
    DOWN,
    INVERSE_MU,
    PHASES,
    UP,
    Measured,
    Phase,
    Prediction,
    require_contexts,
)
from coordinator.algorithms.estimation.elasticity import Elasticities
from coordinator.algorithms.estimation.proportion import Proportions
from coordinator.algorithms.estimation.transfer import Transfers

_NUMBER: dict[Phase, int | None] = {
    "download": DOWN,
    "load": COLD,
    "compute": INVERSE_MU,
    "upload": UP,
    "rest": None,
}
"""The number of the context that a phase is learned from; None is a constant."""

_MODEL: dict[Phase, type[Transfers] | type[Proportions] | type[Elasticities]] = {
    "download": Transfers,
    "load": Proportions,
    "compute": Proportions,
    "upload": Transfers,
    "rest": Elasticities,
}
"""The rates of transfers were measured some time ago; control messages, which are the rest, wait
for seconds where nothing passes."""


class Phases:
    """Learns each phase p of each device by itself.

        tau_hat = sum_p y_hat_p,   width = sqrt(sum_p width_p^2)
        y_p = theta_p c_p                      loading and computing
        y_p = e^{a_p + d_p q_p} c_p^{b_p}      the transfers and the rest; b_p, d_p of all devices

    with c_p = nominal seconds down, cold start, 1/mu, nominal seconds up, and 1, and q_p what the
    last transfer said. A phase whose number is 0, such as loading on a warm device, teaches and
    predicts nothing.

    Source:
        Own; the regressions are `Proportions`, `Transfers` and `Elasticities`, the sum of
        independent errors is textbook.
    """

    def __init__(self, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior of every phase: see the three.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        self._models = {phase: _MODEL[phase](lambda_, discount) for phase in PHASES}

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context a device, shape (N, 4).

        Raises:
            ValueError: The shape is wrong.
        """
        require_contexts("phases", context)
        said = {
            phase: model.predict(_number(phase, context)) for phase, model in self._models.items()
        }
        times_s = [y_hat_s for y_hat_s, _ in said.values()]
        squares = [width_s**2 for _, width_s in said.values()]
        transfer_s: Floats = said["download"][0] + said["upload"][0]
        return Prediction(
            tau_hat_s=reduce(np.add, times_s),
            width_s=np.sqrt(reduce(np.add, squares)),
            transfer_hat_s=np.maximum(transfer_s, 0.0),
        )

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn from exchanges: rows (K,), their contexts before selection (K, 4).

        An exchange whose phases are unknown teaches nothing.

        Raises:
            ValueError: Shapes disagree, or a number is not finite. Nothing is learned then.
        """
        shape = (len(rows), CONTEXT), (len(rows), len(PHASES))
        if (context.shape, measured.phases_s.shape) != shape:
            raise ValueError(
                f"phases: need rows (K,), context (K, 4) and phases (K, 5), got {rows.shape}, "
                f"{context.shape} and {measured.phases_s.shape}; pass one row per exchange"
            )
        is_known = ~np.isnan(measured.phases_s).any(axis=1)
        rows, context, phases_s = rows[is_known], context[is_known], measured.phases_s[is_known]
        if not (np.isfinite(context).all() and np.isfinite(phases_s).all()):
            raise ValueError(
                f"phases: contexts and times must be finite, got {context.tolist()} and "
                f"{phases_s.tolist()}; leave invalid exchanges out"
            )
        for column, (phase, model) in enumerate(self._models.items()):
            model.observe(rows, _number(phase, context), phases_s[:, column])

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        return {phase: model.to_state() for phase, model in self._models.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned, of an estimator with the same prior."""
        for phase, model in self._models.items():
            model.load_state(state[phase])


def _number(phase: Phase, context: Floats) -> Floats:
    """Return the number that a phase is proportional to, shape (N,)."""
    column = _NUMBER[phase]
    return np.ones(len(context)) if column is None else context[:, column]
