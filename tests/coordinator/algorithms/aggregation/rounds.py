"""Rounds with given numbers, for the tests of aggregators."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.base import Accumulator, Merge, Report
from fairbed.coordinator.algorithms.arrays import Floats, Ints, Vector


@dataclass(frozen=True)
class Reports:
    """The K updates of one round."""

    rows: Ints
    n_k: Ints
    models: Sequence[Vector]
    loss_before: Floats | None
    learning_rate: float = 0.1
    registered: int = 0

    def one_by_one(self) -> Iterator[Report]:
        losses = [None] * len(self.models) if self.loss_before is None else self.loss_before
        for row, n_k, model, loss in zip(self.rows, self.n_k, self.models, losses, strict=True):
            yield Report(int(row), int(n_k), model, None if loss is None else float(loss))


class Kept(list[Vector]):
    """Models in a list."""

    def append(self, model: Vector) -> None:
        super().append(model.copy())

    def all(self) -> list[Vector]:
        return self


def begin(rule: Aggregator, sent: Vector, n_params: int, given_: Reports) -> Accumulator:
    """Return the empty merge of a round."""
    return rule.begin(sent, n_params, given_.learning_rate, Kept, given_.registered)


def merged(rule: Aggregator, sent: Vector, n_params: int, given_: Reports) -> Merge:
    """Return the merge of a whole round."""
    merge = begin(rule, sent, n_params, given_)
    for report in given_.one_by_one():
        merge.add(report)
    return merge.finish()


def vector(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


def reports(
    models: Sequence[Sequence[float]],
    *,
    n_k: Sequence[int] | None = None,
    losses: Sequence[float] | None = None,
    rows: Sequence[int] | None = None,
    learning_rate: float = 0.1,
    registered: int = 0,
) -> Reports:
    """Return a round with these client models; one example each, loss 1, rows from 0."""
    count = len(models)
    return Reports(
        rows=np.array(range(count) if rows is None else rows, dtype=np.int64),
        n_k=np.array([1] * count if n_k is None else n_k, dtype=np.int64),
        models=[vector(*model) for model in models],
        loss_before=np.array([1.0] * count if losses is None else losses, dtype=np.float64),
        learning_rate=learning_rate,
        registered=registered,
    )
