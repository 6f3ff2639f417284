"""All figures of a run, in the order of a report: what each shows and needs, and its drawing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairbed.coordinator.report.figures.data import RunFigures
from fairbed.coordinator.report.figures.exchanges import (
    draw_contention,
    draw_devices,
    draw_energy,
    draw_estimator,
    draw_phases,
    no_device_times,
    no_energy,
    no_phases,
    no_predictions,
    no_problems,
    rows_height_in,
)
from fairbed.coordinator.report.figures.model import (
    client_metrics_height_in,
    draw_accuracy,
    draw_accuracy_time,
    draw_client_metrics,
    draw_loss,
    draw_spread,
    no_accuracy,
    no_client_metrics,
    no_loss,
    no_spread,
)
from fairbed.coordinator.report.figures.panels import MAX_ROWS, Canvas, Shown
from fairbed.coordinator.report.figures.selection import (
    draw_queues,
    draw_rates,
    draw_selection,
    no_queues,
    no_rates,
    no_selections,
)

HEIGHT_IN = 3.2


@dataclass(frozen=True, slots=True)
class FigureKind:
    """One figure: what it shows, and how it is drawn."""

    title: str
    caption: str
    """One sentence for readers of a page or a paper."""
    compares: bool
    """Several runs share one drawing; otherwise each run has its own, one below the other."""
    lacks: Callable[[RunFigures], str | None]
    """Returns why a run with a closed round has no such figure; None if it has one."""
    draw: Callable[[Sequence[Shown], Canvas], None]
    """Draws runs that have it; only one run unless it compares."""
    height_in: Callable[[RunFigures], float]
    """Height of the drawing of one run, inches."""
    is_rare: bool = False
    """A page without it has no line about that: it belongs to a feature that most runs have not."""

    def missing(self, run: RunFigures) -> str | None:
        """Return why a run has no such figure; None if it has one."""
        return self.lacks(run) if run.rounds["round"].size else "no round has closed yet"


def _plain(run: RunFigures) -> float:
    return HEIGHT_IN


def _by_device(run: RunFigures) -> float:
    """Return the height of a figure that has a row per device in a small fleet, inches."""
    n = len(run.devices)
    return max(3.0, 1.0 + 0.17 * n) if n <= MAX_ROWS else HEIGHT_IN


FIGURES: dict[str, FigureKind] = {
    "accuracy": FigureKind(
        "Model quality over rounds",
        "Accuracy of the global model on the held-out examples, or its root mean squared error "
        "(RMSE) for regression, mean over devices.",
        True,
        no_accuracy,
        draw_accuracy,
        _plain,
    ),
    "accuracy-time": FigureKind(
        "Model quality over time",
        "The same over the time that the rounds took; evaluations take none of it.",
        True,
        no_accuracy,
        draw_accuracy_time,
        _plain,
    ),
    "loss": FigureKind(
        "Loss",
        "Loss of the global model on the held-out examples, and on the training examples of the "
        "selected devices.",
        True,
        no_loss,
        draw_loss,
        _plain,
    ),
    "fairness": FigureKind(
        "Fairness over devices",
        "How the accuracy or the RMSE of the global model differs between devices.",
        True,
        no_spread,
        draw_spread,
        _plain,
    ),
    "client": FigureKind(
        "Metrics of the client",
        "What the client measures by its own names: the mean by examples over the devices that "
        "report, and their range.",
        False,
        no_client_metrics,
        draw_client_metrics,
        client_metrics_height_in,
        is_rare=True,
    ),
    "selection": FigureKind(
        "Selected devices",
        "Which devices were selected in each round, which were available, and which were away.",
        False,
        no_selections,
        draw_selection,
        _by_device,
    ),
    "rates": FigureKind(
        "Selection rates",
        "Selections of each device / rounds since it joined, beside the guaranteed rate.",
        True,
        no_rates,
        draw_rates,
        _by_device,
    ),
    "queues": FigureKind(
        "Virtual queues",
        "Deficit of selections: a queue grows by beta each round and falls by 1 at a selection.",
        True,
        no_queues,
        draw_queues,
        _plain,
    ),
    "phases": FigureKind(
        "Phases of an exchange",
        "Mean time of each phase; a round lasts as long as its slowest exchange.",
        False,
        no_phases,
        draw_phases,
        rows_height_in,
    ),
    "devices": FigureKind(
        "Exchange time of each device",
        "Median and 95th percentile of the valid exchange times, without waits for a grant; n of N "
        "exchanges are timed.",
        False,
        no_device_times,
        draw_devices,
        _by_device,
    ),
    "estimator": FigureKind(
        "Predicted and measured exchange times",
        "Predictions before the selection against measurements, and their error over the rounds.",
        False,
        no_predictions,
        draw_estimator,
        _plain,
    ),
    "contention": FigureKind(
        "Late, failed and untimed exchanges",
        "Exchanges without a result in time, those whose time is not valid, and the lag of the "
        "coordinator's event loop.",
        False,
        no_problems,
        draw_contention,
        _plain,
    ),
    "energy": FigureKind(
        "Energy of an exchange",
        "Mean energy of the whole device in each phase, of exchanges whose power is known.",
        False,
        no_energy,
        draw_energy,
        rows_height_in,
    ),
}
"""The figures of a run by name, in the order of a report."""
