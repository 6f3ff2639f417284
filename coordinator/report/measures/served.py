"""The numbers of the models that devices serve: personal ones and the global one in one measure."""

from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Literal

from fairbed.coordinator.report.measures.entry import (
    FOUR_DIGITS,
    OWN,
    RATIO,
    WHOLE,
    Compared,
    Format,
    Number,
    RunMeasure,
)
from fairbed.coordinator.report.measures.noise import noise_measures, part_of_noise
from fairbed.coordinator.report.measures.scales import (
    ERROR,
    SHARE,
    VARIANCE,
    WORST_SHARE,
    MetricKind,
)

if TYPE_CHECKING:
    from fairbed.coordinator.report.facts import RunFacts
    from fairbed.coordinator.report.summary_schema import RunSummary

NO_SCORES = "devices train personal models, and no score of one is known"
NOT_EVALUATED = "the model was not evaluated"
NO_ACCURACY = "the task is regression, or the client measures no accuracy"
NO_NOISE = "fewer than two devices have held-out examples of classes, or all accuracies are equal"
NO_ERROR = "the task is not regression, or the model has diverged"


def _source(column: str) -> "Callable[[RunFacts], Number]":
    """Return the source of a number of the accuracies or errors over devices."""
    is_error = column.startswith("rmse")

    def source(facts: "RunFacts") -> Number:
        served = facts.served
        value: float | None
        if served.rows:
            found = served.errors if is_error else served.accuracies
            value = getattr(found, column, None)
            value = value if value is not None and isfinite(value) else None
        elif served.is_global and facts.metric is not None:  # of a fleet without a row per device
            value = getattr(facts.metric, column, None)
        else:
            return Number(None, None, NOT_EVALUATED if served.is_global else NO_SCORES)
        why = NO_ERROR if is_error else NO_ACCURACY
        return Number(value, None, "" if value is not None else why)

    return source


def _personal(facts: "RunFacts") -> Number:
    served = facts.served
    if not served.rows and not served.is_global:
        return Number(None, None, NO_SCORES)
    return Number(float(served.personal))


def _noise(part: str) -> "Callable[[RunFacts], Number]":
    get = part_of_noise(part)

    def source(facts: "RunFacts") -> Number:
        value = get(facts.served.noise)
        return Number(value, None, "" if value is not None else NO_NOISE)

    return source


def _has_errors(s: "RunSummary") -> bool:
    return s.personal is not None and s.task == "regression"


def _has_accuracies(s: "RunSummary") -> bool:
    """Return whether a run states them: without personal models they are the global model's."""
    return s.personal is not None and s.task != "regression"


def _served(
    column: str,
    name: str,
    meaning: str,
    short: str,
    better: Literal["less", "more"],
    kind: MetricKind,
    *,
    format: Format = RATIO,
    digits: int = 3,
    report: str = "",
    has_table: bool = False,
) -> RunMeasure:
    """Return a number over the models that devices serve; its name begins with `served`."""
    key = f"served_{column}"
    return RunMeasure(
        key=key,
        name=f"served {name}",
        meaning=meaning,
        source=_source(column),
        format=format,
        json=f"{OWN}{key}",
        show="served",
        report=report,
        applies=_has_errors if column.startswith("rmse") else _has_accuracies,
        compare=Compared(
            group="served",
            short=short,
            better=better,
            kind=kind,
            digits=digits,
            is_tested=False,
            has_table=has_table,
        ),
    )


SERVED = (
    _served(
        "accuracy_mean",
        "accuracy",
        "Accuracy of the model that a device serves (its personal one where it has one, else the "
        "global one), mean over devices",
        "served",
        "more",
        SHARE,
        report="served models",
        has_table=True,
    ),
    _served(
        "accuracy_worst10",
        "worst 10 %",
        "Mean accuracy of the worst tenth of the devices, of the models that they serve",
        "s worst",
        "more",
        WORST_SHARE,
        report="served models, worst 10 %",
        has_table=True,
    ),
    _served(
        "accuracy_best10",
        "best 10 %",
        "Mean accuracy of the best tenth of the devices, of the models that they serve",
        "s best",
        "more",
        WORST_SHARE,
    ),
    _served(
        "accuracy_variance",
        "variance",
        "Population variance of the accuracies of the models that devices serve",
        "s var",
        "less",
        VARIANCE,
        format=FOUR_DIGITS,
        digits=4,
    ),
    _served(
        "accuracy_pooled",
        "accuracy by examples",
        "Correct / examples of all devices, of the models that they serve",
        "s by n",
        "more",
        SHARE,
    ),
    *noise_measures("served_accuracy", "served", "served ", "s ", _noise, NO_NOISE, is_own=True),
    _served(
        "rmse_mean",
        "RMSE",
        "Root mean squared error of the model that a device serves, mean over devices",
        "s RMSE",
        "less",
        ERROR,
        has_table=True,
    ),
    _served(
        "rmse_worst10",
        "worst 10 % RMSE",
        "Mean error of the worst tenth of the devices, of the models that they serve",
        "s RMSE worst",
        "less",
        ERROR,
        has_table=True,
    ),
    RunMeasure(
        key="served_personal",
        name="served personal models",
        meaning="Devices with held-out examples that serve a personal model; the others serve the "
        "global one",
        source=_personal,
        format=WHOLE,
        json=f"{OWN}served_personal",
        show="served",
        applies=lambda s: s.personal is not None,
    ),
)
"""The model that each device serves."""
