"""Screen of fairness: shares of the devices in rounds, in the merge, and in the quality."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.events import Resize
from textual.widgets import Static

from fairbed.coordinator.algorithms.fairness import jain, rate_slack
from fairbed.coordinator.policy.live_settings import Change, accepted_changes, mean_beta
from fairbed.coordinator.report.quality import measure, noise_mark, noise_of, spread_of
from fairbed.coordinator.report.quantities import ratio
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.tui.bars import gauge
from fairbed.coordinator.tui.fleet_columns import TOLERANCE
from fairbed.coordinator.tui.screens.overview import (
    accuracy_curves,
    curves_title,
    quality_title,
    queue_curves,
)
from fairbed.coordinator.tui.screens.run_screen import Read, RunScreen
from fairbed.coordinator.tui.view import DeviceView, RunView
from fairbed.coordinator.tui.widgets.fleet import FleetTable
from fairbed.coordinator.tui.widgets.line_table import DeviceLines, Heading
from fairbed.coordinator.tui.widgets.plot import Curve, CurvePlot

MAX_DEVICES = 2_000
"""Devices listed, those furthest below their guarantee."""

BAR_WIDTH = 8
"""Columns of the bar of a rate; the highest rate fills it."""

EVEN = 0.005
"""Ratios that differ by less have the same text."""

EXACT = 1e-6
"""Rounding tolerance for the bound of RBCS-F."""

COLUMNS: tuple[tuple[str, str], ...] = (
    ("device", "Devices, the one furthest below its guarantee first."),
    ("", "Selection rate as a bar; the highest rate of all devices fills it."),
    (
        "rate",
        "Selections per round since the device joined; ! is below the guaranteed rate, !! is "
        "below it by more than its queue allows.",
    ),
    ("agg", "Updates that were merged per round since the device joined."),
    ("Z", "Virtual queue: how many selections the device is owed."),
    (
        "w/n",
        "Weight of its updates in the merge, relative to its share of the examples there: below 1 "
        "it counts less than its examples.",
    ),
    ("acc", "Accuracy of the global model on data of the device; for regression its RMSE."),
)

HEADINGS = tuple(Heading(heading, is_left=at < 2) for at, (heading, _) in enumerate(COLUMNS))


@dataclass(frozen=True, slots=True)
class Rows:
    """What the screen reads of a run beyond the view."""

    changes: tuple[Change, ...]
    """Settings that operators changed."""
    weights: Mapping[str, tuple[float, float]]
    """Sums over merged updates: weight, and share of the examples."""


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one device."""

    device: DeviceView
    rate: float
    """Rate that the guarantee counts: selections, or merged updates, per round."""
    beta: float | None
    """Mean of the guaranteed rate since the device joined; None without a guarantee."""
    slack: float | None
    """rate - (beta - Z / T): below 0 the bound of RBCS-F is violated."""
    weight_ratio: float | None
    """Weight in the merge / share of the examples; None before a merge."""

    @property
    def excess(self) -> float:
        """Rate above the guarantee."""
        return self.rate - (self.beta or 0.0)

    @property
    def mark(self) -> str:
        """Mark of a rate below the guarantee: allowed by the queue, or not."""
        if self.slack is not None and self.slack < -EXACT:
            return "!!"
        return "!" if self.beta is not None and self.excess < -TOLERANCE else ""


def read_rows(until_round: int, reader: RunReader) -> Rows:
    """Read the changes of settings, and the weights of the updates up to a round."""
    changes = accepted_changes(reader.commands())
    return Rows(tuple(changes), reader.merged_weights(until_round))


def shares_of(view: RunView, rows: Rows) -> tuple[Share, ...]:
    """Return the shares of the devices that were there for a round, furthest behind first."""
    devices = [device for device in view.devices if device.rounds]
    if view.info is None or not devices:
        return ()
    plan, last = view.info.plan, max(device.rounds for device in devices)
    counts_selected = plan.selection.queue_counts == "selected"
    counts = [device.selected if counts_selected else device.aggregated for device in devices]
    rounds = np.array([device.rounds for device in devices])
    betas = {
        n: None if plan.beta is None else mean_beta(plan.beta, rows.changes, last + 1 - n, last)
        for n in set(rounds.tolist())
    }
    slack = rate_slack(
        np.array(counts),
        rounds,
        np.array([betas[n] or 0.0 for n in rounds.tolist()]),
        np.array([device.queue or 0.0 for device in devices]),
    )
    shares = [
        Share(
            device=device,
            rate=count / device.rounds,
            beta=betas[device.rounds],
            slack=None if plan.beta is None or device.queue is None else float(room),
            weight_ratio=_weight_ratio(rows.weights.get(device.name)),
        )
        for device, count, room in zip(devices, counts, slack, strict=True)
    ]
    return tuple(sorted(shares, key=lambda share: (share.excess, share.device.name)))


