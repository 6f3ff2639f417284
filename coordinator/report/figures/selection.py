"""Figures of the selection: rates and virtual queues of the devices, and a map of all rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.report.figure_style import COLOURS, GREY
from fairbed.coordinator.report.figures.data import RunFigures
from fairbed.coordinator.report.figures.panels import (
    LEVELS,
    MAX_ROWS,
    Canvas,
    Rgba,
    Shown,
    blue,
    draw_line,
    draw_series,
    from_zero,
    legend_below,
    mark_changes,
    panels,
    whole_rounds,
)
from fairbed.coordinator.report.quantities import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEAT_ROWS, HEAT_COLUMNS = 250, 500
"""Largest map, cells; larger ones show the share of a group of devices and rounds."""
POINTS = 200
"""Rounds at which rates over rounds are computed."""


def draw_rates(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw the rate of each device, and the lowest rate over rounds, beside the guarantee."""
    has_curves = any(one.run.rounds["round"].size > 1 for one in runs)
    has_rows = len(runs) == 1 and len(runs[0].run.devices) <= MAX_ROWS
    left, right = panels(figure, has_right=has_curves)
    left.set_title("Rate of each device")
    if has_rows:
        _rate_rows(left, runs[0].run)
    else:
        _rate_curves(left, runs)
    if right is not None:
        _rates_over_rounds(right, runs)
    betas = {one.run.beta for one in runs if one.run.beta is not None}
    if len(betas) == 1:
        beta = betas.pop()
        style: dict[str, Any] = {"color": GREY, "linestyle": ":", "linewidth": 1.2, "zorder": 1.5}
        has_changed = any(change.name == "beta" for one in runs for change in one.run.changes)
        name = f"guaranteed{', mean' if has_changed else ''}: {beta:.3g}"
        (left.axvline if has_rows else left.axhline)(beta, label=name, **style)
        if right is not None:
            right.axhline(beta, **style)
    for axes in (left, right):
        if axes is not None and not (has_rows and axes is left):
            from_zero(axes)
    legend_below(figure, left, *([] if right is None or len(runs) > 1 else [right]))


def _rate_rows(axes: "Axes", run: RunFigures) -> None:
    selected, aggregated = final_rates(run)
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


def _rate_curves(axes: "Axes", runs: Sequence[Shown]) -> None:
    for one in runs:
        selected, _ = final_rates(one.run)
        share = 100.0 * np.arange(1, selected.size + 1) / selected.size
        line = {**one.line, "label": "_"} if len(runs) == 1 else one.line
        axes.step(share, np.sort(selected), where="mid", **line)
    axes.set(xlabel="devices, %, lowest first", ylabel="selections / rounds", xlim=(0.0, 100.0))


def _rates_over_rounds(axes: "Axes", runs: Sequence[Shown]) -> None:
    for one in runs:
        rounds, lowest, median = rates_over_rounds(one.run)
        if len(runs) > 1:
            draw_line(axes, rounds, lowest, **one.line)
            continue
        if np.isfinite(median).any():
            draw_series(axes, 0, rounds, median, "median device")
        draw_series(axes, 1, rounds, lowest, "lowest")
        mark_changes(one.run, (axes,), ("beta", "per_round"))
    axes.set_title("Over the rounds" if len(runs) == 1 else "Lowest rate over the rounds")
    counted = {one.run.queue_counts for one in runs}
    axes.set_ylabel("aggregated / rounds" if counted == {"aggregated"} else "selections / rounds")
    whole_rounds(axes)


def final_rates(run: RunFigures) -> tuple[Floats, Floats]:
    """Return selections and aggregated updates / rounds of each device of the fleet.

    Shape (N,), or that of the whole fleet if the run stores the selected devices only.
    """
    choices, n = run.choices, len(run.devices)
    of = np.maximum(run.rounds["round"].size - choices.first, 1)
    never = np.zeros(max(run.n_all - n, 0))

    def rates(marked: Bools, before: Ints) -> Floats:
        counts = before + np.bincount(choices.device[marked], minlength=n)
        return np.concatenate([counts / of, never])

    return (
        rates(choices.is_selected, choices.selected_before),
        rates(choices.is_aggregated, choices.aggregated_before),
    )


