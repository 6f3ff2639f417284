"""What the drawings of figures share: the runs with their look, lines, axes of rounds, legends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.report.figure_style import GREY, SeriesStyle, series_style
from fairbed.coordinator.report.figures.data import RunFigures
from fairbed.wire.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Canvas: TypeAlias = "Figure | SubFigure"
"""An empty figure, or the part of a figure that belongs to one run."""

MAX_ROWS = 24
"""Devices with a labelled row each; larger fleets are shown by profile or as a curve."""
MAX_BINS = 100
"""Spans of rounds in a stacked figure; longer runs show means over several rounds."""
MAX_CHANGES = 8
MAX_MARKED = 12
"""Points of a line with markers."""
LEGEND_WIDTH = 130
"""Characters of a line of a legend, 8 for each symbol included."""

LEVELS = 5
"""Shades of a share or a count in an image."""
Rgba: TypeAlias = tuple[float, float, float, float]
_BLUE = (20, 120, 190)
"""Readable on white and on black paper. No series has it: a page replaces the colours of series,
which it cannot do in an image."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A run with the look that it has in every figure."""

    run: RunFigures
    label: str
    style: SeriesStyle

    @property
    def line(self) -> dict[str, Any]:
        """Colour, dash and label of its lines."""
        return {"color": self.style.colour, "linestyle": self.style.dash, "label": self.label}


def shown(runs: Sequence[RunFigures]) -> list[Shown]:
    """Return each run with a label of its own: the shortest in which the runs differ."""
    for text in ("{0.name}", "{0.name}, {0.policy}", "{0.name}, {0.policy}, seed {0.seed}"):
        labels = [text.format(run) for run in runs]
        if len(set(labels)) == len(labels):
            break
    else:
        labels = [run.run_id for run in runs]
    return [
        Shown(run, label_of(label), series_style(index))
        for index, (run, label) in enumerate(zip(runs, labels, strict=True))
    ]


def label_of(text: str) -> str:
    """Return a label without control characters; matplotlib would hide one that begins with `_`."""
    return f" {shown}" if (shown := printable(text)).startswith("_") else shown


def panels(figure: Canvas, *, has_right: bool) -> "tuple[Axes, Axes | None]":
    """Return the left panel and the right one, if there is one."""
    drawn = figure.subplots(1, 1 + has_right, squeeze=False)[0]
    return drawn[0], drawn[1] if has_right else None


def draw_line(axes: "Axes", x: Floats, y: Floats, **line: Any) -> None:
    """Draw the known points of a curve, both of shape (T,); few points have markers."""
    known = np.isfinite(y)
    marker = "o" if int(known.sum()) <= MAX_MARKED else ""
    axes.plot(x[known], y[known], marker=marker, markersize=3.0, **line)


def draw_series(axes: "Axes", index: int, x: Floats, y: Floats, label: str) -> None:
    """Draw a curve that is not a run, in the style of a series."""
    style = series_style(index)
    draw_line(axes, x, y, color=style.colour, linestyle=style.dash, label=label)


def whole_rounds(axes: "Axes", *, has_margin: bool = True) -> None:
    """Label the x axis with whole rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if has_margin:
        axes.margins(x=0.02)


def from_zero(axes: "Axes") -> None:
    """Begin the y axis at 0, in which a curve stays visible."""
    top = axes.get_ylim()[1]
    axes.set_ylim(-0.02 * top, top)


def legend_below(figure: Canvas, *named: "Axes") -> None:
    """Name the lines of some panels below all of them, where the legend hides no data."""
    found = dict[str, Any]()
    for axes in named:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        return
    columns = max(LEGEND_WIDTH // (max(map(len, found)) + 8), 1)
    figure.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=min(columns, len(found)),
    )


def mark_changes(run: RunFigures, drawn: "Sequence[Axes]", names: Sequence[str]) -> None:
    """Mark the rounds from which operators changed a setting, with a line of the legend for each.

    There are lines for the first `MAX_CHANGES` changes only, which leaves the figure readable.
    """
    changes = [change for change in run.changes if change.name in names][:MAX_CHANGES]
    for axes in drawn:
        for change in changes:
            label = f"round {change.round}: {change.name} = {change.value:g}"
            axes.axvline(change.round, color=GREY, linewidth=0.8, linestyle="--", label=label)


@dataclass(frozen=True, slots=True)
class Bins:
    """Spans of closed rounds, all of the same number of rounds but the last."""

    rounds: Floats
    """The closed rounds, shape (T,)."""
    per_bin: int

    @property
    def size(self) -> int:
        """The number of spans, B."""
        return -(-self.rounds.size // self.per_bin)

    @property
    def edges(self) -> Floats:
        """Rounds between which the spans are drawn, shape (B + 1,)."""
        edges: Floats = self.rounds[0] - 0.5 + self.per_bin * np.arange(self.size + 1)
        edges[-1] = self.rounds[-1] + 0.5
        return edges

    @property
    def middles(self) -> Floats:
        """Middle of each span, shape (B,)."""
        middles: Floats = (self.edges[1:] + self.edges[:-1]) / 2.0
        return middles

    def sums(self, values: Floats) -> Floats:
        """Return the sum over each span of a number of each round, shape (B,)."""
        sums: Floats = np.add.reduceat(values, np.arange(0, self.rounds.size, self.per_bin))
        return sums

    def means(self, values: Floats) -> Floats:
        """Return the mean over each span of a number of each round, shape (B,)."""
        means: Floats = self.sums(values) / self.sums(np.ones(self.rounds.size))
        return means


def bins_of(run: RunFigures) -> Bins:
    """Return the spans of rounds of a stacked figure: at most `MAX_BINS`."""
    rounds = run.rounds["round"]
    return Bins(rounds, max(-(-rounds.size // MAX_BINS), 1))


def blue(level: float = LEVELS) -> Rgba:
    """Return the colour of an image for one of `LEVELS` levels, as an opacity of one blue."""
    red, green, blue = (part / 255 for part in _BLUE)
    return red, green, blue, 0.2 + 0.8 * level / LEVELS
