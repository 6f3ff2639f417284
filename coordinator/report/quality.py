"""How good a model is by its task: the accuracy of classes, or the error of regression."""

from typing import NamedTuple

from fairbed.coordinator.store.tables import DeviceMetricRow, MetricRow, PersonalScoreRow


class Spread(NamedTuple):
    """Accuracy over devices, or for regression the root mean squared error; None: not known."""

    mean: float | None
    worst10: float | None
    """Mean over the tenth of the devices with the lowest accuracy, or the largest error."""
    best10: float | None
    gap: float | None
    """Between the best and the worst device."""


NO_SPREAD = Spread(None, None, None, None)


def measure(task: str) -> str:
    """Return the name of what a spread measures: accuracy, or RMSE for regression."""
    return "RMSE" if task == "regression" else "accuracy"


def spread_of(row: MetricRow | None) -> Spread:
    """Return the spread of an evaluation; nothing is known of None."""
    if row is None:
        return NO_SPREAD
    if row.accuracy_mean is None:
        return Spread(row.rmse_mean, row.rmse_worst10, row.rmse_best10, row.rmse_gap)
    return Spread(row.accuracy_mean, row.accuracy_worst10, row.accuracy_best10, row.accuracy_gap)


def quality_of(row: DeviceMetricRow | PersonalScoreRow) -> float | None:
    """Return accuracy or error of one device."""
    return row.rmse if row.accuracy is None else row.accuracy