def rates_over_rounds(run: RunFigures) -> tuple[Floats, Floats, Floats]:
    """Return rounds, and the lowest and the median rate of the devices up to each.

    The rate is the one that the policy guarantees: of selections, or of aggregated updates. At most
    `POINTS` rounds, evenly spaced; NaN where unknown.
    """
    choices, rounds = run.choices, run.rounds["round"]
    if run.min_rates is not None:
        return rounds, run.min_rates, np.full(rounds.size, np.nan)
    is_merged = run.queue_counts == "aggregated"
    counted = choices.is_aggregated if is_merged else choices.is_selected
    counts = (choices.aggregated_before if is_merged else choices.selected_before).copy()
    at, device = choices.at[counted], choices.device[counted]
    first = min(choices.since, rounds.size - 1)
    points = np.unique(np.linspace(first, rounds.size - 1, POINTS).round().astype(np.int64))
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


_AWAY: Rgba = (220 / 255, 150 / 255, 10 / 255, 0.6)
_AVAILABLE: Rgba = (0.5, 0.5, 0.5, 0.16)
"""Colours of the map beside those of `blue`."""


def draw_selection(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw which devices were selected, available or away in each round."""
    from matplotlib.patches import Patch

    run, axes = runs[0].run, figure.subplots()
    found = heat_map(run)
    highest = float(np.nanmax(found.selected))
    level = np.ceil(LEVELS * found.selected / max(highest, 1e-9))
    image = np.zeros((*found.selected.shape, 4))
    image[np.isfinite(found.selected)] = _AVAILABLE
    image[found.away >= 0.5] = _AWAY
    for value in range(1, LEVELS + 1):
        image[level == value] = blue(value)
    rounds, n = run.rounds["round"], len(run.devices)
    left = float(rounds[run.choices.since]) - 0.5
    axes.imshow(
        np.round(255 * image).astype(np.uint8),
        aspect="auto",
        interpolation="none",
        extent=(
            left,
            left + found.rounds * image.shape[1],
            found.devices * image.shape[0] - 0.5,
            -0.5,
        ),
    )
    axes.set(xlim=(left, float(rounds[-1]) + 0.5), ylim=(n - 0.5, -0.5))
    axes.grid(visible=False)
    whole_rounds(axes, has_margin=False)
    _device_axis(axes, run)
    named = {"selected": blue()}
    if found.devices * found.rounds > 1:
        named = {
            f"selected in at most {percent(highest / LEVELS)} of a cell": blue(1),
            f"in {percent(highest)}": blue(),
        }
        sizes = ((found.devices, "device"), (found.rounds, "round"))
        cell = ", ".join(f"{count} {unit}{'s' * (count > 1)}" for count, unit in sizes)
        axes.set_title(f"Each cell: {cell}", fontsize=8, loc="right")
    named["available, not selected"] = _AVAILABLE
    if (found.away >= 0.5).any():
        named["away"] = _AWAY
    figure.legend(
        [Patch(facecolor=colour, linewidth=0.0) for colour in named.values()],
        list(named),
        loc="outside lower center",
        ncols=len(named),
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


def draw_queues(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw the virtual queues over rounds; of one run also those of single devices."""
    left, right = figure.subplots(1, 2)
    for one in runs:
        of = one.run.rounds
        if len(runs) > 1:
            draw_line(left, of["round"], of["queue_total"], **one.line)
            draw_line(right, of["round"], of["queue_max"], **one.line)
            continue
        draw_line(left, of["round"], of["queue_total"], color=COLOURS[0])
        draw_line(right, of["round"], of["queue_max"], color=GREY, label="largest")
        for index, (device, (rounds, queue)) in enumerate(one.run.queues.items()):
            draw_series(right, index, rounds, queue, device)
        mark_changes(one.run, (left, right), ("V", "beta", "per_round"))
    left.set_title("Sum over devices")
    is_single = len(runs) == 1 and runs[0].run.queues
    right.set(title="Largest, and of single devices" if is_single else "Largest")
    for axes in (left, right):
        axes.set_ylabel("virtual queue Z")
        from_zero(axes)
        whole_rounds(axes)
    legend_below(figure, right)


def no_rates(run: RunFigures) -> str | None:
    """Return why a run has no selection rates."""
    return None if run.devices else "the run has no device"


def no_selections(run: RunFigures) -> str | None:
    """Return why a run has no map of its selections."""
    if not run.devices:
        return "the run has no device"
    return None if run.choices.knows_availability else "the run stores the selected devices only"


def no_queues(run: RunFigures) -> str | None:
    """Return why a run has no curves of virtual queues."""
    if run.beta is None and not run.rounds["queue_total"].any():
        return f"the policy {run.policy or 'of the run'} has no virtual queues"
    n = run.rounds["round"].size
    return None if n > 1 else f"a curve needs two rounds, got {n}"
