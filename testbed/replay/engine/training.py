"""The interface of the training in a replay, and its results."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, Vector
from fairbed.coordinator.ports import Score


@dataclass(frozen=True, slots=True)
class Learned:
    """What a cohort reports of its training; every column has shape (K,)."""

    losses: Floats
    """Mean training loss, nats: of the model that was sent if the rule asks for that, else of the
    last epoch; NaN where none is reported."""
    has_failed: Bools
    """Training diverged, so there is no update."""

    @classmethod
    def nothing(cls, k: int) -> "Learned":
        """Return what `k` devices report that did not train."""
        return cls(np.full(k, np.nan), np.zeros(k, dtype=np.bool_))


@dataclass(frozen=True, slots=True)
class VersionBatch:
    """Devices that were dispatched in one round, and so trained one model version; (K,)."""

    round: int
    """Of the dispatch."""
    version: int
    """Number of the model version that they trained."""
    rows: Ints
    """Ascending."""
    n_k: Ints
    """Training examples."""
    is_merged: Bools
    """Their updates enter the next model."""


class Cohort(Protocol):
    """Trains the selected devices; without one a replay has times only."""

    evaluate_s: float
    """How long the last evaluation took, seconds of this machine."""

    def train(
        self, round_id: int, version: int, batches: Sequence[VersionBatch], needed: Collection[int]
    ) -> list[Learned]:
        """Train devices, each from its model version, and merge a part into the next version.

        Args:
            round_id: The round that merges.
            version: Number of the current model version.
            batches: Devices that completed local training, by the round of their dispatch.
            needed: Versions that devices in flight still train.

        Returns:
            The reports of each batch.
        """
        ...

    def asked(self, round_id: int, rows: Ints, examples: int | None) -> Floats:
        """Return the loss that each device finds when it is asked, `asking.Losses`, (K,)."""
        ...

    def evaluate(self, round_id: int) -> Mapping[str, Score] | None:
        """Return what the model of now scores on each device's held-out data, by name.

        None when this round is not evaluated. Called once after each round, off the record.
        """
        ...

    @property
    def vector(self) -> Vector:
        """The model of now, shape (n_values,), for the checkpoint."""
        ...

    def to_state(self) -> dict[str, Any]:
        """Return what else a replay that goes on has to know."""
        ...

    def load_state(self, vector: Vector, state: dict[str, Any]) -> None:
        """Go on from the model and the state of a checkpoint."""
        ...