def _weight_ratio(sums: tuple[float, float] | None) -> float | None:
    return sums[0] / sums[1] if sums is not None and sums[1] > 0.0 else None


class FairnessScreen(RunScreen):
    """Rates against the guarantee, queues, accuracies, and weights against examples."""

    TAB = "fairness"
    PURPOSE = "Whether each device gets its share of the rounds, of the merge and of the quality."

    def __init__(self) -> None:
        super().__init__()
        self._view = RunView()
        self._read_at: tuple[int, int, int] | None = None
        """Resumes, newest round and newest evaluation of the view when rows were last read."""
        self._shares: tuple[Share, ...] = ()

    def compose_parts(self) -> ComposeResult:
        """Build the parts."""
        yield Static(id="shares", classes="panel")
        with Horizontal(id="fair"):
            yield DeviceLines(id="devices")
            with Container(id="curves"):
                yield CurvePlot("Rate by device, sorted", id="rates")
                yield CurvePlot("Accuracy by device, sorted", id="accuracies", has_zero=False)
                yield CurvePlot("Virtual queues Z", id="queues")
                yield CurvePlot("Accuracy", id="accuracy", has_zero=False)

    def on_mount(self) -> None:
        """Set the titles."""
        super().on_mount()
        self.query_one("#shares").border_title = "Shares"
        table = self.query_one(DeviceLines)
        table.border_title = "Devices, furthest below the guarantee first"
        table.fill(HEADINGS, ())
        table.focus()

    @property
    def selected_device(self) -> str | None:
        """Name of the device under the cursor."""
        row = self.query_one(DeviceLines).cursor_row
        return self._shares[row].device.name if 0 <= row < len(self._shares) else None

    def show(self, view: RunView) -> None:
        """Show the curves of a view; `receive` shows the rest."""
        super().show(view)
        self._view = view
        self.query_one("#queues", CurvePlot).curves = queue_curves(view)
        curves = accuracy_curves(view)
        self.query_one("#accuracy", CurvePlot).show(curves_title(view), curves, has_zero=False)

    def lacks(self, view: RunView) -> Read | None:
        """Return the read of weights and changed settings once a round was closed or evaluated."""
        now = (view.cursor.resumes, view.cursor.round, view.cursor.metric)
        if now == self._read_at:
            return None
        self._read_at = now
        return partial(read_rows, view.cursor.round)

    def receive(self, rows: Rows) -> None:
        """Show the shares."""
        shares = shares_of(self._view, rows)
        self.query_one("#shares", Static).update(facts_text(self._view, shares))
        self._shares = shares[:MAX_DEVICES]
        highest = max((share.rate for share in shares), default=0.0)
        lines = [share_cells(share, highest) for share in self._shares]
        self.query_one(DeviceLines).fill(HEADINGS, lines)
        self.query_one("#rates", CurvePlot).curves = rate_curves(shares)
        title = f"{quality_title(self._view)} by device, sorted"
        curves = sorted_accuracies(self._view)
        self.query_one("#accuracies", CurvePlot).show(title, curves, has_zero=False)

    def on_data_table_row_selected(self) -> None:
        """Open the device under the cursor."""
        if (name := self.selected_device) is not None:
            self.post_message(FleetTable.Opened(name))

    def on_resize(self, _event: Resize) -> None:
        """Draw the plots in their new size."""
        self.redraw()

    def redraw(self) -> None:
        """Draw the plots again, in another theme or with other glyphs."""
        for plot in self.query(CurvePlot):
            plot.redraw()

    def explanations(self) -> Sequence[tuple[str, str]]:
        """Return the columns and the numbers above them."""
        return (
            *COLUMNS,
            ("guarantee", "Every device is to be selected at least this often, per round."),
            (
                "bound",
                "What RBCS-F proves after T rounds: rate >= guarantee - Z / T. It holds in every "
                "run; a violation is a defect.",
            ),
            ("Jain index", "1 if all devices were selected equally often, 1 / N if only one was."),
            ("worst 10 %", "Mean over the tenth of the devices with the lowest accuracy."),
            (
                "noise",
                "Share of its distance from the mean that identical devices would show, too: their "
                "tests have few examples.",
            ),
            ("Gini", "Inequality of the accuracies: 0 if all are equal."),
            ("sorted", "Devices from the lowest to the highest value."),
        )


