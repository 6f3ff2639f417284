"""The figures of a comparison: the front, curves over rounds and time, and means of all arms.

They stay readable with many arms: the legend is below the axes, every arm has its own marker, and
intervals of arms at the same place stand side by side.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.report.figure_style import (
    GREY,
    SeriesStyle,
    band,
    drawing,
    files_of,
    series_style,
)
from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.comparison import (
    FRONT_RATE,
    FRONT_TIME,
    ArmSummary,
    Comparison,
    MetricSummary,
)
from fairbed.testbed.compare.measures import RunCurves
from fairbed.testbed.compare.table import heading_of, of_seeds, shown_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID_POINTS = 400
"""Times at which the seeds of an arm are averaged."""
MAX_BANDS = 4
"""Most arms whose range over seeds is a band; of more arms, whiskers stand side by side."""
WHISKERS = 6
"""Places with a marker and whiskers along the curve of an arm, apart from those of the others."""
ROW_IN, LEGEND_LINE_IN = 0.28, 0.17
"""Heights of a row of arms and of a line of the legend, inches."""
LEGEND_CHARACTERS = 96
"""Characters that fit into the width of a legend; each column has `HANDLE_CHARACTERS` more."""
HANDLE_CHARACTERS = 9
QUEUE = "queue_mean_total"
DEVICE_S: Final = "evaluated_device_s"


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """A quantity of one arm over rounds or time: range and mean over seeds, shapes (T,)."""

    x: Floats
    lowest: Floats
    mean: Floats
    highest: Floats
    n: int
    """Seeds that have it."""


Paint: TypeAlias = "Callable[[Axes], None]"
"""Draws one figure."""


def draw_all(comparison: Comparison, results: Sequence[CellResult], folder: Path) -> list[Path]:
    """Draw every figure of `figures_of` as files; return them.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        OSError: A file cannot be written.
    """
    drawn = list[Path]()
    for name, paint in figures_of(comparison, results).items():
        with drawing(folder / name) as figure:
            paint(figure.add_subplot())
        drawn.extend(files_of(folder / name))
    return drawn


def figures_of(comparison: Comparison, results: Sequence[CellResult]) -> dict[str, Paint]:
    """Return every figure for which the comparison has numbers, by its name."""
    curves: dict[str, list[RunCurves]] = {arm.name: [] for arm in comparison.arms}
    for result in results:
        if result.outcome.measured is not None:
            curves[result.arm].append(result.outcome.measured.curves)
    styles = _styles(comparison)
    found = dict[str, Paint]()
    metrics = {metric.key: metric for metric in comparison.metrics}
    if any(arm.is_on_front is not None for arm in comparison.arms):
        found["front"] = lambda axes: _front(axes, comparison)
    shown = {comparison.primary: "primary", FRONT_TIME: "time"}
    for key, name in shown.items():
        if key in metrics:
            found[name] = partial(_means, comparison=comparison, metric=metrics[key], styles=styles)
    if any(arm.front_value is not None and QUEUE in arm.values for arm in comparison.arms):
        found["queue-against-V"] = lambda axes: _queue_against_v(axes, comparison)
    if any(run.queue_total for runs in curves.values() for run in runs):
        queues = {name: by_round(runs, "queue_total") for name, runs in curves.items()}
        found["queue"] = partial(
            _draw_curves,
            comparison=comparison,
            curves=queues,
            styles=styles,
            xlabel="round",
            ylabel="sum of the queues",
        )
    if any(run.accuracy for runs in curves.values() for run in runs):
        for name, label, by in (
            ("accuracy-rounds", "round", partial(by_round, quantity="accuracy")),
            ("accuracy-time", "time, s", by_time),
            ("accuracy-device-seconds", "device-seconds", partial(by_time, clock=DEVICE_S)),
        ):
            found[name] = partial(
                _accuracy,
                comparison=comparison,
                curves={arm: by(runs) for arm, runs in curves.items()},
                styles=styles,
                xlabel=label,
            )
    return found


def by_round(curves: Sequence[RunCurves], quantity: str) -> MetricCurve | None:
    """Return `queue_total` or `accuracy` over the rounds of all seeds that have it, if any has."""
    rounds = "rounds" if quantity == "queue_total" else "evaluated"
    known = [run for run in curves if getattr(run, quantity)]
    if not known:
        return None
    length = min(len(getattr(run, quantity)) for run in known)
    values = np.array([getattr(run, quantity)[:length] for run in known])
    return _over_seeds(np.array(getattr(known[0], rounds)[:length], dtype=np.float64), values)


def by_time(
    curves: Sequence[RunCurves],
    clock: Literal["evaluated_s", "evaluated_device_s"] = "evaluated_s",
) -> MetricCurve | None:
    """Return the last evaluated accuracy over the time that all seeds cover; None if none."""
    evaluated = [run for run in curves if run.evaluated]
    if not evaluated:
        return None
    start = max(getattr(run, clock)[0] for run in evaluated)
    end = min(getattr(run, clock)[-1] for run in evaluated)
    if end < start:
        return None
    grid: Floats = np.linspace(start, end, GRID_POINTS)
    values = np.array(
        [
            np.array(run.accuracy)[np.searchsorted(getattr(run, clock), grid, side="right") - 1]
            for run in evaluated
        ]
    )
    return _over_seeds(grid, values)


def _over_seeds(x: Floats, values: Floats) -> MetricCurve:
    lowest, mean, highest = values.min(axis=0), values.mean(axis=0), values.max(axis=0)
    return MetricCurve(x, lowest, mean, highest, len(values))


def _styles(comparison: Comparison) -> dict[str, SeriesStyle]:
    return {arm.name: series_style(index) for index, arm in enumerate(comparison.arms)}


def _curves_of(comparison: Comparison) -> dict[str, list[ArmSummary]]:
    """Return the arms of each curve, ordered by V; an arm without V is its own curve."""
    curves: dict[str, list[ArmSummary]] = {}
    for arm in comparison.arms:
        curves.setdefault(arm.curve if arm.front_value is not None else arm.name, []).append(arm)
    return {
        name: sorted(arms, key=lambda arm: arm.front_value or 0.0) for name, arms in curves.items()
    }


def _front(axes: "Axes", comparison: Comparison) -> None:
    for index, (name, arms) in enumerate(_curves_of(comparison).items()):
        known = [arm for arm in arms if FRONT_TIME in arm.values and FRONT_RATE in arm.values]
        if not known:
            continue
        times, rates = (
            np.array([arm.values[key].mean for arm in known]) for key in (FRONT_TIME, FRONT_RATE)
        )
        style = series_style(index)
        axes.errorbar(
            times,
            rates,
            xerr=_spread(known, FRONT_TIME),
            yerr=_spread(known, FRONT_RATE),
            color=style.colour,
            marker=style.marker,
            linestyle=style.dash,
            elinewidth=0.8,
            clip_on=False,
            label=_label(name, known, FRONT_RATE),
        )
        side = 1 if index % 2 else -1  # so that labels of neighbouring curves do not overlap
        for arm, time, rate in zip(known, times, rates, strict=True):
            if arm.front_value is not None:
                axes.annotate(
                    f"V={arm.front_value:g}",
                    (time, rate),
                    (5 * side, -4 * side),
                    textcoords="offset points",
                    ha="left" if side > 0 else "right",
                    va="top" if side > 0 else "bottom",
                    fontsize=7,
                    color=style.colour,
                )
    betas = {arm.beta for arm in comparison.arms}
    if len(betas) == 1:
        axes.axhline(betas.pop(), color=GREY, linestyle=":", linewidth=1.0, label="guaranteed")
    axes.margins(x=0.08)
    axes.set(xlabel="total time, s", ylabel="least rate of a device", ylim=(0.0, None))
    _legend(axes)


def _means(
    axes: "Axes",
    comparison: Comparison,
    metric: MetricSummary,
    styles: Mapping[str, SeriesStyle],
) -> None:
    """Draw the mean and interval of every arm in a row of its own, which is named beside it."""
    arms = comparison.arms[::-1]
    _grow(axes, ROW_IN * max(0, len(arms) - 8))
    for row, arm in enumerate(arms):
        found, shown = arm.values.get(metric.key), shown_value(arm, metric)
        if found is not None:
            axes.errorbar(
                found.mean,
                row,
                xerr=_spread([arm], metric.key),
                color=styles[arm.name].colour,
                marker=styles[arm.name].marker,
                capsize=3,
            )
        beside = shown.beside.strip() if found else f"undefined n={shown.n}"
        axes.annotate(
            beside,
            (1.0, row),
            (3, 0),
            ("axes fraction", "data"),
            "offset points",
            va="center",
            fontsize=7,
            color=GREY,
        )
    baseline = next(arm for arm in arms if arm.name == comparison.baseline)
    if metric.key in baseline.values:
        axes.axvline(baseline.values[metric.key].mean, color=GREY, linestyle=":", linewidth=1.0)
    axes.set_yticks(range(len(arms)), [arm.name for arm in arms])
    mean = " (geometric mean)" if metric.scale == "log" else ""
    axes.set(xlabel=f"{heading_of(metric)}{mean}", ylim=(-0.5, len(arms) - 0.5))
    if metric.unit == "s":
        axes.set(xlim=(0.0, None))


def _queue_against_v(axes: "Axes", comparison: Comparison) -> None:
    curves = _curves_of(comparison)
    every_v = sorted({arm.front_value for arm in comparison.arms if arm.front_value is not None})
    step = 0.006 * (every_v[-1] - every_v[0])
    for index, (name, arms) in enumerate(curves.items()):
        style = series_style(index)
        known = [arm for arm in arms if QUEUE in arm.values]
        if not known:
            continue
        means = [arm.values[QUEUE].mean for arm in known]
        if known[0].front_value is None:
            label = _label(name, known, QUEUE)
            axes.axhline(means[0], color=style.colour, linestyle=style.dash, label=label)
            continue
        beside = step * (index - (len(curves) - 1) / 2.0)
        axes.errorbar(
            [(arm.front_value or 0.0) + beside for arm in known],
            means,
            yerr=_spread(known, QUEUE),
            color=style.colour,
            marker=style.marker,
            linestyle=style.dash,
            capsize=3,
            label=_label(name, known, QUEUE),
        )
    axes.set(xlabel="V", ylabel="sum of the queues, mean over rounds", ylim=(0.0, None))
    _legend(axes)


def _accuracy(
    axes: "Axes",
    comparison: Comparison,
    curves: Mapping[str, MetricCurve | None],
    styles: Mapping[str, SeriesStyle],
    xlabel: str,
) -> None:
    for target in comparison.targets:
        axes.axhline(target.accuracy, color=GREY, linestyle=":", linewidth=1.0)
    _draw_curves(axes, comparison, curves, styles, xlabel, "accuracy, mean over devices")


def _draw_curves(
    axes: "Axes",
    comparison: Comparison,
    curves: Mapping[str, MetricCurve | None],
    styles: Mapping[str, SeriesStyle],
    xlabel: str,
    ylabel: str,
) -> None:
    n_seeds = {arm.name: len(arm.seeds) for arm in comparison.arms}
    known = {name: curve for name, curve in curves.items() if curve is not None}
    for at, (name, curve) in enumerate(known.items()):
        style = styles[name]
        label = name if curve.n == n_seeds[name] else f"{name} (n={curve.n}/{n_seeds[name]})"
        if len(known) <= MAX_BANDS:
            band(axes, curve.x, curve.lowest, curve.mean, curve.highest, label=label, style=style)
            continue
        axes.plot(curve.x, curve.mean, color=style.colour, linestyle=style.dash, linewidth=1.1)
        share = (np.arange(WHISKERS) + (at + 0.5) / len(known)) / WHISKERS
        places = curve.x[0] + share * (curve.x[-1] - curve.x[0])
        lowest, mean, highest = (
            np.interp(places, curve.x, y) for y in (curve.lowest, curve.mean, curve.highest)
        )
        axes.errorbar(
            places,
            mean,
            np.maximum([mean - lowest, highest - mean], 0.0),  # a mean of equal values is rounded
            color=style.colour,
            marker=style.marker,
            markersize=4.0,
            linestyle="",
            elinewidth=0.7,
            capsize=1.5,
        )
        axes.plot(
            [],
            [],
            color=style.colour,
            marker=style.marker,
            markersize=4.0,
            linestyle=style.dash,
            linewidth=1.1,
            label=label,
        )
    axes.set(xlabel=xlabel, ylabel=ylabel)
    _legend(axes)


def _label(name: str, arms: Sequence[ArmSummary], key: str) -> str:
    """Return the label of a curve, with the number of seeds of an arm that lacks a metric in some.

    Args:
        name: Name of the curve.
        arms: Its arms.
        key: The metric.
    """
    fewest = min(arms, key=lambda arm: arm.values[key].n / arm.n_seeds(key))
    return f"{name} (n={of_seeds(fewest, key)})" if key in fewest.missing else name


def _legend(axes: "Axes") -> None:
    """Draw the legend below the axes, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0) + HANDLE_CHARACTERS
    columns = min(max(1, LEGEND_CHARACTERS // longest), max(1, len(labels)))
    lines = -(-len(labels) // columns)
    _grow(axes, LEGEND_LINE_IN * lines)
    figure = axes.get_figure()
    assert figure is not None
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _grow(axes: "Axes", more_in: float) -> None:
    """Make the figure higher, so that its axes keep their height."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    width_in, height_in = figure.get_size_inches()
    figure.set_size_inches(width_in, height_in + more_in)


def _spread(arms: Sequence[ArmSummary], key: str) -> Floats:
    """Return the lengths of intervals below and above their means, shape (2, K)."""
    estimates = [arm.values[key] for arm in arms]
    below = [0.0 if value.low is None else value.mean - value.low for value in estimates]
    above = [0.0 if value.high is None else value.high - value.mean for value in estimates]
    lengths: Floats = np.maximum([below, above], 0.0)  # the logarithm of equal values is rounded
    return lengths
