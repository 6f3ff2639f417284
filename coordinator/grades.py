"""From the scores of one evaluation to the rows that the store keeps. Pure."""

from collections.abc import Mapping

import numpy as np

from coordinator.accounting import finite
from coordinator.algorithms.fairness import summarise
from coordinator.ports import Score
from coordinator.store.records import DeviceMetricRow, MetricRow


def metric_rows(
    round_id: int, scores: Mapping[str, Score], at_s: float, evaluate_s: float
) -> tuple[list[DeviceMetricRow], MetricRow | None]:
    """Return one row a device that holds anything out, and the row over all of them."""
    tested = {name: score for name, score in scores.items() if score.n > 0}
    devices = [
        DeviceMetricRow(
            round=round_id,
            device=name,
            n=score.n,
            accuracy=score.correct / score.n,
            loss=finite(score.loss_sum / score.n),
        )
        for name, score in tested.items()
    ]
    if not tested:
        return devices, None
    summary = summarise(
        np.array([score.n for score in tested.values()], dtype=np.int64),
        np.array([score.correct for score in tested.values()], dtype=np.int64),
        np.array([score.loss_sum for score in tested.values()], dtype=np.float64),
    )
    return devices, MetricRow(
        round=round_id,
        at_s=at_s,
        accuracy_mean=summary.accuracy_mean,
        accuracy_pooled=summary.accuracy_pooled,
        accuracy_worst10=summary.accuracy_worst10,
        accuracy_best10=summary.accuracy_best10,
        accuracy_variance=summary.accuracy_variance,
        accuracy_gini=finite(summary.accuracy_gini),
        accuracy_gap=summary.accuracy_gap,
        loss_mean=finite(summary.loss_mean),
        loss_std=finite(summary.loss_std),
        evaluate_s=evaluate_s,
    )
