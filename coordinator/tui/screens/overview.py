"""Screen of the whole run, or of one part of it in full size."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer

from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.fleet import FleetTable
from fairbed.coordinator.tui.widgets.header import Banner, RunHeader
from fairbed.coordinator.tui.widgets.log import EventLogView
from fairbed.coordinator.tui.widgets.plot import Curve, CurvePlot
from fairbed.coordinator.tui.widgets.timeline import RoundTimeline

Part = Literal["overview", "fleet", "rounds", "plots", "events"]

WITH_DEVICES = frozenset({"overview", "fleet"})
"""Parts with a cursor on a device, on which keys act."""

FOCUSED: Mapping[Part, type[Widget]] = {
    "overview": FleetTable,
    "fleet": FleetTable,
    "rounds": RoundTimeline,
    "events": EventLogView,
}
"""Widget that receives keys in each part; plots receive none."""


class Overview(Screen[None]):
    """Fleet, timeline, plots and events; `app.tcss` decides which parts fit."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "show_part('overview')", "Overview"),
        Binding("2", "show_part('fleet')", "Fleet", show=False),
        Binding("3", "show_part('rounds')", "Rounds"),
        Binding("4", "show_part('plots')", "Plots"),
        Binding("5", "show_part('events')", "Events"),
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 - as Textual declares it
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012 - as Textual declares it

    has_device = True
    """The part on the screen has a cursor on a device."""

    def compose(self) -> ComposeResult:
        """Build the screen."""
        yield RunHeader()
        yield Banner()
        yield FleetTable(id="fleet")
        with Container(id="panels"):
            yield RoundTimeline(id="timeline")
            yield CurvePlot("Accuracy", id="accuracy")
            yield EventLogView(id="events")
            yield CurvePlot("Virtual queues Z", id="queues")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Show all parts, with the focus on the fleet."""
        self.action_show_part("overview")
        self.app.theme_changed_signal.subscribe(self, lambda _theme: self.redraw())

    def action_show_part(self, part: Part) -> None:
        """Show all parts, or one part in full size, with the focus on a part that is shown."""
        self.set_classes([*(c for c in self.classes if not c.startswith("part-")), f"part-{part}"])
        self.set_focus(self.query_one(FOCUSED[part]) if part in FOCUSED else None)
        self.has_device = part in WITH_DEVICES
        self.refresh_bindings()

    def show(self, view: RunView) -> None:
        """Show a view in all parts."""
        self.query_one(RunHeader).view = view
        self.query_one(Banner).show(view)
        self.query_one(FleetTable).show(view)
        self.query_one(RoundTimeline).show(view)
        self.query_one(EventLogView).show(view)
        self.query_one("#accuracy", CurvePlot).curves = accuracy_curves(view)
        self.query_one("#queues", CurvePlot).curves = queue_curves(view)

    @property
    def selected_device(self) -> str | None:
        """Name of the device under the cursor; None if the part on the screen has none."""
        table = self.query_one(FleetTable)
        is_shown = self.has_device and self.maximized in (None, table)
        return table.selected_device if is_shown else None

    def redraw(self) -> None:
        """Draw all parts again, in another theme or with other glyphs."""
        self.query_one(FleetTable).refresh()
        self.query_one(RoundTimeline).redraw()
        self.query_one(EventLogView).restyle()
        for plot in self.query(CurvePlot):
            plot.redraw()


def accuracy_curves(view: RunView) -> tuple[Curve, ...]:
    """Return the accuracy over rounds: mean, and best and worst 10 % of the devices."""
    spread = [m for m in view.metrics if m.devices != 0]
    return (
        Curve("best 10 %", "high", tuple((m.round, m.accuracy_best10) for m in spread)),
        Curve("worst 10 %", "low", tuple((m.round, m.accuracy_worst10) for m in spread)),
        Curve("mean", "main", tuple((m.round, m.accuracy_mean) for m in view.metrics)),
    )


def queue_curves(view: RunView) -> tuple[Curve, ...]:
    """Return the virtual queues over rounds: sum and maximum over devices."""
    return (
        Curve("largest", "low", tuple((t, largest) for t, _, largest in view.queues)),
        Curve("sum", "main", tuple((t, total) for t, total, _ in view.queues)),
    )
