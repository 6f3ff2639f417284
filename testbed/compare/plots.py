"""The figures of a comparison: the front, curves over rounds and time, and queues against V."""

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
from fairbed.testbed.compare.comparison import FRONT_RATE, FRONT_TIME, ArmSummary, Comparison
from fairbed.testbed.compare.measures import RunCurves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID_POINTS = 400
"""Times at which the seeds of an arm are averaged."""
MAX_SERIES = 12
"""Maximum number of arms in a legend; further arms are drawn without an entry."""
QUEUE = "queue_mean_total"
DEVICE_S: Final = "evaluated_device_s"


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """A quantity of one arm over rounds or time: range and mean over seeds, shapes (T,)."""

    x: Floats
    lowest: Floats
    mean: Floats
    highest: Floats


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
    if any(arm.is_on_front is not None for arm in comparison.arms):
        found["front"] = lambda axes: _front(axes, comparison, styles)
        found["time"] = lambda axes: _times(axes, comparison, styles)
    if any(arm.front_value is not None and QUEUE in arm.values for arm in comparison.arms):
        found["queue-against-V"] = lambda axes: _queue_against_v(axes, comparison, styles)
    if any(run.queue_total for runs in curves.values() for run in runs):
        queues = {name: by_round(runs, "queue_total") for name, runs in curves.items()}
        found["queue"] = partial(
            _draw_curves, curves=queues, styles=styles, xlabel="round", ylabel="sum of the queues"
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
    """Return `queue_total` or `accuracy` over the rounds that all seeds have; None if none."""
    rounds = "rounds" if quantity == "queue_total" else "evaluated"
    length = min((len(getattr(run, quantity)) for run in curves), default=0)
    if length == 0:
        return None
    values = np.array([getattr(run, quantity)[:length] for run in curves])
    return _over_seeds(np.array(getattr(curves[0], rounds)[:length], dtype=np.float64), values)


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
    return MetricCurve(x, values.min(axis=0), values.mean(axis=0), values.max(axis=0))


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


def _front(axes: "Axes", comparison: Comparison, styles: Mapping[str, SeriesStyle]) -> None:
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
            label=name,
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


def _times(axes: "Axes", comparison: Comparison, styles: Mapping[str, SeriesStyle]) -> None:
    arms = [arm for arm in comparison.arms if FRONT_TIME in arm.values][::-1]
    for row, arm in enumerate(arms):
        axes.errorbar(
            arm.values[FRONT_TIME].mean,
            row,
            xerr=_spread([arm], FRONT_TIME),
            color=styles[arm.name].colour,
            marker=styles[arm.name].marker,
            capsize=3,
        )
    axes.set_yticks(range(len(arms)), [arm.name for arm in arms])
    axes.set(xlabel="total time, s", xlim=(0.0, None), ylim=(-0.5, len(arms) - 0.5))


def _queue_against_v(
    axes: "Axes", comparison: Comparison, styles: Mapping[str, SeriesStyle]
) -> None:
    for index, (name, arms) in enumerate(_curves_of(comparison).items()):
        style = series_style(index)
        known = [arm for arm in arms if QUEUE in arm.values]
        if not known:
            continue
        means = [arm.values[QUEUE].mean for arm in known]
        if known[0].front_value is None:
            axes.axhline(means[0], color=style.colour, linestyle=style.dash, label=name)
            continue
        axes.errorbar(
            [arm.front_value or 0.0 for arm in known],
            means,
            yerr=_spread(known, QUEUE),
            color=style.colour,
            marker=style.marker,
            linestyle=style.dash,
            capsize=3,
            label=name,
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
    _draw_curves(axes, curves, styles, xlabel, "accuracy, mean over devices")


def _draw_curves(
    axes: "Axes",
    curves: Mapping[str, MetricCurve | None],
    styles: Mapping[str, SeriesStyle],
    xlabel: str,
    ylabel: str,
) -> None:
    for name, curve in curves.items():
        if curve is not None:
            band(
                axes,
                curve.x,
                curve.lowest,
                curve.mean,
                curve.highest,
                label=name,
                style=styles[name],
            )
    axes.set(xlabel=xlabel, ylabel=ylabel)
    _legend(axes)


def _legend(axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[:MAX_SERIES], labels[:MAX_SERIES])


def _spread(arms: Sequence[ArmSummary], key: str) -> Floats:
    """Return the lengths of intervals below and above their means, shape (2, K)."""
    estimates = [arm.values[key] for arm in arms]
    below = [0.0 if value.low is None else value.mean - value.low for value in estimates]
    above = [0.0 if value.high is None else value.high - value.mean for value in estimates]
    return np.array([below, above])
