"""The figures of a run: the data that each needs, and its drawing.

A drawing gets the runs and an empty matplotlib figure. It uses the colours of `figure_style`, which
an inline SVG replaces by variables of the page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.records.rows import ENERGY_PHASES
from fairbed.coordinator.report.figure_style import (
    BAND,
    COLOURS,
    GREY,
    INK,
    SeriesStyle,
    series_style,
)
from fairbed.coordinator.report.figures.data import Columns, RunFigures
from fairbed.coordinator.report.quantities import percent
from fairbed.coordinator.store.reader import TIMED_PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Canvas: TypeAlias = "Figure | SubFigure"

MAX_ROWS = 24
"""Devices with a labelled row each; larger fleets are shown by profile or as a curve."""
HIGHEST = 12
"""Devices that stand for a larger fleet of one profile: those with the highest values."""
MAX_BINS = 100
"""Spans of rounds in a stacked figure; longer runs show means over several rounds."""
MAX_MARKED = 12
"""Points of a line with markers."""
MAX_DOTS = 1_500
"""Points of a scatter plot; more are counted in cells."""
HEAT_ROWS, HEAT_COLUMNS = 250, 500
"""Largest heat map, cells; larger ones show the share of a group of devices and rounds."""
LEVELS = 5
"""Shades of such a share."""
WIDTH_IN = 7.2
LEGEND_WIDTH = 130
"""Characters of a line of a legend, 8 for each symbol included."""
TINY = 0.005
"""Parts below this share of the whole belong to `other`."""

CODEC = "decode and encode"

PART_COLOURS = {
    "download": COLOURS[0],
    "load": COLOURS[4],
    "evaluate": COLOURS[3],
    "train": COLOURS[2],
    "personal": COLOURS[6],
    CODEC: COLOURS[1],
    "upload": COLOURS[5],
    "other": GREY,
}
"""Colour of each part of an exchange, in the order of the drawing."""
PROBLEMS = ("late", "failed", "cancelled", "host contention", "untimed")
"""Exchanges without a result in time, and those whose times are not valid."""


@dataclass(frozen=True, slots=True)
class FigureKind:
    """One figure: what it shows, and how it is drawn."""

    title: str
    caption: str
    """One sentence for readers of a page or a paper."""
    compares: bool
    """Several runs share one drawing; otherwise each run has its own, one below the other."""
    missing: Callable[[RunFigures], str | None]
    """Returns why a run has no such figure; None if it has one."""
    draw: "Callable[[Sequence[Shown], Canvas], None]"
    height_in: Callable[[RunFigures], float]


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
    for parts in (("name",), ("name", "policy"), ("name", "policy", "seed"), ("run_id",)):
        labels = [", ".join(str(getattr(run, part)) for part in parts) for run in runs]
        if len(set(labels)) == len(labels):
            break
    return [
        Shown(run, printable(label), series_style(index))
        for index, (run, label) in enumerate(zip(runs, labels, strict=True))
    ]


# Lines over rounds or time.


def _accuracy(runs: Sequence[Shown], figure: Canvas) -> None:
    axes = figure.subplots()
    for run, line in ((one.run, one.line) for one in runs):
        _line(axes, run.metrics["round"], run.metrics["accuracy_mean"], **line)
    axes.set(xlabel="round", ylabel="accuracy, mean over devices")
    _over_rounds(axes)
    if len(runs) > 1:
        _legend(figure, axes)


def _accuracy_time(runs: Sequence[Shown], figure: Canvas) -> None:
    axes = figure.subplots()
    per_unit_s, unit = time_unit(max(float(one.run.metrics["at_s"][-1]) for one in runs))
    for run, line in ((one.run, one.line) for one in runs):
        _line(axes, run.metrics["at_s"] / per_unit_s, run.metrics["accuracy_mean"], **line)
    axes.set(xlabel=f"time in rounds, {unit}", ylabel="accuracy, mean over devices")
    axes.set_xlim(left=0.0)
    if len(runs) > 1:
        _legend(figure, axes)


def _loss(runs: Sequence[Shown], figure: Canvas) -> None:
    axes = figure.subplots()
    for run, line in ((one.run, one.line) for one in runs):
        rounds, mean, std = (run.metrics[key] for key in ("round", "loss_mean", "loss_std"))
        if len(runs) == 1:
            axes.fill_between(
                rounds,
                np.maximum(mean - std, 0.0),
                mean + std,
                color=line["color"],
                alpha=BAND,
                linewidth=0.0,
                label="held-out: standard deviation",
            )
            line["label"] = "held-out: mean over devices"
        _line(axes, rounds, mean, **line)
        if len(runs) == 1 and np.isfinite(run.exchanges["loss_train"]).any():
            at, trained = _means_by_round(run, run.exchanges["loss_train"])
            style = series_style(1)
            label = "training: last local epoch"
            _line(axes, at, trained, color=style.colour, linestyle=style.dash, label=label)
    axes.set(xlabel="round", ylabel="loss, nats")
    axes.set_ylim(bottom=0.0)
    _over_rounds(axes)
    _legend(figure, axes)


def _queues(runs: Sequence[Shown], figure: Canvas) -> None:
    left, right = figure.subplots(1, 2)
    for run, line in ((one.run, one.line) for one in runs):
        _line(left, run.rounds["round"], run.rounds["queue_total"], **line)
        if len(runs) > 1:
            _line(right, run.rounds["round"], run.rounds["queue_max"], **line)
    left.set(title="Sum over devices", xlabel="round", ylabel="virtual queue Z")
    right.set(title="Largest", xlabel="round", ylabel="virtual queue Z")
    if len(runs) == 1:
        run = runs[0].run
        right.set_title("Largest, and of single devices")
        _line(right, run.rounds["round"], run.rounds["queue_max"], color=GREY, label="largest")
        for position, (device, (rounds, queue)) in enumerate(run.queues.items()):
            style = series_style(position)
            _line(right, rounds, queue, color=style.colour, linestyle=style.dash, label=device)
        _changes(run, (left, right), ("V", "beta", "per_round"))
    for axes in (left, right):
        axes.set_ylim(bottom=0.0)
        _over_rounds(axes)
    _legend(figure, right)


def _fairness(runs: Sequence[Shown], figure: Canvas) -> None:
    left, right = figure.subplots(1, 2)
    for run, line in ((one.run, one.line) for one in runs):
        rounds = run.metrics["round"]
        worst, mean, best = (
            run.metrics[f"accuracy_{key}"] for key in ("worst10", "mean", "best10")
        )
        if len(runs) == 1:
            left.fill_between(rounds, worst, best, color=line["color"], alpha=BAND, linewidth=0.0)
            for values, position, label in ((best, 2, "best 10 %"), (mean, 0, "mean")):
                style = series_style(position)
                _line(left, rounds, values, color=style.colour, linestyle=style.dash, label=label)
            line = {**line, "color": COLOURS[1], "linestyle": ":", "label": "worst 10 %"}
        _line(left, rounds, worst, **line)
        accuracies = np.sort(run.accuracies)
        share = 100.0 * np.arange(1, accuracies.size + 1) / accuracies.size
        if len(runs) == 1:
            line |= {"color": COLOURS[0], "linestyle": "-"}
        right.step(accuracies, share, where="post", **{**line, "label": "_"})
    is_single = len(runs) == 1
    left.set(
        title="Worst and best tenth of the devices" if is_single else "Worst tenth of the devices",
        xlabel="round",
        ylabel="accuracy",
    )
    right.set(
        title="Distribution after the last evaluation",
        xlabel="accuracy of a device",
        ylabel="devices at or below, %",
    )
    right.set_ylim(0.0, 102.0)
    _over_rounds(left)
    _legend(figure, left)


# Selection.


def _rates(runs: Sequence[Shown], figure: Canvas) -> None:
    left, right = figure.subplots(1, 2)
    for run, line in ((one.run, one.line) for one in runs):
        selected, aggregated = final_rates(run)
        if len(runs) == 1 and len(run.devices) <= MAX_ROWS:
            _rate_rows(left, run, selected, aggregated)
        else:
            share = 100.0 * np.arange(1, selected.size + 1) / selected.size
            label = "_" if len(runs) == 1 else line["label"]
            left.step(share, np.sort(selected), where="mid", **{**line, "label": label})
            left.set(xlabel="devices, %, lowest first", ylabel="selections / rounds")
            left.set_xlim(0.0, 100.0)
        rounds, lowest, median = rates_over_rounds(run)
        if len(runs) > 1:
            _line(right, rounds, lowest, **line)
            continue
        for values, position, label in ((median, 0, "median device"), (lowest, 1, "lowest")):
            style = series_style(position)
            if np.isfinite(values).any():
                _line(right, rounds, values, color=style.colour, linestyle=style.dash, label=label)
    left.set_title("Rate of each device")
    is_single = len(runs) == 1
    right.set_title("Over the rounds" if is_single else "Lowest rate over the rounds")
    right.set(xlabel="round", ylabel="selections / rounds")
    _over_rounds(right)
    is_rows = is_single and len(runs[0].run.devices) <= MAX_ROWS
    betas = {one.run.beta for one in runs if one.run.beta is not None}
    if len(betas) == 1:
        beta = betas.pop()
        bound = {"color": GREY, "linestyle": ":", "linewidth": 1.2, "zorder": 1.5}
        (left.axvline if is_rows else left.axhline)(beta, **bound)
        right.axhline(beta, label=f"guaranteed: {beta:.3g}", **bound)
    for axes in (left, right):
        axes.set_ylim(bottom=-0.6 if axes is left and is_rows else 0.0)
    if is_single:
        _changes(runs[0].run, (right,), ("beta", "per_round"))
    _legend(figure, left, right)


def _rate_rows(axes: "Axes", run: RunFigures, selected: Floats, aggregated: Floats) -> None:
    order = np.argsort(selected, kind="stable")[::-1]
    rows = np.arange(order.size)
    axes.plot(selected[order], rows, "o", color=COLOURS[0], label="selected", clip_on=False)
    axes.plot(
        aggregated[order],
        rows,
        "D",
        color=COLOURS[1],
        markerfacecolor="none",
        label="aggregated",
        clip_on=False,
    )
    axes.set_yticks(rows, [run.devices[position] for position in order])
    axes.set(xlabel="share of its rounds", ylim=(-0.6, order.size - 0.4))
    axes.set_xlim(left=0.0)


def final_rates(run: RunFigures) -> tuple[Floats, Floats]:
    """Return selections and aggregated updates / rounds of each device of the fleet.

    Shape (N,), or that of the whole fleet if the run stores the selected devices only.
    """
    choices, n = run.choices, len(run.devices)
    of = np.maximum(run.rounds["round"].size - choices.first, 1)
    selected = choices.before + np.bincount(choices.device[choices.is_selected], minlength=n)
    merged = np.bincount(choices.device[choices.is_aggregated], minlength=n)
    never = np.zeros(max(run.n_all - n, 0))
    return np.concatenate([selected / of, never]), np.concatenate([merged / of, never])


def rates_over_rounds(run: RunFigures) -> tuple[Floats, Floats, Floats]:
    """Return rounds, and the lowest and the median selection rate of the devices up to each.

    At most 200 rounds, evenly spaced; NaN where unknown.
    """
    choices, rounds = run.choices, run.rounds["round"]
    if run.min_rates is not None:
        return rounds, run.min_rates, np.full(rounds.size, np.nan)
    first = min(choices.since, rounds.size - 1)
    points = np.unique(np.linspace(first, rounds.size - 1, 200).round().astype(np.int64))
    counts = choices.before.astype(np.float64)
    at, device = (column[choices.is_selected] for column in (choices.at, choices.device))
    low, middle = np.full(points.size, np.nan), np.full(points.size, np.nan)
    start = 0
    for position, point in enumerate(points):
        end = int(np.searchsorted(at, point, side="right"))
        counts += np.bincount(device[start:end], minlength=counts.size)
        start = end
        has_joined = choices.first <= point
        if has_joined.any():
            rates = counts[has_joined] / (point + 1 - choices.first[has_joined])
            low[position], middle[position] = rates.min(), np.median(rates)
    return rounds[points], low, middle


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Selections of groups of devices in spans of rounds, each of shape (rows, columns)."""

    selected: Floats
    """Share of the devices' rounds in which they were selected; NaN before they joined."""
    away: Floats
    """Share in which they were not available."""
    devices: int
    """Devices of a row."""
    rounds: int
    """Rounds of a column."""


