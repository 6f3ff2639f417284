"""What every aggregation rule sees and answers."""

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
    """Training examples behind it, positive."""
    model: Vector
    """Model after local training, shape (n_values,), `[params | buffers]`, all finite."""
    loss_before: float | None
    """F_k(w_t) before local training, nats; None if the rule does not need it."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Verified updates on top of each other; K of them."""

    rows: Ints
    """Device rows, shape (K,)."""
    n_k: Ints
    """Training examples behind each, shape (K,), all positive."""
    models: Vector
    """Models after local training, shape (K, n_values), `[params | buffers]`."""
    loss_before: Floats | None
    """F_k(w_t) before local training, nats, shape (K,); None if the rule does not need it."""

    @classmethod
    def of(cls, report: Report) -> "Stack":
        """Return a stack of one."""
        loss = report.loss_before
        return cls(
            rows=np.array([report.row]),
            n_k=np.array([report.n_k]),
            models=report.model[np.newaxis],
            loss_before=None if loss is None else np.array([loss]),
        )


@dataclass(frozen=True, slots=True)
class Reports:
    """The verified updates of one round; K of them, never empty, all finite."""

    rows: Ints
    """Device rows, shape (K,)."""
    n_k: Ints
    """Training examples behind each, shape (K,), all positive."""
    models: Sequence[Vector]
    """Models after local training, K vectors of shape (n_values,), `[params | buffers]`."""
    loss_before: Floats | None
    """F_k(w_t) before local training, nats, shape (K,); None if the rule does not need it."""
    learning_rate: float
    """Local step size eta_l of this round."""
    registered: int = 0
    """Devices that there are, also those that were not chosen; 0 where nobody says."""

    @property
    def clients(self) -> int:
        """Devices that there are, as far as known: at least the largest row says so."""
        return max(self.registered, int(self.rows.max()) + 1)

    def one_by_one(self) -> Iterator[Report]:
        """Yield each of them alone."""
        return _each(self)


def _each(updates: Stack | Reports) -> Iterator[Report]:
    """Yield each update alone."""
    models, losses = updates.models, updates.loss_before
    told = [None] * len(models) if losses is None else losses.tolist()
    for row, n_k, model, loss in zip(
        updates.rows.tolist(), updates.n_k.tolist(), models, told, strict=True
    ):
        yield Report(row, n_k, model, loss)


@dataclass(frozen=True, slots=True)
class Merge:
    """What a rule made of a round."""

    vector: Vector
    """The next global model, shape (n_values,)."""
    weights: Floats
    """Effective mixing weight of each report, shape (K,), in the order they were given."""


class Accumulator(Protocol):
    """The merge of one round, fed while updates still arrive.

    Nothing outside it changes before `finish`: a round that is given up leaves no trace.
    """

    def add(self, report: Report) -> None:
        """Take an update into the merge; the model is not needed afterwards.

        Raises:
            ValueError: The rule needs a loss and the report has none.
        """
        ...

    def finish(self) -> Merge:
        """Return the next model; to be called once."""
        ...


@runtime_checkable
class Wholesale(Accumulator, Protocol):
    """The merge of a round that takes a stack of updates at less cost than one after the other."""

    def add_all(self, stack: Stack) -> None:
        """Take updates into the merge, as `add` does."""
        ...


def add_all(accumulator: Accumulator, stack: Stack) -> None:
    """Take a stack of updates into a merge; the models are not needed afterwards."""
    if isinstance(accumulator, Wholesale):
        accumulator.add_all(stack)
    else:
        for report in _each(stack):
            accumulator.add(report)


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


@runtime_checkable
class Streaming(Aggregator, Protocol):
    """A rule that needs each update only once, so that memory does not grow with the cohort."""

    def begin(self, vector: Vector, n_params: int, learning_rate: float) -> Accumulator:
        """Return the empty merge of a round that was sent `vector`, shape (n_values,)."""
        ...


def merge_one_by_one(accumulator: Accumulator, reports: Reports) -> Merge:
    """Return what a streaming rule makes of a round that is all there."""
    for report in reports.one_by_one():
        accumulator.add(report)
    return accumulator.finish()
