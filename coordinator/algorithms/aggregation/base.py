"""What every aggregation rule sees and answers."""

from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.algorithms.arrays import Floats, Ints, Vector


@dataclass(frozen=True, slots=True)
class Reports:
    """The verified updates of one round; K of them, never empty, all finite."""

    rows: Ints
    """Device rows, shape (K,)."""
    n_k: Ints
    """Training examples behind each, shape (K,), all positive."""
    models: list[Vector]
    """Models after local training, K vectors of shape (n_values,), `[params | buffers]`."""
    loss_before: Floats | None
    """F_k(w_t) before local training, nats, shape (K,); None if the rule does not need it."""
    learning_rate: float
    """Local step size eta_l of this round."""


@dataclass(frozen=True, slots=True)
class Merge:
    """What a rule made of a round."""

    vector: Vector
    """The next global model, shape (n_values,)."""
    weights: Floats
    """Effective mixing weight of each report, shape (K,)."""


class Aggregator(Protocol):
    """Merges updates into the next model."""

    needs_loss: bool
    """The rule needs F_k(w_t), evaluated before the first local step."""

    def merge(self, vector: Vector, n_params: int, reports: Reports) -> Merge:
        """Return the next model; `vector`, shape (n_values,), is the one that was sent out."""
        ...

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        ...
