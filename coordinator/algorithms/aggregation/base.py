"""Inputs, results and interfaces of the aggregation rules."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints, Vector


@dataclass(frozen=True, slots=True)
class Report:
    """One verified update."""

    row: int
    """Device row."""
    n_k: int
    """Training examples of the device, positive."""
    model: Vector
    """Model after local training, shape (n_values,), `[params | buffers]`, all finite."""
    loss_before: float | None
    """F_k(w_t) before local training, nats; None if the rule does not need it."""


@dataclass(frozen=True, slots=True)
class Stack:
    """K verified updates as the rows of one matrix."""

    rows: Ints
    """Device rows, shape (K,)."""
    n_k: Ints
    """Training examples of each device, shape (K,), all positive."""
    models: Vector
    """Models after local training, shape (K, n_values), `[params | buffers]`."""
    loss_before: Floats | None
    """F_k(w_t) before local training, nats, shape (K,); None if the rule does not need it."""

    @classmethod
    def of(cls, report: Report) -> "Stack":
        """Return a stack of one update."""
        loss = report.loss_before
        return cls(
            rows=np.array([report.row]),
            n_k=np.array([report.n_k]),
            models=report.model[np.newaxis],
            loss_before=None if loss is None else np.array([loss]),
        )


@dataclass(frozen=True, slots=True)
class Reports:
    """The K verified updates of one round, K >= 1, all values finite."""

    rows: Ints
    """Device rows, shape (K,)."""
    n_k: Ints
    """Training examples of each device, shape (K,), all positive."""
    models: Sequence[Vector]
    """Models after local training, K vectors of shape (n_values,), `[params | buffers]`."""
    loss_before: Floats | None
    """F_k(w_t) before local training, nats, shape (K,); None if the rule does not need it."""
    learning_rate: float
    """Local step size eta_l of this round."""
    registered: int = 0
    """Number of all devices, selected or not; 0 if unknown."""

    @property
    def clients(self) -> int:
        """Number of all devices, at least 1 + the largest row."""
        return max(self.registered, int(self.rows.max()) + 1)

    def one_by_one(self) -> Iterator[Report]:
        """Yield each update as a `Report`."""
        return _each(self)


def _each(updates: Stack | Reports) -> Iterator[Report]:
    """Yield each update as a `Report`."""
    models, losses = updates.models, updates.loss_before
    loss_of_each = [None] * len(models) if losses is None else losses.tolist()
    for row, n_k, model, loss in zip(
        updates.rows.tolist(), updates.n_k.tolist(), models, loss_of_each, strict=True
    ):
        yield Report(row, n_k, model, loss)


@dataclass(frozen=True, slots=True)
class Merge:
    """Result of merging one round."""

    vector: Vector
    """The next global model, shape (n_values,)."""
    weights: Floats
    """Effective mixing weight of each report, shape (K,), in the order of the reports."""


class Accumulator(Protocol):
    """The merge of one round, which takes updates as they arrive.

    Nothing outside it changes before `finish`, so an abandoned round has no effect.
    """

    def add(self, report: Report) -> None:
        """Add an update to the merge; `report.model` may be reused afterwards.

        Raises:
            ValueError: The rule needs a loss and the report has none.
        """
        ...

    def finish(self) -> Merge:
        """Return the next model; call it once."""
        ...


@runtime_checkable
class StackAccumulator(Accumulator, Protocol):
    """A merge that adds a stack of updates at less cost than one update after the other."""

    def add_all(self, stack: Stack) -> None:
        """Add updates to the merge, as `add` does."""
        ...


def add_all(accumulator: Accumulator, stack: Stack) -> None:
    """Add a stack of updates to a merge; `stack.models` may be reused afterwards."""
    if isinstance(accumulator, StackAccumulator):
        accumulator.add_all(stack)
    else:
        for report in _each(stack):
            accumulator.add(report)


class Aggregator(Protocol):
    """Merges updates into the next model."""

    needs_loss: bool
    """The rule needs F_k(w_t), evaluated before the first local step."""

    def merge(self, vector: Vector, n_params: int, reports: Reports) -> Merge:
        """Return the next model; `vector`, shape (n_values,), is the model that was sent."""
        ...

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        ...


@runtime_checkable
class Streaming(Aggregator, Protocol):
    """A rule that reads each update once, so that memory does not grow with the cohort."""

    def begin(
        self, vector: Vector, n_params: int, learning_rate: float, registered: int = 0
    ) -> Accumulator:
        """Return the empty merge of a round in which `vector`, shape (n_values,), was sent.

        `registered` is the number of all devices, selected or not; 0 if unknown.
        """
        ...


def merge_one_by_one(accumulator: Accumulator, reports: Reports) -> Merge:
    """Return the merge of a complete round by a streaming rule."""
    for report in reports.one_by_one():
        accumulator.add(report)
    return accumulator.finish()
