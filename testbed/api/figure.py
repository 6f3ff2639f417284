"""A figure that a notebook shows; importing it imports matplotlib."""

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

from matplotlib.figure import Figure

from fairbed.coordinator.report.figure_style import save, styled
from fairbed.coordinator.report.figures import SETTINGS, RunFigures, draw

INCH_PX = 96
"""Pixels of a page per inch."""


class NotebookFigure(Figure):
    """A figure in the style of Fairbed, whatever the settings of the notebook are.

    It is drawn without pyplot, which would keep it in memory and show it a second time.
    """

    def savefig(self, *args: Any, **kwargs: Any) -> None:
        """Save the figure as matplotlib does, in the style in which it was drawn."""
        with styled(SETTINGS):
            super().savefig(*args, **kwargs)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the picture for a notebook, and its size in pixels of the page."""
        file = BytesIO()
        with styled(SETTINGS):
            save(self, file, "png")
        width_in, height_in = self.get_size_inches()
        size = {"width": round(INCH_PX * width_in), "height": round(INCH_PX * height_in)}
        return file.getvalue(), size


def drawn(paint: Callable[[Figure], None], size_in: tuple[float, float] | None = None) -> Figure:
    """Return a figure on which `paint` has drawn."""
    with styled(SETTINGS):
        figure = NotebookFigure(figsize=size_in)
        paint(figure)
    return figure


def figure_of(what: str, runs: Sequence[RunFigures]) -> Figure:
    """Return a figure of runs.

    Raises:
        NoFigureError: There is no such figure, or no run has its data.
    """
    return drawn(lambda figure: draw(what, runs, figure))
