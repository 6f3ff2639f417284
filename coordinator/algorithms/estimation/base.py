"""What every estimator of exchange times sees and answers.

What an estimator knows of a device before its first exchange, and how fast it forgets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints


def check_prior(estimator: str, lambda_: float, discount: float) -> None:
    """Refuse a prior that no regression can begin with.

    Args:
        estimator: Its name in `[selection]`, for the message.
        lambda_: Penalty, > 0.
        discount: Gamma in (0, 1]: what an observation weighs after each later one of the same
            device; 1 forgets nothing.

    Raises:
        ValueError: The penalty is not positive, or the discount outside (0, 1].
    """
    if not (math.isfinite(lambda_) and lambda_ > 0.0):
        raise ValueError(f"{estimator}: lambda must be > 0, got {lambda_}; 1.0 is a mild prior")
    if not 0.0 < discount <= 1.0:
        raise ValueError(f"{estimator}: discount must be in (0, 1], got {discount}; 1 keeps all")


INVERSE_MU, COLD, DOWN, UP = range(4)
"""Columns of a context: 1/mu, cold start 0 or 1, and the nominal seconds of the model's way down
and of the update's way up, each its size over the measured rate."""
CONTEXT = 4

Phase: TypeAlias = Literal["download", "load", "compute", "upload", "rest"]
PHASES: tuple[Phase, ...] = ("download", "load", "compute", "upload", "rest")
"""What an exchange is made of, as the coordinator gets to know it. `compute` is decoding,
evaluating, training and encoding; `rest` is what the others leave of tau: the way of control
messages, mostly."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected exchange times, one row a device."""

    tau_hat_s: Floats
    """Seconds, shape (N,)."""
    width_s: Floats
    """sqrt(c^T H^-1 c), shape (N,); times alpha it is the confidence radius."""
    transfer_hat_s: Floats
    """The part of tau_hat_s that is the transfer of the model, seconds, shape (N,)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of some exchanges."""

    tau_s: Floats
    """Exchange times, seconds, shape (K,)."""
    phases_s: Floats
    """Their phases, seconds, in the order of `PHASES`, shape (K, 5); they add up to tau_s. A row of
    NaN is an exchange of which only a bound is known: it missed its deadline."""

    @classmethod
    def of(cls, tau_s: Sequence[float], phases_s: Sequence[Sequence[float] | None]) -> "Measured":
        """Return measurements from plain numbers; None is an exchange whose phases are unknown."""
        unknown = [np.nan] * len(PHASES)
        rows = [unknown if phases is None else list(phases) for phases in phases_s]
        return cls(
            np.array(tau_s, dtype=np.float64),
            np.array(rows, dtype=np.float64).reshape(len(rows), len(PHASES)),
        )

    @classmethod
    def whole(cls, tau_s: Floats) -> "Measured":
        """Return exchange times whose phases nobody knows."""
        return cls(tau_s, np.full((len(tau_s), len(PHASES)), np.nan))


class Learner(Protocol):
    """Learns the exchange times of each device from measured exchanges."""

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context a device, shape (N, 4)."""
        ...

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn from exchanges: rows (K,), their contexts before selection (K, 4)."""
        ...


class Estimator(Learner, Protocol):
    """A learner that a run can take up again."""

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        ...


def require_contexts(estimator: str, context: Floats) -> None:
    """Refuse what is no context a device, by the name of the estimator.

    Raises:
        ValueError: The shape is not (N, 4).
    """
    if context.ndim != 2 or context.shape[1] != CONTEXT:
        raise ValueError(
            f"{estimator}: context must have shape (N, {CONTEXT}), got {context.shape}; stack rows"
        )
