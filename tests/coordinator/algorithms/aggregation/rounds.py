"""Rounds with given numbers, for the tests of aggregators."""

from collections.abc import Sequence

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Reports
from fairbed.coordinator.algorithms.arrays import Vector


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