def rate_curves(shares: Sequence[Share]) -> tuple[Curve, ...]:
    """Return the rates of the devices, lowest first, and the guarantee."""
    rates = sorted(share.rate for share in shares)
    points = tuple((float(at), rate) for at, rate in enumerate(rates, start=1))
    betas = sorted((share.beta, share.device.rounds) for share in shares if share.beta is not None)
    guarantee = ((1.0, betas[-1][0]), (float(len(rates)), betas[-1][0])) if betas else ()
    return (Curve("guarantee", "low", guarantee), Curve("rate", "main", points))


def sorted_accuracies(view: RunView) -> tuple[Curve, ...]:
    """Return the accuracies, or errors, of the devices, lowest first."""
    values = (_quality(device) for device in view.devices)
    found = sorted(value for value in values if value is not None)
    points = tuple((float(at), value) for at, value in enumerate(found, start=1))
    return (Curve(measure(view.task), "main", points),)


def _quality(device: DeviceView) -> float | None:
    return device.rmse if device.accuracy is None else device.accuracy


def facts_text(view: RunView, shares: Sequence[Share]) -> str:
    """Return the guarantee, the spread of the selections and that of the quality, in words."""
    if not shares:
        return "no round yet"
    lowest = min(shares, key=lambda share: share.rate)
    highest = max(shares, key=lambda share: share.rate)
    index = jain(np.array([share.device.selected for share in shares]))
    lines = [
        _guarantee(view, shares),
        f"rates from {ratio(lowest.rate)} ({lowest.device.name}) to {ratio(highest.rate)} "
        f"({highest.device.name}), Jain index {ratio(index)}",
    ]
    if view.metrics:
        m = view.metrics[-1]
        mean, worst10, best10, gap = map(ratio, spread_of(m))
        gini = "" if view.task == "regression" else f", Gini {ratio(m.accuracy_gini)}"
        noise = noise_of(
            (d.test_n, None if d.has_positions else d.accuracy) for d in view.devices if d.test_n
        )
        mark = noise_mark(noise.worst10_share) if noise else ""
        lines.append(
            f"{measure(view.task)} {mean}, worst 10 % {worst10}{mark}, best 10 % {best10}, gap "
            f"{gap}{gini}"
        )
        if m.metric_mean is not None and view.info is not None:
            lines.append(
                f"{view.info.plan.evaluation.worst} {ratio(m.metric_mean)}, worst 10 % "
                f"{ratio(m.metric_worst10)}, best 10 % {ratio(m.metric_best10)}, gap "
                f"{ratio(m.metric_gap)}"
            )
    weighted = [share for share in shares if share.weight_ratio is not None]
    if weighted:
        low = min(weighted, key=lambda share: share.weight_ratio or 0.0)
        high = max(weighted, key=lambda share: share.weight_ratio or 0.0)
        is_even = (high.weight_ratio or 0.0) - (low.weight_ratio or 0.0) < EVEN
        lines.append(
            "weights in the merge are the shares of the examples"
            if is_even
            else f"weight / share of examples from {ratio(low.weight_ratio, 2)} "
            f"({low.device.name}) to {ratio(high.weight_ratio, 2)} ({high.device.name})"
        )
    return "\n".join(lines)


def _guarantee(view: RunView, shares: Sequence[Share]) -> str:
    """Return whether the guarantee is kept."""
    betas = {share.beta for share in shares if share.beta is not None}
    if not betas:
        policy = view.info.plan.selection.policy if view.info else ""
        return f"the policy {policy or 'of this run'} guarantees no rate"
    behind = sum(bool(share.mark) for share in shares)
    violated = sum(share.mark == "!!" for share in shares)
    owed = f"{behind} of {len(shares)} devices below it" if behind else "all devices have it"
    bound = f"bound violated by {violated}" if violated else "bound holds for all"
    return f"guarantee {max(betas):g}: {owed}, {bound}"


def share_cells(share: Share, highest: float) -> tuple[str, ...]:
    """Return one line of the table.

    Args:
        share: The share of a device.
        highest: Highest rate of all devices.
    """
    device = share.device
    return (
        device.name,
        gauge(share.rate / highest if highest > 0.0 else 0.0, BAR_WIDTH),
        f"{share.mark}{ratio(device.selection_rate, 2)}",
        ratio(device.aggregation_rate, 2),
        ratio(device.queue, 2),
        ratio(share.weight_ratio, 2),
        ratio(_quality(device)),
    )
