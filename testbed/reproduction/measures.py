"""Numbers of a run in the metrics and units of the sources. Pure.

A row of a table has the scores of some devices under one model; a measure makes one number of them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats

LEAST_MEAN = 1e-12
"""A mean below it has no Gini coefficient."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores that a row is about: D devices with held-out examples."""

    n: Floats
    """Held-out examples, shape (D,)."""
    columns: Mapping[str, Floats]
    """accuracy, auroc, loss: shape (D,); NaN where a device has none. A column that no device has
    is absent."""
    run: Mapping[str, float | None]
    """Numbers of the whole run: times, queues, rates."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a measure needs beside the scores of its row."""

    M: float | None = None
    """Bound of the losses."""
    reference: Scores | None = None
    """Of the row that ratios refer to, with the same seed."""


class Undefined(Exception):
    """A measure that these scores do not have; one line."""


Of: TypeAlias = Callable[[Scores, Context], float]


@dataclass(frozen=True, slots=True)
class Measure:
    """A column of a table."""

    heading: str
    unit: str
    digits: int
    of: Of
    step: Literal["example", "none"] = "none"
    """Smallest change that it can show: that of one held-out example, or any."""

    def resolution(self, scores: Scores) -> float:
        """Return the smallest change that these scores can show, in its unit."""
        return 100.0 / float(scores.n.sum()) if self.step == "example" and scores.n.size else 0.0


def _column(scores: Scores, name: str) -> Floats:
    """Return a column of which every device has a value.

    Raises:
        Undefined: A device has none.
    """
    values = scores.columns.get(name)
    if values is None or not values.size:
        raise Undefined(f"no device has {name}")
    lacking = int(np.isnan(values).sum())
    if lacking:
        raise Undefined(f"{lacking} of {values.size} devices have no {name}")
    return values


def _tenth(size: int) -> int:
    """Return the devices in a tenth: int(0.1 n), at least one, as in the sources' programs."""
    return max(1, int(0.1 * size))


def _average(x: Floats, n: Floats) -> float:
    return float(np.average(x, weights=n))


def _mean(x: Floats, n: Floats) -> float:
    return float(x.mean())


def _worst(x: Floats, n: Floats) -> float:
    return float(np.sort(x)[: _tenth(x.size)].mean())


def _best(x: Floats, n: Floats) -> float:
    return float(np.sort(x)[-_tenth(x.size) :].mean())


def _weighted_worst(x: Floats, n: Floats) -> float:
    order = np.argsort(x, kind="stable")[: _tenth(x.size)]
    return float(np.average(x[order], weights=n[order]))


def _weighted_best(x: Floats, n: Floats) -> float:
    order = np.argsort(x, kind="stable")[-_tenth(x.size) :]
    return float(np.average(x[order], weights=n[order]))


def _variance(x: Floats, n: Floats) -> float:
    return float(x.var())


def _deviation(x: Floats, n: Floats) -> float:
    return float(x.std())


def _gini(x: Floats, n: Floats) -> float:
    if x.mean() < LEAST_MEAN:
        raise Undefined("every value is 0")
    ranks = 2.0 * np.arange(1, x.size + 1) - x.size - 1.0
    return float(ranks @ np.sort(x) / (x.size * x.sum()))


def _of(column: str, statistic: Callable[[Floats, Floats], float], factor: float) -> Of:
    def measured(scores: Scores, context: Context) -> float:
        values = _column(scores, column)
        power = 2 if statistic is _variance else 1
        return factor**power * statistic(values, scores.n)

    return measured


def _utilities(scores: Scores, context: Context) -> Floats:
    """Return u_i = M - F_i, shape (D,).

    Raises:
        Undefined: A loss is not below M, or the panel has no M.
    """
    if context.M is None:
        raise Undefined("the panel has no M")
    utilities: Floats = context.M - _column(scores, "loss")
    if utilities.min() <= 0.0:
        raise Undefined(f"a loss is not below M = {context.M:g}")
    return utilities


def _ratio_sum(scores: Scores, context: Context) -> float:
    """Return sum_i u_i(reference) / u_i: below n for a model that the reference does not block."""
    if context.reference is None:
        raise Undefined("it is the reference")
    return float((_utilities(context.reference, context) / _utilities(scores, context)).sum())


def _run(key: str) -> Of:
    def measured(scores: Scores, context: Context) -> float:
        value = scores.run.get(key)
        if value is None or not math.isfinite(value):
            raise Undefined(f"the run has no {key}")
        return value

    return measured


MEASURES: Mapping[str, Measure] = {
    # q-FFL prints accuracies in %, and the variance of these; its groups are unweighted.
    "average": Measure("average", "%", 1, _of("accuracy", _average, 100.0), "example"),
    "worst": Measure("worst 10 %", "%", 1, _of("accuracy", _worst, 100.0), "example"),
    "best": Measure("best 10 %", "%", 1, _of("accuracy", _best, 100.0), "example"),
    "variance": Measure("variance", "%²", 0, _of("accuracy", _variance, 100.0)),
    # Ditto: accuracy over benign devices and its deviation over them.
    "accuracy": Measure("accuracy", "", 3, _of("accuracy", _mean, 1.0)),
    "deviation": Measure("deviation", "", 3, _of("accuracy", _deviation, 1.0)),
    # CoreFed: utilities M - loss of the agents.
    "utility": Measure("U(Average)", "", 3, lambda s, c: float(_utilities(s, c).mean())),
    "multi": Measure("U(Multi)", "", 3, lambda s, c: float(_utilities(s, c).prod())),
    "log-multi": Measure("log U(Multi)", "", 3, lambda s, c: float(np.log(_utilities(s, c)).sum())),
    "least": Measure("least utility", "", 3, lambda s, c: float(_utilities(s, c).min())),
    "ratio-sum": Measure("ratio sum", "", 3, _ratio_sum),
    # AAggFF: groups are weighted by held-out examples; with up to 19 devices they are one device.
    "auroc": Measure("average AUROC", "%", 2, _of("auroc", _average, 100.0)),
    "auroc-worst": Measure("worst AUROC", "%", 2, _of("auroc", _weighted_worst, 100.0)),
    "auroc-best": Measure("best AUROC", "%", 2, _of("auroc", _weighted_best, 100.0)),
    "auroc-gini": Measure("Gini of AUROC", "%", 2, _of("auroc", _gini, 100.0)),
    "top": Measure("average accuracy", "%", 2, _of("accuracy", _average, 100.0), "example"),
    "top-worst": Measure("worst 10 %", "%", 2, _of("accuracy", _weighted_worst, 100.0), "example"),
    "top-best": Measure("best 10 %", "%", 2, _of("accuracy", _weighted_best, 100.0), "example"),
    "top-gini": Measure("Gini", "%", 2, _of("accuracy", _gini, 100.0)),
    # RBCS-F: no model is trained.
    "total": Measure("total time", "s", 0, _run("total_s")),
    "queues": Measure("queues, last fifth", "", 1, _run("queue_last")),
    "queue-growth": Measure("growth of the queues", "%", 1, _run("queue_growth_percent")),
    "least-rate": Measure("least rate", "", 3, _run("least_rate")),
    "jain": Measure("Jain index", "", 3, _run("jain")),
}
"""Measures by name; a panel lists those of its table."""
