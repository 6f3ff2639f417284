"""Values of metrics by name from their sums, the same in live runs and in replays. Pure.

A metric is sum / weight, exp or sqrt of it, or the mean of several such ratios, one per class.
Sums and weights of batches and devices add up; values do not.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fairbed.wire.artifact import NamedMetric
from fairbed.wire.evaluation import Evaluation, Sums


def sums_by_name(metrics: Sequence[NamedMetric], found: Evaluation) -> dict[str, tuple[float, ...]]:
    """Return sums, then weights, of each metric, as a message has them.

    A metric that is not finite is left out: it has no value.
    """
    named = zip(metrics, found.metrics, strict=True)
    return {
        metric.name: tuple(sums.ravel().tolist())
        for metric, sums in named
        if np.isfinite(sums).all()
    }


def value_of(metric: NamedMetric, sums: Sequence[float]) -> float | None:
    """Return the value of a metric, given sums, then weights; None without a weight.

    Also a value that is no finite number is None.
    """
    ratios = _ratios(np.array(sums, np.float64).reshape(2, -1))
    known = ratios[~np.isnan(ratios)]
    if not known.size:
        return None
    mean = float(known.mean())
    if metric.scaling == "exp":
        value = math.exp(mean) if mean < _MOST_EXP else math.inf
    elif metric.scaling == "sqrt":
        value = math.sqrt(mean) if mean >= 0.0 else math.nan
    else:
        value = mean
    return value if math.isfinite(value) else None


_MOST_EXP = 700.0
"""exp of a larger number is no float64."""


def _ratios(sums: Sums) -> Sums:
    """Return sum / weight of each column, shape (columns,); NaN where the weight is 0."""
    ratios = np.full(sums.shape[1], np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        np.divide(sums[0], sums[1], out=ratios, where=sums[1] != 0.0)
    return ratios


def pooled(
    metric: NamedMetric, of_devices: Sequence[Mapping[str, Sequence[float]]]
) -> float | None:
    """Return the value of a metric over the examples of all devices; None if one has no sums."""
    found = [sums[metric.name] for sums in of_devices if metric.name in sums]
    if not found or len(found) < len(of_devices):
        return None
    return value_of(metric, np.sum(np.array(found, np.float64), axis=0).tolist())
