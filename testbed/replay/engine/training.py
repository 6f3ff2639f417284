"""The interface of local training in a replay, and its results."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Note
from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, Vector
from fairbed.coordinator.ports import Score


@dataclass(frozen=True, slots=True)
class Learned:
    """Reports of a cohort after local training; every column has shape (K,)."""

    losses: Floats
    """Mean training loss, nats: of the model that was sent if the aggregation rule needs it, else
    of the last epoch; NaN where no loss is reported."""
    has_failed: Bools
    """There is no update: training diverged, or the codec refused the update."""
    has_diverged: Bools
    """Training diverged."""
    rejections: list[str]
    """Why the coordinator rejects an update that arrived; empty where it does not."""
    merged: list[dict[str, float]]
    """Columns of each update (`Merge.columns`); empty where it was not merged."""

    @classmethod
    def nothing(cls, k: int) -> "Learned":
        """Return the reports of `k` devices that did not train."""
        no, other = np.zeros(k, dtype=np.bool_), np.zeros(k, dtype=np.bool_)
        return cls(np.full(k, np.nan), no, other, [""] * k, [{} for _ in range(k)])


@dataclass(frozen=True, slots=True)
class VersionBatch:
    """Devices that were dispatched in one round and trained one model version; columns (K,)."""

    round: int
    """Round of the dispatch."""
    version: int
    """Number of the model version."""
    rows: Ints
    """Rows of the devices, ascending."""
    n_k: Ints
    """Training examples."""
    is_merged: Bools
    """The update of the device enters the next model."""


@dataclass(frozen=True, slots=True)
class PersonalScoreOf:
    """The personal model of one device on its held-out data."""

    round: int
    """Round of the dispatch in which it was trained."""
    row: int
    """Row of the device."""
    score: Score


class Cohort(Protocol):
    """Trains the selected devices; a replay without one has times only."""

    evaluate_s: float
    """Duration of the last evaluation, seconds of this machine."""
    notes: tuple[Note, ...]
    """What the merge of the last round states."""
    personal_scores: list[PersonalScoreOf]
    """What `score_personal` found since the last call of `train`."""

    def train(
        self,
        round_id: int,
        version: int,
        batches: Sequence[VersionBatch],
        needed: Collection[int],
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

    def queried_losses(self, round_id: int, rows: Ints, examples: int | None) -> Floats:
        """Return the loss that a query finds on each device, (K,); see `loss_query.Losses`."""
        ...

    def score_personal(self) -> None:
        """Score the personal models that have changed since the last call."""
        ...

    def evaluate(self) -> Mapping[str, Score]:
        """Return the scores of the current model on each device's held-out data, by name.

        Called after a round, off the record.
        """
        ...

    @property
    def vector(self) -> Vector:
        """The current model, shape (n_values,), for the checkpoint."""
        ...

    def to_state(self) -> dict[str, Any]:
        """Return the rest of the state for a checkpoint."""
        ...

    def load_state(self, vector: Vector, state: dict[str, Any]) -> None:
        """Restore the model and the state of a checkpoint."""
        ...
