"""Rows of the metrics by name of an evaluation, and their spread over devices. Pure.

Imported for a task that has such metrics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.fairness import tenth
from fairbed.coordinator.ports import Score
from fairbed.coordinator.store.tables import ClientMetricRow, MetricRow
from fairbed.wire.artifact import Better, NamedMetric
from fairbed.wire.evaluation import Quality
from fairbed.wire.named_metrics import pooled, value_of

OF_ALL, OF_TEST_SET = "pooled", "test"
"""Phases of rows that belong to no device: over the examples of all, and on the server's test set.
"""


def spread(values: Floats, better: Better) -> dict[str, float]:
    """Return mean, worst and best tenth, deviation and gap of a metric over devices, shape (N,).

    The worst are the lowest if more is better, else the highest; N >= 1.
    """
    ordered = np.sort(values)
    if better == "less":
        ordered = ordered[::-1]
    tail = tenth(ordered.size)
    return {
        "mean": float(ordered.mean()),
        "worst10": float(ordered[:tail].mean()),
        "best10": float(ordered[-tail:].mean()),
        "std": float(ordered.std()),
        "gap": float(abs(ordered[-1] - ordered[0])),
    }


class NamedMetrics:
    """Makes the rows of the metrics of a task.

    Args:
        metrics: Those of the task.
        worst: Name of the metric that the spread over devices is about; another name: none.
    """

    def __init__(self, metrics: Sequence[NamedMetric], worst: str) -> None:
        self._metrics, self._worst = metrics, worst

    def rows(
        self, round_id: int, scores: Mapping[str, Score], test_set: Score | None = None
    ) -> list[ClientMetricRow]:
        """Return a row for each metric of each device, for all examples, and for the test set.

        A metric without a value, as of a model that has diverged, has no row.
        """
        tested = {name: score for name, score in sorted(scores.items()) if score.n > 0}
        found = list[ClientMetricRow]()

        def add(metric: NamedMetric, device: str, phase: str, value: float | None, n: int) -> None:
            if value is not None:
                found.append(_row(metric, round_id, device, phase, value, n))

        for metric in self._metrics:
            for name, score in tested.items():
                add(metric, name, "evaluate", _value(metric, score.quality), score.n)
            all_sums = [score.quality.sums for score in tested.values()]
            n = sum(score.n for score in tested.values())
            add(metric, "", OF_ALL, pooled(metric, all_sums), n)
            if test_set is not None:
                add(metric, "", OF_TEST_SET, _value(metric, test_set.quality), test_set.n)
        return found

    def of_personal(
        self, round_id: int, device: str, n: int, quality: Quality
    ) -> list[ClientMetricRow]:
        """Return a row for each metric of the personal model of a device, on `n` examples."""
        values = [(metric, _value(metric, quality)) for metric in self._metrics]
        return [
            _row(metric, round_id, device, "personal", value, n)
            for metric, value in values
            if value is not None
        ]

    def of_worst(
        self, row: MetricRow, scores: Mapping[str, Score], test_set: Score | None = None
    ) -> MetricRow:
        """Return the row of an evaluation with the spread of the metric of `evaluation.worst`."""
        metric = next((each for each in self._metrics if each.name == self._worst), None)
        if metric is None:
            return row
        tested = [score for _, score in sorted(scores.items()) if score.n > 0]
        found = [_value(metric, score.quality) for score in tested]
        values = [value for value in found if value is not None]
        columns = dict[str, Any]()
        if values:
            columns |= {
                f"metric_{name}": value
                for name, value in spread(np.array(values), metric.better).items()
            }
        columns["metric_pooled"] = pooled(metric, [score.quality.sums for score in tested])
        if test_set is not None:
            columns["test_metric"] = _value(metric, test_set.quality)
        return replace(row, **columns)


def _row(
    metric: NamedMetric, round_id: int, device: str, phase: str, value: float, n: int
) -> ClientMetricRow:
    return ClientMetricRow(
        round=round_id,
        device=device,
        phase=phase,
        name=metric.name,
        value=value,
        n=n,
        better=metric.better,
    )


def _value(metric: NamedMetric, quality: Quality) -> float | None:
    sums = quality.sums.get(metric.name)
    return None if sums is None else value_of(metric, sums)
