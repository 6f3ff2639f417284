"""Screen of all devices, one line each."""

from collections.abc import Sequence

from textual.app import ComposeResult

from fairbed.coordinator.tui.fleet_columns import fields
from fairbed.coordinator.tui.screens.run_screen import RunScreen
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.filter_bar import FilterBar
from fairbed.coordinator.tui.widgets.fleet import FleetTable


class FleetScreen(RunScreen):
    """The fleet in full size."""

    TAB = "fleet"
    PURPOSE = "What each device does, how fast it is, and whether it gets its share."

    def compose_parts(self) -> ComposeResult:
        """Build the table."""
        yield FleetTable(id="fleet")
        yield FilterBar(fields(), example="pi state:silent tau>3")

    def show(self, view: RunView) -> None:
        """Show the devices of a view."""
        super().show(view)
        self.query_one(FleetTable).show(view)

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Show only the devices that the filter accepts."""
        self.query_one(FleetTable).filter(message.filter)

    @property
    def selected_device(self) -> str | None:
        """Name of the device under the cursor."""
        return self.query_one(FleetTable).selected_device

    def explanations(self) -> Sequence[tuple[str, str]]:
        """Return the columns and what a filter can ask."""
        names = ", ".join(field.name for field in fields())
        return (
            *self.query_one(FleetTable).explanations(),
            ("↓ ↑", "The lines are sorted by this column, largest or smallest first."),
            (
                "filter",
                "Words are looked for in name, profile and state. state:silent,gone asks one "
                "column for either text, tau>3 or rate<0.2 for a number; ! negates. All terms "
                f"must be true. Names: {names}.",
            ),
        )

    def redraw(self) -> None:
        """Draw all lines again."""
        self.query_one(FleetTable).redraw()
