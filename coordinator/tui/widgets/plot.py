"""Plot of curves over rounds, with round numbers as ticks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.content import Content
from textual.events import Resize
from textual.reactive import reactive
from textual_plotext import PlotextPlot

_STEPS = (1.0, 2.0, 5.0, 10.0)


def ticks(low: float, high: float, count: int, *, is_whole: bool = False) -> list[float]:
    """Return at most `count` + 1 multiples of 1, 2 or 5 times a power of ten within [low, high].

    Args:
        low: Lower end of the axis.
        high: Upper end, not below `low`.
        count: Number of steps that fit on the axis, at least 1.
        is_whole: Return whole numbers only.
    """
    wanted = (high - low) / count
    if wanted <= 0.0:
        return [low]
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(power * s for s in _STEPS if power * s >= wanted * (1 - 1e-9))
    step = max(step, 1.0) if is_whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def label(value: float) -> str:
    """Return the text of a tick: `3`, `0.5`, `0.25`."""
    return f"{value:.6g}"


MAX_POINTS = 400
"""Points drawn per curve; more than a terminal has columns of dots."""
COLUMNS_PER_TICK = 9
LINES_PER_TICK = 3


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot; points must be in order of x."""

    label: str
    style: str
    """Component class without its prefix."""
    points: tuple[tuple[float, float], ...]
    is_joined: bool = True
    """Draw lines between the points."""


LETTERED = "-lettered"
"""Class of the application while phases and curves are drawn with letters."""


class CurvePlot(PlotextPlot):
    """Curves in the colours of the theme; later curves cover earlier ones.

    With letters a curve is drawn with the first letter of its label.

    Args:
        title: Title, with the unit of the vertical axis.
        id: Identifier of the widget.
        limit: Points drawn per curve; of more points some are left out.
        is_over_rounds: The horizontal axis has round numbers; otherwise any numbers.
        has_zero: The vertical axis contains 0; otherwise it spans the values.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"plot--main", "plot--low", "plot--high"}

    curves: reactive[tuple[Curve, ...]] = reactive((), repaint=False)

    def __init__(
        self,
        title: str,
        *,
        id: str | None = None,
        limit: int = MAX_POINTS,
        is_over_rounds: bool = True,
        has_zero: bool = True,
    ) -> None:
        super().__init__(id=id)
        self._title, self._limit = title, limit
        self._is_over_rounds, self._has_zero = is_over_rounds, has_zero
        self.theme = "clear"  # canvas, axes and ticks in the colours of the widget

    def show(self, title: str, curves: tuple[Curve, ...], *, has_zero: bool = True) -> None:
        """Show other curves under another title.

        Args:
            title: Title, with the unit of the vertical axis.
            curves: The curves.
            has_zero: The vertical axis contains 0.
        """
        is_other = (title, has_zero) != (self._title, self._has_zero)
        self._title, self._has_zero = title, has_zero
        if curves != self.curves:
            self.curves = curves
        elif is_other and self.is_on_screen:
            self.redraw()

    def on_resize(self, _event: Resize) -> None:
        """Choose the ticks again; a hidden plot is drawn when it is shown."""
        self.redraw()

    def watch_curves(self) -> None:
        """Draw the new curves."""
        if self.is_on_screen:
            self.redraw()

    def redraw(self) -> None:
        """Draw the curves in the colours of the theme."""
        title = Content(self._title)
        is_lettered = self.app.has_class(LETTERED)
        self.plt.clear_figure()
        self.plt.xaxes(True, False)
        self.plt.yaxes(True, False)
        for curve in self.curves:
            colour = self.get_component_styles(f"plot--{curve.style}").color
            glyph = curve.label[0] if is_lettered else "■"
            title += Content.assemble("  ", (f"{glyph} ", colour.css), curve.label)
            if points := thinned(curve.points, self._limit):
                draw = self.plt.plot if curve.is_joined else self.plt.scatter
                draw(
                    [x for x, _ in points],
                    [y for _, y in points],
                    marker=glyph if is_lettered else "braille",
                    color=colour.rgb if colour.ansi is None else _ansi(colour.ansi),
                )
        self.border_title = title
        self._set_axes([point for curve in self.curves for point in curve.points])
        self.refresh()

    def _set_axes(self, points: Sequence[tuple[float, float]]) -> None:
        width, height = self.content_size
        left = min((x for x, _ in points), default=0.0)
        shortest = 1.0 if self._is_over_rounds else 1e-6
        right = max(max((x for x, _ in points), default=1.0), left + shortest)
        bottom, top = _vertical_span([y for _, y in points], has_zero=self._has_zero)
        count = max(width // COLUMNS_PER_TICK, 1)
        at_x = ticks(left, right, count, is_whole=self._is_over_rounds)
        at_y = ticks(bottom, top, max(height // LINES_PER_TICK, 1))
        self.plt.xlim(left, right)
        self.plt.ylim(min([bottom, *at_y]), max([top, *at_y]))
        self.plt.xticks(at_x, [label(x) for x in at_x])
        self.plt.yticks(at_y, [label(y) for y in at_y])


def _vertical_span(values: Sequence[float], *, has_zero: bool) -> tuple[float, float]:
    """Return the ends of an axis for some values, never the same number twice."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if has_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    return low, max(high, low + 1e-3)


def _ansi(number: int) -> int | str:
    """Return the colour of a number of the terminal as plotext names it; -1 is its default."""
    return number if number >= 0 else "default"


def thinned(
    points: Sequence[tuple[float, float]], limit: int = MAX_POINTS
) -> list[tuple[float, float]]:
    """Return at most `limit` evenly spaced points, including the last one."""
    step = max(-(-len(points) // limit), 1)
    return list(points[::-step])[::-1]
