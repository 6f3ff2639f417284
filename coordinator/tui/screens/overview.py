"""Screen of the whole run at one glance: fleet, newest rounds, accuracy, queues and events."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Container

from fairbed.coordinator.report.measures import run_measure
from fairbed.coordinator.report.quality import spread_of
from fairbed.coordinator.store.tables import MetricRow
from fairbed.coordinator.tui.screens.run_screen import RunScreen
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.fleet import FleetTable
from fairbed.coordinator.tui.widgets.log import EventLogView
from fairbed.coordinator.tui.widgets.plot import Curve, CurvePlot
from fairbed.coordinator.tui.widgets.timeline import RoundTimeline
from fairbed.wire.printable import one_line


class Overview(RunScreen):
    """Fleet, timeline, plots and events; `app.tcss` decides which parts fit."""

    TAB = "overview"
    PURPOSE = (
        "Which device is slow, which one is starving, and whether the model is getting better."
    )

    def compose_parts(self) -> ComposeResult:
        """Build the parts."""
        yield FleetTable(id="fleet", has_bars=False)
        with Container(id="panels"):
            yield RoundTimeline(id="timeline")
            yield CurvePlot("Accuracy", id="accuracy", has_zero=False)
            yield EventLogView(id="events")
            yield CurvePlot("Virtual queues Z", id="queues")

    def on_mount(self) -> None:
        """Give the fleet the keys."""
        super().on_mount()
        self.set_focus(self.query_one(FleetTable))

    def show(self, view: RunView) -> None:
        """Show a view in all parts."""
        super().show(view)
        self.query_one(FleetTable).show(view)
        self.query_one(RoundTimeline).show(view)
        self.query_one(EventLogView).show(view)
        curves = accuracy_curves(view)
        self.query_one("#accuracy", CurvePlot).show(curves_title(view), curves, has_zero=False)
        self.query_one("#queues", CurvePlot).curves = queue_curves(view)

    @property
    def selected_device(self) -> str | None:
        """Name of the device under the cursor; None beside another part in full size."""
        table = self.query_one(FleetTable)
        return table.selected_device if self.maximized in (None, table) else None

    def explanations(self) -> Sequence[tuple[str, str]]:
        """Return the columns, the lines of the rounds, the curves and the marks of events."""
        return (
            *self.query_one(FleetTable).explanations(),
            ("round 7 ...", "One bar per selected device, by phase; at the end the exchange time."),
            ("device-seconds", "Seconds that devices were busy for the run, summed over devices."),
            ("epsilon ≤", "Privacy loss of the local noise, largest over devices."),
            ("mean", "Accuracy, mean over devices; for regression the error (RMSE)."),
            ("best 10 %", "Mean of the best tenth of the devices; worst 10 % likewise."),
            ("sum", f"{run_measure('queue_total').meaning}, over rounds."),
            ("largest", f"{run_measure('queue_largest').meaning}, over rounds."),
            ("! and !!", "An event that is a warning, and one that is an error."),
        )

    def redraw(self) -> None:
        """Draw all parts again, in another theme or with other glyphs."""
        self.query_one(FleetTable).redraw()
        self.query_one(RoundTimeline).redraw()
        self.query_one(EventLogView).restyle()
        for plot in self.query(CurvePlot):
            plot.redraw()


METRIC_CURVES = (
    ("best 10 %", "high", "metric_best10"),
    ("worst 10 %", "low", "metric_worst10"),
    ("mean", "main", "metric_mean"),
)
"""Label, emphasis and column of each curve of the metric that `evaluation.worst` names."""

MAX_TITLE = 24
"""Characters of the name of a metric in the title."""


def accuracy_curves(view: RunView) -> tuple[Curve, ...]:
    """Return accuracy or error over rounds: mean, and best and worst 10 % of the devices.

    The same of the metric that `evaluation.worst` names. Of a client that measures neither the mean
    loss.
    """
    if _has_metric(view):
        of_metric = [m for m in view.metrics if m.metric_mean is not None]
        return tuple(
            Curve(name, style, tuple((m.round, getattr(m, column)) for m in of_metric))
            for name, style, column in METRIC_CURVES
        )
    if _has_loss_alone(view):
        known = [(m.round, m.loss_mean) for m in view.metrics]
        return (Curve("mean", "main", tuple((t, loss) for t, loss in known if loss is not None)),)
    of_devices = [m for m in view.metrics if m.devices != 0]

    def points(metrics: Sequence[MetricRow], part: str) -> tuple[tuple[float, float], ...]:
        values = ((m.round, getattr(spread_of(m), part)) for m in metrics)
        return tuple((t, value) for t, value in values if value is not None)

    return (
        Curve("best 10 %", "high", points(of_devices, "best10")),
        Curve("worst 10 %", "low", points(of_devices, "worst10")),
        Curve("mean", "main", points(view.metrics, "mean")),
    )


def _has_metric(view: RunView) -> bool:
    """Return whether the newest evaluation has the metric that `evaluation.worst` names."""
    return any(m.metric_mean is not None for m in view.metrics[-1:])


def _has_loss_alone(view: RunView) -> bool:
    """Return whether the newest evaluation has neither accuracies nor errors, but a loss."""
    return any(
        m.accuracy_mean is m.rmse_mean is m.mae_mean is None and m.loss_mean is not None
        for m in view.metrics[-1:]
    )


def curves_title(view: RunView) -> str:
    """Return the title of these curves: the metric of `evaluation.worst`, or the measure."""
    if _has_metric(view) and view.info is not None:
        return one_line(view.info.plan.evaluation.worst, MAX_TITLE)
    return quality_title(view)


def quality_title(view: RunView) -> str:
    """Return the measure of the task: Accuracy (of positions), Error (RMSE), or Loss."""
    if _has_loss_alone(view):
        return "Loss"
    if view.task == "regression":
        return "Error (RMSE)"
    has_positions = any(m.exact_match_mean is not None for m in view.metrics[-1:])
    return "Accuracy of positions" if has_positions else "Accuracy"


def queue_curves(view: RunView) -> tuple[Curve, ...]:
    """Return the virtual queues over rounds: sum and maximum over devices."""
    return (
        Curve("largest", "low", tuple((t, largest) for t, _, largest in view.queues)),
        Curve("sum", "main", tuple((t, total) for t, total, _ in view.queues)),
    )
