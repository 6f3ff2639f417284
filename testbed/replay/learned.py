"""What a replay asks of those who really train its cohorts, and what they tell."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, Vector
from fairbed.coordinator.policy.choice import Choice
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
class Vintage:
    """Devices that were asked in the same round, and so have trained the same version; (K,)."""

    round: int
    """In which they were asked."""
    version: int
    """Number of what they have trained."""
    rows: Ints
    """Ascending."""
    n_k: Ints
    """Training examples."""
    is_merged: Bools
    """Their updates enter the next model."""


class Cohort(Protocol):
    """Really trains what a replay selects; without one only times are played."""

    evaluate_s: float
    """How long the last evaluation took, seconds of this machine."""

    def train(self, choice: Choice, trained: Ints, merged: Ints) -> Learned:
        """Train a cohort from the model of now, and merge a part of it into the next one.

        Args:
            choice: Of the round.
            trained: Rows that completed local training, ascending.
            merged: Rows of these whose updates enter the model; may be empty.

        Returns:
            What `trained` report, in their order.
        """
        ...

    def train_vintages(
        self, round_id: int, version: int, vintages: Sequence[Vintage], needed: Collection[int]
    ) -> list[Learned]:
        """Train devices from models of now and of before, and merge a part into the next one.

        Args:
            round_id: The round that merges.
            version: Number of the model of now.
            vintages: Who has completed local training, by the round in which it was asked.
            needed: Versions that others are still at work on.

        Returns:
            What each vintage reports.
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
