"""The merge of a rule that needs all updates at once."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Aggregator, Merge, Report, Reports
from fairbed.coordinator.algorithms.arrays import Vector


class Models(Protocol):
    """Storage of models until the last update has arrived."""

    def append(self, model: Vector) -> None:
        """Store a copy of a model, shape (n_values,)."""
        ...

    def all(self) -> Sequence[Vector]:
        """Return the stored models in the order of arrival."""
        ...


class Gathered:
    """Stores the updates of a round, and passes all of them to the rule's `merge`."""

    def __init__(
        self,
        rule: Aggregator,
        vector: Vector,
        n_params: int,
        learning_rate: float,
        models: Models,
        registered: int = 0,
    ) -> None:
        self._rule = rule
        self._vector = vector
        self._n_params = n_params
        self._learning_rate = learning_rate
        self._models = models
        self._registered = registered
        self._rows: list[int] = []
        self._n_k: list[int] = []
        self._losses: list[float | None] = []

    def add(self, report: Report) -> None:
        """Store an update."""
        self._models.append(report.model)
        self._rows.append(report.row)
        self._n_k.append(report.n_k)
        self._losses.append(report.loss_before)

    def finish(self) -> Merge:
        """Return the next model, merged by the rule."""
        reports = Reports(
            rows=np.array(self._rows, dtype=np.int64),
            n_k=np.array(self._n_k, dtype=np.int64),
            models=self._models.all(),
            loss_before=np.array(self._losses, dtype=np.float64) if self._rule.needs_loss else None,
            learning_rate=self._learning_rate,
            registered=self._registered,
        )
        return self._rule.merge(self._vector, self._n_params, reports)
