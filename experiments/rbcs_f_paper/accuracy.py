"""Figures 5 and 6 of the RBCS-F paper: accuracy by evenness, by strategy, and by time."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.rbcs_f_paper.accuracy_report import TITLES
from experiments.rbcs_f_paper.reading import Trained, interval
from experiments.rbcs_f_paper.settings import Figure, Size, lines_of
from experiments.rbcs_f_paper.training import Curve, accuracies
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.report.figure_style import band, drawing, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_IN = (2.5, 2.3)
"""Width and height of one panel, inches."""
LEAST_WIDTH_IN = 4.4
"""Width of three legend entries in a row, inches."""
POINTS = 60
"""Number of instants at which curves over time are compared."""


def draw_accuracy(number: Figure, trained: Trained, size: Size, folder: Path) -> list[Path]:
    """Draw Fig. 5, or Fig. 6 against rounds and against time; means and 95 % intervals."""
    if number == 5:
        return [_draw(folder / f"fig5-evenness-{size.model}", 5, trained, size, by_time=False)]
    return [
        _draw(folder / f"fig6-rounds-{size.model}", 6, trained, size, by_time=False),
        _draw(folder / f"fig6-time-{size.model}", 6, trained, size, by_time=True),
    ]


def _draw(path: Path, number: Figure, trained: Trained, size: Size, *, by_time: bool) -> Path:
    across, down = len(size.mixtures), len(size.datasets)
    size_in = (max(LEAST_WIDTH_IN, PANEL_IN[0] * across), PANEL_IN[1] * down + 0.4)
    with drawing(path, size_in) as figure:
        panels = figure.subplots(down, across, sharey="row", squeeze=False)
        for row, dataset in zip(panels, size.datasets, strict=True):
            for axes, mixture in zip(row, size.mixtures, strict=True):
                for at, line in enumerate(lines_of(number)):
                    curves = [
                        trained[line.setting(dataset, mixture, seed)] for seed in range(size.seeds)
                    ]
                    label = line.policy.label.replace("gamma_2", "$\\gamma_2$")
                    _curve(axes, curves, label, at, by_time=by_time)
                axes.margins(x=0.0)
                if dataset == size.datasets[0]:
                    axes.set_title(mixture_title(mixture), fontsize=9.0)
                if dataset == size.datasets[-1]:
                    axes.set_xlabel("virtual time, s" if by_time else "round")
            row[0].set_ylabel(f"{TITLES[dataset]}\nmean test accuracy")
        handles, labels = panels[0][0].get_legend_handles_labels()
        columns = len(labels) if across > 2 else 3
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    return path


def mixture_title(mixture: float) -> str:
    """Return the title of a panel for a gamma_1."""
    if math.isinf(mixture):
        return "$\\gamma_1 = \\infty$ (all alike)"
    return f"$\\gamma_1$ = {mixture:g}"


def _curve(
    axes: "Axes", curves: Sequence[Curve], label: str, number: int, *, by_time: bool
) -> None:
    x = np.array(curves[0].rounds, dtype=np.float64)
    y = accuracies(curves)
    if by_time:
        x, y = over_time(curves)
    low, mean, high = ends(y)
    band(axes, x, low, mean, high, label=label, style=series_style(number))


def ends(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return lower end, mean and upper end over seeds at each position, each of shape (T,).

    One seed has no interval: both ends are its value.
    """
    found = [interval(column) for column in values.T]
    mean = np.array([one.mean for one in found])
    low, high = (
        np.array([one.mean if end is None else end for one, end in zip(found, side, strict=True)])
        for side in ([one.low for one in found], [one.high for one in found])
    )
    return low, mean, high


def over_time(curves: Sequence[Curve]) -> tuple[Floats, Floats]:
    """Return instants (P,) that all curves cover, and the accuracy of each curve there (K, P)."""
    first = max(curve.time_s[0] for curve in curves)
    last = min(curve.time_s[-1] for curve in curves)
    instants = np.linspace(first, last, POINTS)
    known = [np.interp(instants, curve.time_s, curve.accuracy) for curve in curves]
    return instants, np.array(known)
