"""Figures of the global model: accuracy over rounds and time, loss, spread over devices."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.report.figure_style import BAND, COLOURS, series_style
from fairbed.coordinator.report.figures.data import RunFigures
from fairbed.coordinator.report.figures.panels import (
    Canvas,
    Shown,
    draw_line,
    draw_series,
    from_zero,
    legend_below,
    panels,
    whole_rounds,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_accuracy(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw the mean accuracy or RMSE over rounds; of one run with two classes also the AUROC."""
    axes = _draw_scores(runs, [one.run.metrics["round"] for one in runs], figure)
    whole_rounds(axes)


def draw_accuracy_time(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw the same over the time that the rounds took."""
    per_unit_s, unit = time_unit(max(float(one.run.metrics["at_s"][-1]) for one in runs))
    axes = _draw_scores(runs, [one.run.metrics["at_s"] / per_unit_s for one in runs], figure)
    axes.set_xlabel(f"time in rounds, {unit}")
    axes.set_xlim(left=0.0)


def _draw_scores(runs: Sequence[Shown], at: Sequence[Floats], figure: Canvas) -> "Axes":
    """Draw the scores of the evaluations of each run over where they are, shape (T,)."""
    axes = figure.subplots()
    for one, x in zip(runs, at, strict=True):
        draw_line(axes, x, one.run.metrics["score_mean"], **one.line)
    axes.set_ylabel(f"{_score(runs)}, mean over devices")
    auroc = runs[0].run.metrics["auroc_mean"]
    has_auroc = len(runs) == 1 and bool(np.isfinite(auroc).any())
    if has_auroc:
        axes.get_lines()[0].set_label(runs[0].run.score)
        draw_series(axes, 1, at[0], auroc, "AUROC")
        axes.set_ylabel("mean over devices")
    if has_auroc or len(runs) > 1:
        legend_below(figure, axes)
    return axes


def _score(runs: Sequence[Shown]) -> str:
    """Return what the evaluations of the runs measure."""
    return " or ".join(sorted({one.run.score for one in runs}))


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the seconds and the name of the unit in which a time is readable."""
    for limit_s, per_unit_s, unit in ((600, 1, "s"), (10_800, 60, "min"), (259_200, 3_600, "h")):
        if longest_s < limit_s:
            return float(per_unit_s), unit
    return 86_400.0, "days"


def draw_loss(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw the loss over rounds; of one run also its spread and the loss of local training."""
    axes = figure.subplots()
    for one in runs:
        rounds, mean, std = (one.run.metrics[key] for key in ("round", "loss_mean", "loss_std"))
        if len(runs) > 1:
            draw_line(axes, rounds, mean, **one.line)
            continue
        low, high = np.maximum(mean - std, 0.0), mean + std
        axes.fill_between(
            rounds,
            low,
            high,
            color=COLOURS[0],
            alpha=BAND,
            linewidth=0.0,
            label="held-out: standard deviation",
        )
        draw_series(axes, 0, rounds, mean, "held-out: mean over devices")
        trained = one.run.exchanges["loss_train"]
        if np.isfinite(trained).any():
            draw_series(axes, 1, *_means_by_round(one.run, trained), "training: last local epoch")
    axes.set_ylabel(f"loss, {' or '.join(sorted({one.run.loss_unit for one in runs}))}")
    from_zero(axes)
    whole_rounds(axes)
    legend_below(figure, axes)


def _means_by_round(run: RunFigures, values: Floats) -> tuple[Floats, Floats]:
    """Return rounds, and the mean over each of a number of its exchanges, shape (M,)."""
    known = np.isfinite(values)
    rounds, at = np.unique(run.exchanges["round"][known], return_inverse=True)
    return rounds, np.bincount(at, weights=values[known]) / np.bincount(at)


def draw_spread(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw how the accuracy differs between devices, over rounds and after the last one."""
    has_curves = any(one.run.metrics["round"].size > 1 for one in runs)
    left, right = panels(figure, has_right=has_curves)
    if right is not None:
        _draw_tenths(runs, left)
    last = left if right is None else right
    for one in runs:
        _draw_distribution(last, one.run.scores, one.line)
    own = runs[0].run.personal_scores
    has_own = len(runs) == 1 and own.size > 1
    if has_own:
        style = series_style(3)
        line = {"color": style.colour, "linestyle": style.dash, "label": "personal models"}
        _draw_distribution(last, own, line)
    last.set(title="Distribution after the last evaluation", ylabel="devices at or below, %")
    last.set(xlabel=f"{_score(runs)} of a device", ylim=(0.0, 102.0))
    if len(runs) > 1:
        legend_below(figure, last)
    elif has_curves or has_own:
        last.get_lines()[0].set_label("global model" if has_own else "_")
        legend_below(figure, left, last)


LONGEST_TITLE = 40
"""Characters of the name of a metric above its panel."""

MAX_CLIENT_METRICS = 8
"""Most metrics of a client that are drawn, each in a panel of its own."""


def draw_client_metrics(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw each metric of the client over rounds: its mean, and the range over devices."""
    found = list(runs[0].run.client_metrics.items())[:MAX_CLIENT_METRICS]
    axes = figure.subplots(-(-len(found) // 2), min(len(found), 2), squeeze=False).flat
    for one, ((phase, name), points) in zip(axes, found, strict=False):
        rounds, mean, low, high = points
        one.fill_between(rounds, low, high, color=COLOURS[0], alpha=BAND, linewidth=0.0)
        is_of_device = phase in ("fit", "evaluate")
        draw_series(one, 0, rounds, mean, "mean by examples" if is_of_device else "of the app")
        shown = name if len(name) <= LONGEST_TITLE else f"{name[: LONGEST_TITLE - 1]}…"
        one.set_title(f"{shown} ({phase})".replace("$", r"\$"))
        whole_rounds(one)
    for one in list(axes)[len(found) :]:
        one.set_visible(False)


def no_client_metrics(run: RunFigures) -> str | None:
    """Return why there is no figure of the metrics of a client."""
    return None if run.client_metrics else "the run has no client, or it measured nothing"


def client_metrics_height_in(run: RunFigures) -> float:
    """Return the height of the figure of the metrics of a client, inches."""
    return 0.6 + 1.9 * -(-min(len(run.client_metrics), MAX_CLIENT_METRICS) // 2)


def _draw_distribution(axes: "Axes", scores: Floats, line: dict[str, Any]) -> None:
    """Draw the share of devices at or below each score, of shape (N,)."""
    share = 100.0 * np.arange(scores.size + 1) / scores.size
    ordered = np.sort(scores)
    axes.step(np.concatenate([ordered[:1], ordered]), share, where="post", **line)


def _draw_tenths(runs: Sequence[Shown], axes: "Axes") -> None:
    """Draw the accuracy of the worst tenth of the devices; of one run also mean and best tenth."""
    for one in runs:
        of = one.run.metrics
        if len(runs) > 1:
            draw_line(axes, of["round"], of["score_worst10"], **one.line)
            continue
        low, high = of["score_worst10"], of["score_best10"]
        axes.fill_between(of["round"], low, high, color=COLOURS[0], alpha=BAND, linewidth=0.0)
        draw_series(axes, 2, of["round"], high, "best 10 %")
        draw_series(axes, 0, of["round"], of["score_mean"], "mean")
        draw_series(axes, 1, of["round"], low, "worst 10 %")
    which = "Worst and best" if len(runs) == 1 else "Worst"
    axes.set(title=f"{which} tenth of the devices", ylabel=_score(runs))
    whole_rounds(axes)


def no_accuracy(run: RunFigures) -> str | None:
    """Return why a run has no curve of its accuracy."""
    return _no_curve(run, "score_mean", run.score)


def no_loss(run: RunFigures) -> str | None:
    """Return why a run has no curve of its loss."""
    return _no_curve(run, "loss_mean", "loss")


def _no_curve(run: RunFigures, column: str, name: str) -> str | None:
    if not run.metrics["round"].size:
        return "the model was not evaluated"
    known = int(np.isfinite(run.metrics[column]).sum())
    if known > 1:
        return None
    return f"a curve needs two evaluations of the {name}, got {known}"


def no_spread(run: RunFigures) -> str | None:
    """Return why the spread of the accuracy over devices is unknown."""
    if not run.metrics["round"].size:
        return "the model was not evaluated"
    n = run.scores.size
    return None if n > 1 else f"a spread needs two devices whose {run.score} is known, got {n}"
