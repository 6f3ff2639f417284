"""Header of the screens: name, status, progress and accuracy of the run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from fairbed.coordinator.report.measures import run_measure, run_measures
from fairbed.coordinator.report.measures.entry import RunMeasure
from fairbed.coordinator.report.quality import measure, spread_of, worst_tenth
from fairbed.coordinator.report.quantities import MISSING, clock, seconds
from fairbed.coordinator.store.reader import Quality, RunInfo
from fairbed.coordinator.tui.bars import gauge
from fairbed.coordinator.tui.view import ABSENT, REVOKED, RunView, Stragglers, banner_lines

GAP = 3
"""Columns between two tiles."""
GAUGE_WIDTH = 8


def explanations() -> tuple[tuple[str, str], ...]:
    """Return what the tiles mean, by their labels."""
    own = (m for m in run_measures() if m.is_own and m.room)
    return (
        ("FAIRBED", "Name of the experiment."),
        (
            "STATUS",
            "running, waiting for a device, paused, done, failed, or interrupted: it died.",
        ),
        ("ROUND", "Closed rounds, of the number of the last one; an empty round adds 1 to both."),
        (
            "EMPTY",
            "Rounds without an available device: beside the planned ones, but for the queues.",
        ),
        ("LEFT", "Time until the last planned round is over, from the newest rounds."),
        *map(_explained, map(run_measure, ("accuracy_mean", "accuracy_worst10", "loss_mean"))),
        _explained(run_measure("metric_worst10")),
        ("LAST ROUND", "Duration of the newest round that was not void."),
        _explained(run_measure("queue_total")),
        ("DEVICES", "Devices that the coordinator can reach, of all that joined."),
        (
            "UNTIMED",
            "Exchanges without a reliable time, of the done ones; their updates count.",
        ),
        (
            "LATE",
            "Exchanges that outlasted their round: aggregated later, dropped or cancelled.",
        ),
        *map(_explained, own),
        (
            "ELAPSED",
            "Run clock. ÷ 4: a second of the fleet lasts 4 s here; × 100: a replay, faster.",
        ),
    )


def _explained(measure: RunMeasure) -> tuple[str, str]:
    assert measure.room is not None
    return measure.room.label, measure.room.help or f"{measure.meaning}."


@dataclass(frozen=True, slots=True)
class Tile:
    """A label above a value; tiles that do not fit are left out, the least important first."""

    label: str
    value: Text
    priority: int
    """0 is the most important."""

    @property
    def width(self) -> int:
        """Width of the tile, columns."""
        return max(len(self.label), self.value.cell_len)


class RunHeader(Widget):
    """Two lines of tiles; the style of a tile follows from its text."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "header--label",
        "header--value",
        "header--brand",
        "header--gauge",
        "header--good",
        "header--busy",
        "header--bad",
    }

    view: reactive[RunView] = reactive(RunView, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._drawn: list[tuple[str, str]] = []

    def watch_view(self, view: RunView) -> None:
        """Redraw if the text of a tile changed."""
        texts = [(tile.label, tile.value.plain) for tile in self._tiles(view)]
        if texts != self._drawn:
            self._drawn = texts
            self.refresh()

    def render(self) -> Text:
        """Lay out the tiles from left to right, the last one flush right."""
        label = self.get_component_rich_style("header--label", partial=True)
        tiles = fitting(self._tiles(self.view), self.content_size.width)
        used = sum(tile.width for tile in tiles) + GAP * (len(tiles) - 1)
        slack = max(self.content_size.width - used, 0)
        lines = Text(no_wrap=True), Text(no_wrap=True)
        for i, tile in enumerate(tiles):
            is_last = i == len(tiles) - 1
            if is_last:
                for line in lines:
                    line.append(" " * slack)
            gap = "" if is_last else " " * GAP
            lines[0].append(tile.label.ljust(tile.width) + gap, label)
            lines[1].append_text(tile.value)
            lines[1].append(" " * (tile.width - tile.value.cell_len) + gap)
        return Text("\n").join(lines)

    def _tiles(self, view: RunView) -> list[Tile]:
        info = view.info
        if info is None:
            return [Tile("FAIRBED", Text("reading the run store"), 0)]
        value = self.get_component_rich_style("header--value", partial=True)
        newest = view.metrics[-1] if view.metrics else None
        last = next((row for row in reversed(view.rounds) if row.status == "done"), None)
        has_queues = bool(view.queues) and (view.beta is not None or view.queues[-1][2] > 0.0)
        queue_sum = view.queues[-1][1] if has_queues else None

        def plain(text: str) -> Text:
            return Text(text, value)

        def tile(
            key: str, found: float | None, priority: int | None = None, label: str = ""
        ) -> Tile:
            one = run_measure(key)
            assert one.room is not None
            return Tile(
                label or one.room.label,
                plain(one.with_unit(found)),
                one.room.priority if priority is None else priority,
            )

        absent = sum(device.state in ABSENT for device in view.devices)
        fleet = sum(device.state != REVOKED for device in view.devices)
        present = f"{fleet - absent}/" if info.is_alive or absent else ""
        devices = plain(f"{present}{fleet}")
        if absent:
            devices.stylize(self.get_component_rich_style("header--bad", partial=True))
        left_s = view.left_s
        left = [] if left_s is None else [Tile("LEFT", plain(f"≈ {clock(left_s)}"), 3)]
        speed = _clock_speed(info.row.dilation)
        owes = view.beta is not None

        return [
            Tile("FAIRBED", self._brand(info.row.name), 0),
            Tile("STATUS", self._status(info), 0),
            Tile("ROUND", self._round(info), 0),
            *left,
            tile("accuracy_mean", spread_of(newest).mean, label=measure(view.task).upper()),
            _worst_tenth(tile, view, None if left else 3),
            tile("loss_mean", newest.loss_mean if newest else None),
            Tile("LAST ROUND", plain(f"{seconds(last.duration_s)} s" if last else MISSING), 8),
            tile("queue_total", queue_sum, 4 if owes else None),
            Tile("DEVICES", devices, 1 if absent else 7),
            Tile("UNTIMED", plain(untimed(view.quality)), 2 if view.quality.contended else 11),
            *(
                [Tile("EMPTY", plain(f"{info.rounds_empty} rounds"), 12)]
                if info.rounds_empty
                else []
            ),
            *([Tile("LATE", plain(_late(view.stragglers)), 6)] if view.stragglers else []),
            *(tile(key, number.value) for key, number in view.measures.items()),
            Tile(f"ELAPSED{speed}", plain(clock(view.elapsed_s)), 2),
        ]

    def _brand(self, name: str) -> Text:
        return Text(name, self.get_component_rich_style("header--brand", partial=True))

    def _status(self, info: RunInfo) -> Text:
        status = info.shown_status
        kind = {"running": "good", "done": "good", "failed": "bad", "interrupted": "bad"}
        style = self.get_component_rich_style(f"header--{kind.get(status, 'busy')}", partial=True)
        return Text(f"● {status}", style)

    def _round(self, info: RunInfo) -> Text:
        """Return the closed rounds, of the number of the last one: an empty round adds to both."""
        value = self.get_component_rich_style("header--value", partial=True)
        completed, last = info.rounds_completed, info.last_round
        if not last:
            return Text(str(completed), value)
        bar = gauge(completed / last, GAUGE_WIDTH)
        style = self.get_component_rich_style("header--gauge", partial=True)
        return Text.assemble((f"{completed}/{last} ", value), (bar, style))


def untimed(quality: Quality) -> str:
    """Return the untimed and the completed exchanges; the models of both count."""
    return f"{quality.invalid}/{quality.done}{' (host busy)' if quality.contended else ''}"


def _late(stragglers: Stragglers) -> str:
    """Return the counts of late exchanges by outcome, without zeros."""
    counts = {
        "aggregated": stragglers.aggregated,
        "dropped": stragglers.dropped,
        "cancelled": stragglers.cancelled,
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


MAX_NAME = 16
"""Characters of the name of a metric in a tile."""


def _worst_tenth(make: Callable[..., Tile], view: RunView, priority: int | None) -> Tile:
    """Return the tile of the worst tenth, of the metric that `evaluation.worst` names."""
    newest = view.metrics[-1] if view.metrics else None
    chosen = "" if view.info is None else view.info.plan.evaluation.worst
    name, worst10 = worst_tenth(newest, chosen)
    if not name:
        return make("accuracy_worst10", worst10, priority)
    shown = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
    label = f"WORST 10 % {shown.upper()}"
    return make("metric_worst10", worst10, priority, label=label)


def _clock_speed(dilation: float) -> str:
    """Return the speed of the run clock relative to real time: ÷ slower, × faster (replay)."""
    if dilation == 1.0:
        return ""
    return f" ÷ {dilation:.3g}" if dilation > 1.0 else f" × {1.0 / dilation:,.0f}"


def fitting(tiles: list[Tile], width: int) -> list[Tile]:
    """Return the tiles that fit into `width` columns, in order, without the least important."""
    kept = list(tiles)
    while len(kept) > 1 and sum(tile.width for tile in kept) + GAP * (len(kept) - 1) > width:
        kept.remove(max(kept, key=lambda tile: tile.priority))
    return kept


class Banner(Static):
    """How a run ended early, or its alerts that stand; hidden without either.

    A single line is wrapped, several are cut at the width of the screen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def show(self, view: RunView) -> None:
        """Show or hide the lines."""
        lines = banner_lines(view.info)
        if lines != self._lines:
            self._lines = lines
            self.set_class(len(lines) > 1, "-several")
            self.update(Content("\n".join(lines)))
            self.display = bool(lines)
