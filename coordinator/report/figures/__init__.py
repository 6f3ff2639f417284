"""The figures of a run, for papers and for pages.

data                         what the figures draw, read from the store once
model, selection, exchanges  the drawings, and why a run may lack their data
panels                       what the drawings share
catalogue                    all figures by name
output                       figures as files with equal bytes, and as SVG inside a page
"""

from fairbed.coordinator.report.figure_style import FORMATS
from fairbed.coordinator.report.figures.catalogue import FIGURES, FigureKind
from fairbed.coordinator.report.figures.data import RunFigures, read_figures
from fairbed.coordinator.report.figures.output import (
    SETTINGS,
    THEME,
    draw,
    figure_bytes,
    inline_svg,
    why_missing,
    write_figures,
)

__all__ = [
    "FIGURES",
    "FORMATS",
    "SETTINGS",
    "THEME",
    "FigureKind",
    "RunFigures",
    "draw",
    "figure_bytes",
    "inline_svg",
    "read_figures",
    "why_missing",
    "write_figures",
]
