"""What every estimator of exchange times sees and answers."""

from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.algorithms.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected exchange times, one row a device."""

    tau_hat_s: Floats
    """Seconds, shape (N,)."""
    width_s: Floats
    """sqrt(c^T H^-1 c), shape (N,); times alpha it is the confidence radius."""
    transfer_hat_s: Floats
    """The part of tau_hat_s that is the transfer of the model, seconds, shape (N,)."""


class Estimator(Protocol):
    """Learns tau = c . theta of each device from measured exchanges."""

    def predict(self, context: Floats) -> Prediction:
        """Predict for contexts of shape (N, 3): 1/mu, cold start, nominal transfer seconds."""
        ...

    def observe(self, rows: Ints, context: Floats, tau_s: Floats) -> None:
        """Learn from exchanges: rows (K,), contexts before selection (K, 3), seconds (K,)."""
        ...

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        ...
