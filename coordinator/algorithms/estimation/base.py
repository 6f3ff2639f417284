"""Inputs, results and interfaces of the estimators of exchange times."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints


def check_prior(estimator: str, lambda_: float, discount: float) -> None:
    """Check the prior of a regression.

    Args:
        estimator: Its name in `[selection]`, for the message.
        lambda_: Penalty, > 0.
        discount: Gamma in (0, 1]: factor on the weight of an observation at each later one of the
            same device; 1 forgets nothing.

    Raises:
        ValueError: The penalty is not positive, or the discount outside (0, 1].
    """
    if not (math.isfinite(lambda_) and lambda_ > 0.0):
        raise ValueError(f"{estimator}: lambda must be > 0, got {lambda_}; 1.0 is a mild prior")
    if not 0.0 < discount <= 1.0:
        raise ValueError(f"{estimator}: discount must be in (0, 1], got {discount}; 1 keeps all")


INVERSE_MU, COLD, DOWN, UP = range(4)
"""Columns of a context: 1/mu, cold start 0 or 1, and the nominal seconds of the download of the
model and of the upload of the update, each its size over the measured rate."""
CONTEXT = 4
"""Number of columns of a context."""

Phase: TypeAlias = Literal["download", "load", "compute", "upload", "rest"]
PHASES: tuple[Phase, ...] = ("download", "load", "compute", "upload", "rest")
"""Phases of an exchange, as the coordinator observes them. `compute` is decoding, evaluating,
training and encoding; `rest` is tau minus the others: mostly control messages in transit."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected exchange times, one row per device."""

    tau_hat_s: Floats
    """Seconds, shape (N,)."""
    width_s: Floats
    """sqrt(c^T H^-1 c), shape (N,); times alpha it is the confidence radius."""
    transfer_hat_s: Floats
    """The part of tau_hat_s that is the transfer of the model, seconds, shape (N,)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured times of K exchanges, all at least 0.

    Raises:
        ValueError: An exchange time, or a phase other than the rest, is negative. The rest is a
            difference of two clocks and may be below 0 by their rounding.
    """

    tau_s: Floats
    """Exchange times, seconds, shape (K,); a lower bound for an exchange that did not end."""
    phases_s: Floats
    """Their phases, seconds, in the order of `PHASES`, shape (K, 5); they add up to tau_s. NaN is a
    phase that was not seen, because the exchange missed its deadline or was cancelled."""
    is_bound: Bools | None = None
    """The exchange did not end, so tau_s is a lower bound, shape (K,); None: all have ended."""

    def __post_init__(self) -> None:
        """Refuse negative times."""
        named = zip(("exchange times", *PHASES[:-1]), (self.tau_s, *self.phases_s.T), strict=False)
        for name, times_s in named:
            negative = times_s[times_s < 0.0]
            if negative.size:
                raise ValueError(
                    f"measured: {name} must be >= 0 s, got {negative[0]}; leave the exchange out"
                )

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
        """Return measurements of exchanges whose phases are unknown."""
        return cls(tau_s, np.full((len(tau_s), len(PHASES)), np.nan))


class Learner(Protocol):
    """Learns the exchange times of each device from measured exchanges."""

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context per device, shape (N, 4)."""
        ...

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn from exchanges: rows (K,), their contexts before selection (K, 4)."""
        ...


class Estimator(Learner, Protocol):
    """A learner whose state can be saved in a checkpoint."""

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        ...


def require_contexts(estimator: str, context: Floats) -> None:
    """Check that `context` has one row per device; `estimator` is the name in the message.

    Raises:
        ValueError: The shape is not (N, 4).
    """
    if context.ndim != 2 or context.shape[1] != CONTEXT:
        raise ValueError(
            f"{estimator}: context must have shape (N, {CONTEXT}), got {context.shape}; stack rows"
        )


def require_observed_contexts(estimator: str, context: Floats) -> None:
    """Check the contexts of observations, shape (K, 4); `estimator` is the name in the message.

    Raises:
        ValueError: One is negative: each is a time or a share.
    """
    negative = context[context < 0.0]
    if negative.size:
        raise ValueError(
            f"{estimator}: contexts must be >= 0, got {negative[0]}; leave the exchange out"
        )