def heat_map(run: RunFigures) -> HeatMap:
    """Return the selections of a run, in the order of its devices."""
    choices, n = run.choices, len(run.devices)
    t = run.rounds["round"].size - choices.since
    tall, wide = -(-n // HEAT_ROWS), -(-t // HEAT_COLUMNS)
    rows, columns = -(-n // tall), -(-t // wide)
    starts = choices.since + wide * np.arange(columns)
    ends = np.minimum(starts + wide, choices.since + t)
    joined = np.maximum(ends - np.maximum(starts, choices.first[:, None]), 0)
    of = np.add.reduceat(joined, np.arange(0, n, tall), axis=0).astype(np.float64)
    cell = choices.device // tall * columns + (choices.at - choices.since) // wide

    def share(counted: Bools) -> Floats:
        counts = np.bincount(cell[counted], minlength=rows * columns).reshape(rows, columns)
        shares: Floats = np.full(counts.shape, np.nan)
        np.divide(counts, of, out=shares, where=of > 0)
        return shares

    return HeatMap(share(choices.is_selected), share(~choices.is_available), tall, wide)


_Rgba: TypeAlias = tuple[int, int, int, int]
_SELECTED: _Rgba = (20, 120, 190, 255)
_AWAY: _Rgba = (220, 150, 10, 150)
_FAINT: _Rgba = (128, 128, 128, 40)
"""Colours of the heat map, with opacities: readable on white and on black paper. They are colours
of no series, since a page does not replace those of an image."""


def _opacity(level: Any) -> Any:
    """Return the opacity of levels of a share, from 1 to `LEVELS`."""
    return 55 + 200 * level / LEVELS


def _rgba(colour: _Rgba, level: int = LEVELS) -> tuple[float, float, float, float]:
    red, green, blue, opacity = colour
    if colour == _SELECTED:
        opacity = _opacity(level)
    return red / 255, green / 255, blue / 255, opacity / 255


def _selection(runs: Sequence[Shown], figure: Canvas) -> None:
    from matplotlib.patches import Patch

    run = runs[0].run
    axes = figure.subplots()
    found = heat_map(run)
    is_binned = found.devices * found.rounds > 1
    highest = max(float(np.nanmax(found.selected)), 1e-9)
    level = np.ceil(LEVELS * found.selected / highest)
    image = np.zeros((*found.selected.shape, 4), dtype=np.uint8)
    image[np.isfinite(found.selected)] = _FAINT
    image[found.away >= 0.5] = _AWAY
    is_selected = found.selected > 0.0
    image[is_selected] = _SELECTED
    image[is_selected, 3] = _opacity(level[is_selected]).round()
    rounds = run.rounds["round"]
    left, n = float(rounds[run.choices.since]) - 0.5, len(run.devices)
    right = left + found.rounds * image.shape[1]
    axes.imshow(
        image,
        aspect="auto",
        interpolation="none",
        extent=(left, right, found.devices * image.shape[0] - 0.5, -0.5),
    )
    axes.set(xlabel="round", xlim=(left, float(rounds[-1]) + 0.5), ylim=(n - 0.5, -0.5))
    axes.grid(visible=False)
    _over_rounds(axes, margin=False)
    _device_axis(axes, run)
    patches = [(_rgba(_SELECTED), "selected")]
    if is_binned:
        patches = [
            (_rgba(_SELECTED, 1), f"selected in at most {percent(highest / LEVELS)} of a cell"),
            (_rgba(_SELECTED), f"in {percent(highest)}"),
        ]
        spans = [
            f"{count} {unit}{'' if count == 1 else 's'}"
            for count, unit in ((found.devices, "device"), (found.rounds, "round"))
        ]
        axes.set_title(f"Each cell: {spans[0]}, {spans[1]}", fontsize=8, loc="right")
    patches.append((_rgba(_FAINT), "available, not selected"))
    if (found.away >= 0.5).any():
        patches.append((_rgba(_AWAY), "away"))
    figure.legend(
        [Patch(facecolor=colour, linewidth=0.0) for colour, _ in patches],
        [label for _, label in patches],
        loc="outside lower center",
        ncols=len(patches),
    )


def _device_axis(axes: "Axes", run: RunFigures) -> None:
    """Label the rows of a heat map: with devices, or with the groups of one profile."""
    n = len(run.devices)
    if n <= MAX_ROWS:
        axes.set_yticks(range(n), run.devices)
        return
    starts = [at for at in range(n) if at == 0 or run.profiles[at] != run.profiles[at - 1]]
    if not 1 < len(starts) <= MAX_ROWS // 2:
        axes.set_ylabel("device, in the order of the fleet")
        return
    ends = [*starts[1:], n]
    middles = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
    axes.set_yticks(middles, [f"{run.profiles[start]}" for start in starts])
    axes.tick_params(axis="y", length=0)
    for start in starts[1:]:
        axes.axhline(start - 0.5, color=GREY, linewidth=0.6)


# Times and energy of exchanges.


def parts_of(run: RunFigures, names: Sequence[str], suffix: str, total: Floats) -> Columns:
    """Return the parts of each exchange: phases above `TINY` of the whole, and the rest.

    Args:
        run: The run.
        names: Phases that are columns of the exchanges.
        suffix: Unit of the columns: `_s` or `_j`.
        total: Whole of each exchange, shape (M,); NaN is unknown.
    """
    known = np.isfinite(total)
    parts = dict[str, Floats]()
    for name in names:
        key = CODEC if name in ("decode", "encode") else name
        values = np.where(known, np.nan_to_num(run.exchanges[name + suffix]), 0.0)
        parts[key] = parts.get(key, 0.0) + values
    whole = float(total[known].sum())
    shown = {key: parts[key] for key in PART_COLOURS if key in parts}
    shown = {key: values for key, values in shown.items() if values.sum() > TINY * whole}
    rest = np.maximum(np.where(known, total, 0.0) - sum(shown.values(), np.zeros(total.size)), 0.0)
    return {**shown, **({"other": rest} if rest.sum() > TINY * whole else {})}


def _phases(runs: Sequence[Shown], figure: Canvas) -> None:
    run = runs[0].run
    total = _valid_tau(run)
    parts = parts_of(run, TIMED_PHASES, "_s", total)
    left, right = figure.subplots(1, 2)
    _stack_over_rounds(left, run, parts, total)
    bins, rounds_s = _binned(run.rounds["round"], run.rounds["duration_s"], run)
    _line(left, bins, rounds_s, color=INK, linestyle="--", label="whole round")
    left.set(title="Mean exchange of a round", xlabel="round", ylabel="time, s")
    left.set_ylim(bottom=0.0)
    _stack_by_device(right, run, parts, total)
    right.set(xlabel="mean time of an exchange, s")
    _legend(figure, left)


def _energy(runs: Sequence[Shown], figure: Canvas) -> None:
    run = runs[0].run
    total = _known_energy(run)
    parts = parts_of(run, ENERGY_PHASES, "_j", total)
    left, right = figure.subplots(1, 2)
    _stack_over_rounds(left, run, parts, total)
    left.set(title="Mean exchange of a round", xlabel="round", ylabel="energy, J")
    left.set_ylim(bottom=0.0)
    _stack_by_device(right, run, parts, total)
    right.set(xlabel="mean energy of an exchange, J")
    _legend(figure, left)


def _stack_over_rounds(axes: "Axes", run: RunFigures, parts: Columns, total: Floats) -> None:
    known = np.isfinite(total)
    number = run.exchanges["round"][known]
    rounds = run.rounds["round"]
    per_bin = _per_bin(run)
    bins = -(-rounds.size // per_bin)
    at = np.searchsorted(rounds, number) // per_bin
    of = np.maximum(np.bincount(at, minlength=bins), 1)
    edges = rounds[0] - 0.5 + per_bin * np.arange(bins + 1)
    edges[-1] = rounds[-1] + 0.5
    below = np.zeros(bins)
    for name, values in parts.items():
        above = below + np.bincount(at, weights=values[known], minlength=bins) / of
        axes.stairs(above, edges, baseline=below, fill=True, color=PART_COLOURS[name], label=name)
        below = above
    axes.set_xlim(edges[0], edges[-1])
    _over_rounds(axes, margin=False)


def _stack_by_device(axes: "Axes", run: RunFigures, parts: Columns, total: Floats) -> None:
    known = np.isfinite(total) & (run.exchange_device >= 0)
    names, group, title = _groups(run, run.exchange_device[known], total[known])
    of = np.bincount(group[group >= 0], minlength=len(names))
    rows = np.arange(len(names))
    left = np.zeros(len(names))
    for name, values in parts.items():
        sums = np.bincount(
            group[group >= 0], weights=values[known][group >= 0], minlength=len(names)
        )
        width = sums / np.maximum(of, 1)
        axes.barh(rows, width, left=left, height=0.8, color=PART_COLOURS[name], linewidth=0.0)
        left = left + width
    axes.set_yticks(rows, names)
    axes.set(title=title, ylim=(-0.6, len(names) - 0.4))
    axes.grid(visible=False, axis="y")


def _groups(run: RunFigures, device: Ints, values: Floats) -> tuple[list[str], Ints, str]:
    """Return the rows of a figure by device, the highest at the top.

    Args:
        run: The run.
        device: Device of each exchange, shape (M,).
        values: Number by whose mean the rows are sorted, shape (M,).

    Returns:
        Names of the rows from the bottom, the row of each exchange (-1: of none), and a title.
    """
    n = len(run.devices)
    profiles = sorted(set(run.profiles) - {""})
    if n > MAX_ROWS and 1 < len(profiles) <= MAX_ROWS:
        code = np.array([profiles.index(p) if p else -1 for p in run.profiles], dtype=np.int64)
        names, of_row, title = profiles, code[device], "By profile"
    else:
        names, of_row, title = list(run.devices), device, "By device"
    is_of_one = of_row >= 0
    counts = np.bincount(of_row[is_of_one], minlength=len(names))
    sums = np.bincount(of_row[is_of_one], weights=values[is_of_one], minlength=len(names))
    means = np.divide(sums, counts, out=np.full(len(names), np.nan), where=counts > 0)
    order = np.argsort(means, kind="stable")[: int((counts > 0).sum())]
    if order.size > MAX_ROWS:
        title = f"The {HIGHEST} highest of {order.size:,} devices"
        order = order[-HIGHEST:]
    place: Ints = np.full(len(names) + 1, -1, dtype=np.int64)
    place[order] = np.arange(order.size)
    return [names[position] for position in order], place[of_row], title


def _devices(runs: Sequence[Shown], figure: Canvas) -> None:
    run = runs[0].run
    axes = figure.subplots()
    total = _valid_tau(run)
    known = np.isfinite(total) & (run.exchange_device >= 0)
    found = [
        (float(np.median(times)), float(np.percentile(times, 95.0)), position)
        for position in np.unique(run.exchange_device[known])
        for times in [total[known & (run.exchange_device == position)]]
    ]
    found.sort(reverse=True)
    median, p95 = (np.array([row[part] for row in found]) for part in (0, 1))
    if len(found) <= MAX_ROWS:
        rows = np.arange(len(found))[::-1]
        axes.hlines(rows, median, p95, color=COLOURS[0], linewidth=2.0, alpha=0.45)
        axes.plot(median, rows, "o", color=COLOURS[0], label="median")
        axes.plot(p95, rows, "|", color=COLOURS[0], markersize=8.0, label="95th percentile")
        axes.set_yticks(rows, [run.devices[position] for _, _, position in found])
        axes.set(xlabel="exchange time, s", ylim=(-0.6, len(found) - 0.4))
        axes.set_xlim(left=0.0)
    else:
        share = 100.0 * np.arange(1, len(found) + 1) / len(found)
        axes.plot(
            share, np.sort(p95)[::-1], color=COLOURS[1], linestyle="--", label="95th percentile"
        )
        axes.plot(share, median, color=COLOURS[0], label="median")
        axes.set(xlabel="devices, %, slowest first", ylabel="exchange time, s", xlim=(0.0, 100.0))
        axes.set_ylim(bottom=0.0)
    _legend(figure, axes)


def _estimator(runs: Sequence[Shown], figure: Canvas) -> None:
    run = runs[0].run
    left, right = figure.subplots(1, 2)
    known = _predicted(run)
    tau, hat = run.exchanges["tau_s"][known], run.exchanges["tau_hat_s"][known]
    low, high = min(tau.min(), hat.min()), max(tau.max(), hat.max())
    is_log = low > 0.0 and high > 30.0 * low
    margin = (high / low) ** 0.04 if is_log else max(0.04 * (high - low), 1e-3 * high)
    ends = (low / margin, high * margin) if is_log else (max(low - margin, 0.0), high + margin)
    left.plot(ends, ends, color=GREY, linestyle=":", linewidth=1.2, label="exact")
    if tau.size <= MAX_DOTS:
        left.plot(hat, tau, "o", color=COLOURS[0], markersize=3.5, alpha=0.6, markeredgewidth=0.0)
    else:
        _density(left, hat, tau, ends, is_log=is_log)
    if is_log:
        left.set(xscale="log", yscale="log")
    left.set(xlim=ends, ylim=ends, xlabel="predicted exchange time, s")
    left.set(ylabel="measured exchange time, s", title=f"{tau.size:,} exchanges")
    error = 100.0 * np.abs(hat - tau) / tau
    number = run.exchanges["round"][known]
    at = np.searchsorted(run.rounds["round"], number) // _per_bin(run)
    bins = np.unique(at)
    groups = [error[at == one] for one in bins]
    centres = np.array([number[at == one].mean() for one in bins])
    for quantile, position, label in ((90.0, 1, "90th percentile"), (50.0, 0, "median")):
        style = series_style(position)
        values = np.array([np.percentile(group, quantile) for group in groups])
        _line(right, centres, values, color=style.colour, linestyle=style.dash, label=label)
    right.set(title="Error over the rounds", xlabel="round", ylabel="prediction error, %")
    right.set_ylim(bottom=0.0)
    _over_rounds(right)
    _legend(figure, left, right)


def _density(
    axes: "Axes", x: Floats, y: Floats, ends: tuple[float, float], *, is_log: bool
) -> None:
    """Draw how many points are in each cell of a square."""
    from matplotlib.colors import LinearSegmentedColormap

    edges = np.geomspace(*ends, 91) if is_log else np.linspace(*ends, 91)
    counts, _, _ = np.histogram2d(x, y, bins=(edges, edges))
    shades = LinearSegmentedColormap.from_list("counts", [_rgba(_SELECTED, 1), _rgba(_SELECTED)])
    cells = np.ma.masked_equal(counts.T, 0.0)
    axes.pcolormesh(edges, edges, np.log1p(cells), cmap=shades, rasterized=True)


def _contention(runs: Sequence[Shown], figure: Canvas) -> None:
    from matplotlib.ticker import MaxNLocator

    run = runs[0].run
    counts = problems_of(run)
    has_lag = _has_lag(run)
    panels = ([counts] if counts else []) + ([None] if has_lag else [])
    drawn = np.atleast_1d(figure.subplots(1, len(panels)))
    if counts:
        axes = drawn[0]
        at, per_bin = run.rounds["round"], _per_bin(run)
        bins = -(-at.size // per_bin)
        edges = at[0] - 0.5 + per_bin * np.arange(bins + 1)
        edges[-1] = at[-1] + 0.5
        below = np.zeros(bins)
        starts = np.arange(0, at.size, per_bin)
        for name, values in counts.items():
            above = below + np.add.reduceat(values, starts)
            colour = COLOURS[PROBLEMS.index(name)]
            axes.stairs(above, edges, baseline=below, fill=True, color=colour, label=name)
            below = above
        per = "round" if per_bin == 1 else f"{per_bin} rounds"
        axes.set(title="Without a result in time, or untimed", xlabel="round")
        axes.set_ylabel(f"exchanges per {per}")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_ylim(bottom=0.0)
        axes.set_xlim(edges[0], edges[-1])
        _over_rounds(axes, margin=False)
        _legend(figure, axes)
    if has_lag:
        axes = drawn[-1]
        _line(axes, run.rounds["round"], 1e3 * run.rounds["lag_p99_s"], color=COLOURS[0])
        axes.set(title="Lag of the event loop", xlabel="round", ylabel="ms, 99th percentile")
        axes.set_ylim(bottom=0.0)
        _over_rounds(axes)


def problems_of(run: RunFigures) -> dict[str, Floats]:
    """Return the exchanges of each round by problem, each of shape (T,); only those that occur."""
    outcome = np.array(run.outcome, dtype=object)
    is_done = outcome == "done"
    is_untimed = is_done & (run.exchanges["is_valid"] == 0.0)
    is_contended = run.exchanges["is_contended"] == 1.0
    kinds = {
        "late": outcome == "late",
        "failed": np.isin(outcome, ("failed", "lost", "rejected")),
        "cancelled": outcome == "cancelled",
        "host contention": is_untimed & is_contended,
        "untimed": is_untimed & ~is_contended,
    }
    at = np.searchsorted(run.rounds["round"], run.exchanges["round"])
    size = run.rounds["round"].size
    return {
        kind: np.bincount(at[counted], minlength=size).astype(np.float64)
        for kind, counted in kinds.items()
        if counted.any()
    }


# Parts of drawings.


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the seconds and the name of a unit in which a time is readable."""
    for limit_s, per_unit_s, unit in ((600, 1, "s"), (10_800, 60, "min"), (259_200, 3_600, "h")):
        if longest_s < limit_s:
            return float(per_unit_s), unit
    return 86_400.0, "days"


def printable(text: str) -> str:
    """Return a label without control characters; matplotlib would hide one that begins with `_`."""
    clean = "".join(c if c.isprintable() else "?" for c in text)
    return f" {clean}" if clean.startswith("_") else clean


def _line(axes: "Axes", x: Floats, y: Floats, **style: Any) -> None:
    known = np.isfinite(y)
    marker = "o" if int(known.sum()) <= MAX_MARKED else ""
    axes.plot(x[known], y[known], marker=marker, markersize=3.0, **style)


def _over_rounds(axes: "Axes", *, margin: bool = True) -> None:
    """Give an axis of rounds whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if margin:
        axes.margins(x=0.02)


def _legend(figure: Canvas, *panels: "Axes") -> None:
    """Name the lines of all panels below them, where the legend hides no data."""
    named = dict[str, Any]()
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    widest = max(map(len, named), default=0)
    columns = min(max(LEGEND_WIDTH // (widest + 8), 1), max(len(named), 1))
    if named:
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns)


def _changes(run: RunFigures, panels: Sequence["Axes"], names: Sequence[str]) -> None:
    """Mark the rounds from which operators changed a setting."""
    for change in run.changes:
        if change.name in names:
            for axes in panels:
                axes.axvline(change.round, color=GREY, linewidth=0.8, linestyle="--")
            panels[0].annotate(
                f"{change.name} = {change.value:g}",
                (change.round, 1.0),
                (3.0, -8.0),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                fontsize=7,
                color=GREY,
            )


def _per_bin(run: RunFigures) -> int:
    """Return the rounds of one span of a stacked figure."""
    return max(-(-run.rounds["round"].size // MAX_BINS), 1)


def _binned(rounds: Floats, values: Floats, run: RunFigures) -> tuple[Floats, Floats]:
    """Return the middle and the mean of each span of rounds."""
    starts = np.arange(0, rounds.size, _per_bin(run))
    of = np.diff([*starts, rounds.size])
    return np.add.reduceat(rounds, starts) / of, np.add.reduceat(values, starts) / of


def _means_by_round(run: RunFigures, values: Floats) -> tuple[Floats, Floats]:
    known = np.isfinite(values)
    rounds, at = np.unique(run.exchanges["round"][known], return_inverse=True)
    return rounds, np.bincount(at, weights=values[known]) / np.bincount(at)


def _valid_tau(run: RunFigures) -> Floats:
    """Return the exchange time of each valid exchange, NaN for the others."""
    is_valid = (run.exchanges["is_valid"] == 1.0) & np.array(
        [one == "done" for one in run.outcome], dtype=np.bool_
    )
    return cast(Floats, np.where(is_valid, run.exchanges["tau_s"], np.nan))


def _known_energy(run: RunFigures) -> Floats:
    """Return the energy of each exchange that came to its end, NaN where it is unknown."""
    is_over = np.array([one == "done" for one in run.outcome], dtype=np.bool_)
    is_over |= np.isfinite(run.exchanges["busy_s"])
    return cast(Floats, np.where(is_over, run.exchanges["energy_j"], np.nan))


def _predicted(run: RunFigures) -> Bools:
    tau, hat = _valid_tau(run), run.exchanges["tau_hat_s"]
    return np.isfinite(tau) & (tau > 0.0) & (hat > 0.0)


def _has_lag(run: RunFigures) -> bool:
    return bool((np.nan_to_num(run.rounds["lag_p99_s"]) > 0.0).any())


# Data that a run lacks.


def _no_round(run: RunFigures) -> str | None:
    return None if run.rounds["round"].size else "no round has closed yet"


def _no_evaluation(run: RunFigures) -> str | None:
    if reason := _no_round(run):
        return reason
    if not run.metrics["round"].size:
        return "the model was not evaluated"
    is_known = np.isfinite(run.metrics["accuracy_mean"]).any()
    return None if is_known else "the evaluations have no accuracy"


def _no_loss(run: RunFigures) -> str | None:
    if reason := _no_round(run):
        return reason
    if not run.metrics["round"].size:
        return "the model was not evaluated"
    return None if np.isfinite(run.metrics["loss_mean"]).any() else "no evaluation has a loss"


def _no_spread(run: RunFigures) -> str | None:
    if reason := _no_evaluation(run):
        return reason
    return None if run.accuracies.size > 1 else "fewer than two devices were evaluated"


def _no_phases(run: RunFigures) -> str | None:
    if reason := _no_times(run):
        return reason
    known = np.isfinite(_valid_tau(run))
    has_phases = any(np.nan_to_num(run.exchanges[f"{p}_s"][known]).any() for p in TIMED_PHASES)
    return None if has_phases else "no exchange has the times of its phases"


def _no_times(run: RunFigures) -> str | None:
    if reason := _no_round(run):
        return reason
    return None if np.isfinite(_valid_tau(run)).any() else "no exchange has a valid time"


def _no_energy(run: RunFigures) -> str | None:
    if reason := _no_round(run):
        return reason
    return None if np.isfinite(_known_energy(run)).any() else "the power of the devices is unknown"


def _no_selections(run: RunFigures) -> str | None:
    if reason := _no_rates(run):
        return reason
    if not run.choices.knows_availability:
        return "the run stores the selected devices only"
    return None


def _no_rates(run: RunFigures) -> str | None:
    if reason := _no_round(run):
        return reason
    return None if run.devices else "the run has no device"


def _no_queues(run: RunFigures) -> str | None:
    if reason := _no_round(run):
        return reason
    if run.beta is None and not run.rounds["queue_total"].any():
        return f"the policy {run.policy or 'of the run'} has no virtual queues"
    return None


def _no_predictions(run: RunFigures) -> str | None:
    if reason := _no_times(run):
        return reason
    return None if _predicted(run).any() else "no exchange time was predicted"


def _no_problems(run: RunFigures) -> str | None:
    if reason := _no_round(run):
        return reason
    if problems_of(run) or _has_lag(run):
        return None
    return f"all {len(run.outcome):,} exchanges arrived in time, with valid times"


def _by_rows(run: RunFigures) -> float:
    """Return the height of a figure with a row per device, inches."""
    profiles = len(set(run.profiles) - {""})
    n = len(run.devices)
    rows = n if n <= MAX_ROWS else profiles if 1 < profiles <= MAX_ROWS else HIGHEST
    return max(3.2, 1.3 + 0.16 * rows)


def _of_devices(run: RunFigures) -> float:
    """Return the height of a figure with a row per device of a small fleet, inches."""
    return max(3.0, 1.0 + 0.17 * len(run.devices)) if len(run.devices) <= MAX_ROWS else 3.2


FIGURES: dict[str, FigureKind] = {
    "accuracy": FigureKind(
        "Accuracy over rounds",
        "Accuracy of the global model on the held-out examples, mean over devices.",
        True,
        _no_evaluation,
        _accuracy,
        lambda run: 3.2,
    ),
    "accuracy-time": FigureKind(
        "Accuracy over time",
        "The same accuracy over the time that the rounds took; evaluations take none of it.",
        True,
        _no_evaluation,
        _accuracy_time,
        lambda run: 3.2,
    ),
    "loss": FigureKind(
        "Loss",
        "Loss of the global model on the held-out examples, and on the training examples of the "
        "selected devices.",
        True,
        _no_loss,
        _loss,
        lambda run: 3.2,
    ),
    "fairness": FigureKind(
        "Fairness of the accuracy",
        "How the accuracy of the global model differs between devices.",
        True,
        _no_spread,
        _fairness,
        lambda run: 3.2,
    ),
    "selection": FigureKind(
        "Selected devices",
        "Which devices were selected in each round, which were available, and which were away.",
        False,
        _no_selections,
        _selection,
        _of_devices,
    ),
    "rates": FigureKind(
        "Selection rates",
        "Selections of each device / rounds since it joined, beside the guaranteed rate.",
        True,
        _no_rates,
        _rates,
        _of_devices,
    ),
    "queues": FigureKind(
        "Virtual queues",
        "Deficit of selections: a queue grows by beta each round and falls by 1 at a selection.",
        True,
        _no_queues,
        _queues,
        lambda run: 3.2,
    ),
    "phases": FigureKind(
        "Phases of an exchange",
        "Mean time of each phase; a round lasts as long as its slowest exchange.",
        False,
        _no_phases,
        _phases,
        _by_rows,
    ),
    "devices": FigureKind(
        "Exchange time of each device",
        "Median and 95th percentile of the valid exchange times, waits for a grant excluded.",
        False,
        _no_times,
        _devices,
        _of_devices,
    ),
    "estimator": FigureKind(
        "Predicted and measured exchange times",
        "Predictions before the selection against measurements, and their error over the rounds.",
        False,
        _no_predictions,
        _estimator,
        lambda run: 3.4,
    ),
    "contention": FigureKind(
        "Late, failed and untimed exchanges",
        "Exchanges without a result in time, those whose time is not valid, and the lag of the "
        "coordinator's event loop.",
        False,
        _no_problems,
        _contention,
        lambda run: 3.2,
    ),
    "energy": FigureKind(
        "Energy of an exchange",
        "Mean energy of the whole device in each phase, of exchanges whose power is known.",
        False,
        _no_energy,
        _energy,
        _by_rows,
    ),
}
"""The figures of a run by name, in the order of a report."""
