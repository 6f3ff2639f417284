"""Figures of the exchanges: phases, energy, exchange times, predictions, and what went wrong."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.records.rows import ENERGY_PHASES
from fairbed.coordinator.report.figure_style import COLOURS, GREY, INK
from fairbed.coordinator.report.figures.data import Columns, RunFigures
from fairbed.coordinator.report.figures.panels import (
    MAX_ROWS,
    Canvas,
    Shown,
    bins_of,
    blue,
    draw_line,
    draw_series,
    from_zero,
    legend_below,
    panels,
    whole_rounds,
)
from fairbed.coordinator.report.quantities import LEAST, SampleCount
from fairbed.coordinator.store.reader import TIMED_PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HIGHEST = 12
"""Devices that stand for a larger fleet of one profile: those with the highest values."""
MAX_DOTS = 1_500
"""Points of a scatter plot; more are counted in cells."""
CELLS = 90
"""Such cells per axis."""
SPREAD = 30.0
"""Ratio of the longest to the shortest time above which both axes are logarithmic."""
TINY = 0.005
"""Parts below this share of the whole belong to `OTHER`."""

CODEC, OTHER = "decode and encode", "other"
PART_COLOURS = {
    "download": COLOURS[0],
    "load": COLOURS[4],
    "evaluate": COLOURS[6],
    "train": COLOURS[2],
    "personal": COLOURS[3],
    CODEC: COLOURS[1],
    "upload": COLOURS[5],
    OTHER: GREY,
}
"""Colour of each part of an exchange, in the order of the drawing."""
PROBLEMS = ("late", "failed", "cancelled", "host contention", "untimed")
"""Exchanges without a result in time, and those whose times are not valid."""


def draw_phases(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw the mean time of each phase, by round and by device."""
    run = runs[0].run
    left, right = _stacks(figure, run, TIMED_PHASES, "_s", valid_times(run))
    bins = bins_of(run)
    round_s = bins.means(run.rounds["duration_s"])
    draw_line(left, bins.middles, round_s, color=INK, linestyle="--", label="whole round")
    left.set_ylabel("time, s")
    left.set_ylim(bottom=0.0)
    right.set_xlabel("mean time of an exchange, s")
    legend_below(figure, left)


def draw_energy(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw the mean energy of each phase, by round and by device."""
    run = runs[0].run
    left, right = _stacks(figure, run, ENERGY_PHASES, "_j", _known_energy(run))
    left.set_ylabel("energy, J")
    left.set_ylim(bottom=0.0)
    right.set_xlabel("mean energy of an exchange, J")
    legend_below(figure, left)


def _stacks(
    figure: Canvas, run: RunFigures, names: Sequence[str], suffix: str, total: Floats
) -> "tuple[Axes, Axes]":
    """Draw means of the parts of the exchanges, and return the panels: by round, by device."""
    left, right = figure.subplots(1, 2)
    parts = parts_of(run, names, suffix, total)
    _stack_over_rounds(left, run, parts, total)
    _stack_by_device(right, run, parts, total)
    return left, right


def parts_of(run: RunFigures, names: Sequence[str], suffix: str, total: Floats) -> Columns:
    """Return the parts of each exchange, 0 where the whole is unknown.

    Phases below `TINY` of the whole of all exchanges, and what is in no phase, are `OTHER`.

    Args:
        run: The run.
        names: Phases that are columns of the exchanges.
        suffix: Unit of the columns: `_s` or `_j`.
        total: Whole of each exchange, shape (M,); NaN is unknown.
    """
    known = np.isfinite(total)
    found = dict[str, Floats]()
    for name in names:
        part = CODEC if name in ("decode", "encode") else name
        values = np.where(known, np.nan_to_num(run.exchanges[name + suffix]), 0.0)
        found[part] = found.get(part, 0.0) + values
    least = TINY * float(total[known].sum())
    parts = {
        part: found[part] for part in PART_COLOURS if part in found and found[part].sum() > least
    }
    rest = np.where(known, total, 0.0) - sum(parts.values(), np.zeros(total.size))
    rest = np.maximum(rest, 0.0)
    return {**parts, **({OTHER: rest} if rest.sum() > least else {})}


def _stack_over_rounds(axes: "Axes", run: RunFigures, parts: Columns, total: Floats) -> None:
    known = np.isfinite(total)
    bins = bins_of(run)
    at = np.searchsorted(bins.rounds, run.exchanges["round"][known]) // bins.per_bin
    of = np.maximum(np.bincount(at, minlength=bins.size), 1)
    means = {
        part: np.bincount(at, weights=values[known], minlength=bins.size) / of
        for part, values in parts.items()
    }
    _stack(axes, bins.edges, means, PART_COLOURS)
    axes.set_title("Mean exchange of a round")


def _stack(axes: "Axes", edges: Floats, parts: Columns, colours: dict[str, str]) -> None:
    """Draw numbers of spans of rounds above each other, each of shape (B,)."""
    below: Floats = np.zeros(edges.size - 1)
    for part, values in parts.items():
        above = below + values
        axes.stairs(above, edges, baseline=below, fill=True, color=colours[part], label=part)
        below = above
    whole_rounds(axes, has_margin=False)
    axes.set_xlim(edges[0], edges[-1])


def _stack_by_device(axes: "Axes", run: RunFigures, parts: Columns, total: Floats) -> None:
    known = np.isfinite(total) & (run.exchange_device >= 0)
    names, row, title = _rows(run, run.exchange_device[known], total[known])
    is_shown = row >= 0
    of = np.maximum(np.bincount(row[is_shown], minlength=len(names)), 1)
    left: Floats = np.zeros(len(names))
    for part, values in parts.items():
        weights = values[known][is_shown]
        width = np.bincount(row[is_shown], weights=weights, minlength=len(names)) / of
        axes.barh(names, width, left=left, height=0.8, color=PART_COLOURS[part], linewidth=0.0)
        left = left + width
    axes.set(title=title, ylim=(-0.6, len(names) - 0.4))
    axes.grid(visible=False, axis="y")


def _rows(run: RunFigures, device: Ints, values: Floats) -> tuple[list[str], Ints, str]:
    """Return the rows of a figure by device or profile, the highest at the top.

    Args:
        run: The run.
        device: Device of each exchange, shape (M,).
        values: Number by whose mean the rows are sorted, shape (M,).

    Returns:
        Names of the rows from the bottom, the row of each exchange (-1: of none), and a title.
    """
    profiles = _profiles(run)
    if profiles:
        position = {profile: at for at, profile in enumerate(profiles)}
        code = np.array([position.get(profile, -1) for profile in run.profiles], dtype=np.int64)
        names, group, title = profiles, code[device], "By profile"
    else:
        names, group, title = list(run.devices), device, "By device"
    of_one = group >= 0
    counts = np.bincount(group[of_one], minlength=len(names))
    sums = np.bincount(group[of_one], weights=values[of_one], minlength=len(names))
    means = np.divide(sums, counts, out=np.full(len(names), np.nan), where=counts > 0)
    order = np.argsort(means, kind="stable")[: int((counts > 0).sum())]  # NaN is last
    if order.size > MAX_ROWS:
        title = f"The {HIGHEST} highest of {order.size:,} devices"
        order = order[-HIGHEST:]
    row: Ints = np.full(len(names) + 1, -1, dtype=np.int64)  # the last is that of group -1
    row[order] = np.arange(order.size)
    return [names[at] for at in order], row[group], title


def _profiles(run: RunFigures) -> list[str]:
    """Return the profiles that stand for the devices of a large fleet; none for a small one."""
    found = sorted(set(run.profiles) - {""})
    return found if len(run.devices) > MAX_ROWS and 1 < len(found) <= MAX_ROWS else []


def rows_height_in(run: RunFigures) -> float:
    """Return the height of a figure with the rows of `_rows`, inches."""
    n = len(run.devices)
    rows = n if n <= MAX_ROWS else len(_profiles(run)) or HIGHEST
    return max(3.2, 1.3 + 0.16 * rows)


def draw_devices(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw median and 95th percentile of the exchange time of each device."""
    run, axes = runs[0].run, figure.subplots()
    times, samples = valid_times(run), _samples(run)
    stated = [at for at, sample in samples.items() if not sample.why_none]
    known = np.isfinite(times) & np.isin(run.exchange_device, stated)
    order = np.argsort(run.exchange_device[known], kind="stable")
    devices, starts = np.unique(run.exchange_device[known][order], return_index=True)
    of_device = np.split(times[known][order], starts[1:])
    median = np.array([np.median(values) for values in of_device])
    p95 = np.array([np.percentile(values, 95.0) for values in of_device])
    if devices.size <= MAX_ROWS:
        rank = np.argsort(median, kind="stable")
        rows = np.arange(rank.size)
        axes.hlines(rows, median[rank], p95[rank], color=COLOURS[0], linewidth=2.0, alpha=0.45)
        axes.plot(median[rank], rows, "o", color=COLOURS[0], label="median")
        axes.plot(p95[rank], rows, "|", color=COLOURS[0], markersize=8.0, label="95th percentile")
        names = [f"{run.devices[at]} ({samples[at]})" for at in devices[rank].tolist()]
        axes.set_yticks(rows, names)
        axes.set(xlabel="exchange time, s", ylim=(-0.6, rank.size - 0.4))
        axes.set_xlim(left=0.0)
    else:
        share = 100.0 * np.arange(1, devices.size + 1) / devices.size
        draw_series(axes, 1, share, np.sort(p95)[::-1], "95th percentile")
        draw_series(axes, 0, share, np.sort(median)[::-1], "median")
        axes.set(xlabel="devices, %, slowest first", ylabel="exchange time, s", xlim=(0.0, 100.0))
        axes.set_ylim(bottom=0.0)
    if left_out := len(samples) - len(stated):
        axes.set_title(f"{left_out} of {len(samples)} devices have too few timed exchanges")
    legend_below(figure, axes)


def draw_estimator(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw predicted against measured exchange times, and the errors over rounds."""
    run = runs[0].run
    known = _predicted(run)
    tau, hat = run.exchanges["tau_s"][known], run.exchanges["tau_hat_s"][known]
    bins = bins_of(run)
    at = np.searchsorted(bins.rounds, run.exchanges["round"][known]) // bins.per_bin
    present, starts = np.unique(at, return_index=True)  # exchanges are in the order of rounds
    left, right = panels(figure, has_right=present.size > 1)
    _compare_times(left, hat, tau)
    if right is not None:
        errors = np.split(100.0 * np.abs(hat - tau) / tau, starts[1:])
        for index, percentile, label in ((1, 90.0, "90th percentile"), (0, 50.0, "median")):
            values = np.array([np.percentile(error, percentile) for error in errors])
            draw_series(right, index, bins.middles[present], values, label)
        right.set(title="Error over the rounds", ylabel="prediction error, %")
        from_zero(right)
        whole_rounds(right)
    legend_below(figure, left, *([] if right is None else [right]))


def _compare_times(axes: "Axes", hat: Floats, tau: Floats) -> None:
    """Draw measured times over predicted ones, as points or, if they are many, as counts."""
    from matplotlib.colors import LinearSegmentedColormap

    low, high = min(tau.min(), hat.min()), max(tau.max(), hat.max())
    is_log = high > SPREAD * low
    if is_log:
        ends = low / (high / low) ** 0.04, high * (high / low) ** 0.04
        axes.set(xscale="log", yscale="log")
    else:
        margin = max(0.04 * (high - low), 0.001 * high)
        ends = max(low - margin, 0.0), high + margin
    axes.plot(ends, ends, color=GREY, linestyle=":", linewidth=1.2, label="exact")
    if tau.size <= MAX_DOTS:
        axes.plot(hat, tau, "o", color=COLOURS[0], markersize=3.5, alpha=0.6, markeredgewidth=0.0)
    else:
        edges = (np.geomspace if is_log else np.linspace)(*ends, CELLS + 1)
        counts, _, _ = np.histogram2d(tau, hat, bins=(edges, edges))
        shades = LinearSegmentedColormap.from_list("counts", [blue(1), blue()])
        cells = np.ma.masked_equal(counts, 0.0)
        axes.pcolormesh(edges, edges, np.log1p(cells), cmap=shades, rasterized=True)
    axes.set(xlim=ends, ylim=ends, title=f"{tau.size:,} exchanges")
    axes.set(xlabel="predicted exchange time, s", ylabel="measured exchange time, s")


def draw_contention(runs: Sequence[Shown], figure: Canvas) -> None:
    """Draw the exchanges without a result in time or a valid time, and the lag of the loop."""
    from matplotlib.ticker import MaxNLocator

    run = runs[0].run
    counts = problems_of(run)
    left, right = panels(figure, has_right=bool(counts) and _has_lag(run))
    if counts:
        bins = bins_of(run)
        sums = {kind: bins.sums(values) for kind, values in counts.items()}
        _stack(left, bins.edges, sums, dict(zip(PROBLEMS, COLOURS, strict=False)))
        left.set_title("Without a result in time, or untimed")
        per = "round" if bins.per_bin == 1 else f"{bins.per_bin} rounds"
        left.set_ylabel(f"exchanges per {per}")
        left.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        left.set_ylim(bottom=0.0)
        legend_below(figure, left)
    if _has_lag(run):
        axes = left if right is None else right
        draw_line(axes, run.rounds["round"], 1e3 * run.rounds["lag_p99_s"], color=COLOURS[0])
        axes.set(title="Lag of the event loop", ylabel="99th percentile, ms")
        from_zero(axes)
        whole_rounds(axes)


def problems_of(run: RunFigures) -> dict[str, Floats]:
    """Return the exchanges of each round by problem, each of shape (T,); only those that occur."""
    outcome = np.array(run.outcome, dtype=object)
    is_untimed = (outcome == "done") & (run.exchanges["is_valid"] == 0.0)
    is_contended = run.exchanges["is_contended"] == 1.0
    counted = (
        outcome == "late",
        np.isin(outcome, ("failed", "lost", "rejected")),
        outcome == "cancelled",
        is_untimed & is_contended,
        is_untimed & ~is_contended,
    )
    rounds = run.rounds["round"]
    at = np.searchsorted(rounds, run.exchanges["round"])
    return {
        kind: np.bincount(at[one], minlength=rounds.size).astype(np.float64)
        for kind, one in zip(PROBLEMS, counted, strict=True)
        if one.any()
    }


def valid_times(run: RunFigures) -> Floats:
    """Return the exchange time of each valid exchange, NaN for the others, shape (M,)."""
    is_valid = _is_done(run) & (run.exchanges["is_valid"] == 1.0)
    return cast(Floats, np.where(is_valid, run.exchanges["tau_s"], np.nan))


def _known_energy(run: RunFigures) -> Floats:
    """Return the energy of each exchange that is over, NaN where it is unknown, shape (M,)."""
    is_over = _is_done(run) | np.isfinite(run.exchanges["busy_s"])
    return cast(Floats, np.where(is_over, run.exchanges["energy_j"], np.nan))


def _is_done(run: RunFigures) -> Bools:
    return np.array([outcome == "done" for outcome in run.outcome], dtype=np.bool_)


def _predicted(run: RunFigures) -> Bools:
    """Return which exchanges have a positive time and prediction, shape (M,)."""
    tau, hat = valid_times(run), run.exchanges["tau_hat_s"]
    return np.isfinite(tau) & np.isfinite(hat) & (tau > 0.0) & (hat > 0.0)


def _has_lag(run: RunFigures) -> bool:
    return run.rounds["round"].size > 1 and bool((run.rounds["lag_p99_s"] > 0.0).any())


def no_times(run: RunFigures) -> str | None:
    """Return why a run has no exchange times, or too few of them."""
    return _too_few(np.isfinite(valid_times(run)), "no exchange has a valid time", "timed")


def _too_few(known: Bools, none: str, what: str) -> str | None:
    """Return why numbers of some of the exchanges of a run are not drawn, None if they are.

    Args:
        known: The exchanges with a number, shape (M,).
        none: The reason without one.
        what: Word for these exchanges.
    """
    sample = SampleCount(int(known.sum()), known.size)
    if not sample.n:
        return none
    why = sample.why_none
    return f"{sample} exchanges are {what}, {why}" if why else None


def no_device_times(run: RunFigures) -> str | None:
    """Return why no device has an exchange time that can be stated."""
    if reason := no_times(run):
        return reason
    is_stated = any(not sample.why_none for sample in _samples(run).values())
    need = f"{LEAST} timed exchanges, and half of its own"
    return None if is_stated else f"no device has {need}"


def _samples(run: RunFigures) -> dict[int, SampleCount]:
    """Return the timed exchanges of each device with an exchange, by its position."""
    has_device = run.exchange_device >= 0
    every = np.bincount(run.exchange_device[has_device], minlength=len(run.devices))
    is_timed = has_device & np.isfinite(valid_times(run))
    timed = np.bincount(run.exchange_device[is_timed], minlength=len(run.devices))
    return {at: SampleCount(int(timed[at]), int(n)) for at, n in enumerate(every) if n}


def no_phases(run: RunFigures) -> str | None:
    """Return why a run has no times of phases."""
    if reason := no_times(run):
        return reason
    known = np.isfinite(valid_times(run))
    phases = (np.nan_to_num(run.exchanges[f"{phase}_s"][known]) for phase in TIMED_PHASES)
    is_measured = any(times.any() for times in phases)
    return None if is_measured else "no exchange has the times of its phases"


def no_energy(run: RunFigures) -> str | None:
    """Return why a run has no energies."""
    known = _known_energy(run)
    if not np.isfinite(known).any():
        return "the power of the devices is unknown"
    sample = SampleCount(int(np.isfinite(known).sum()), known.size)
    if sample.why_none:
        return f"the energy of {sample} exchanges is known, {sample.why_none}"
    return None if np.nansum(known) > 0.0 else "no exchange took energy"


def no_predictions(run: RunFigures) -> str | None:
    """Return why a run has no predictions to compare."""
    none = "no exchange time was predicted"
    return no_times(run) or _too_few(_predicted(run), none, "predicted and timed")


def no_problems(run: RunFigures) -> str | None:
    """Return that nothing went wrong."""
    if problems_of(run) or _has_lag(run):
        return None
    return f"all {len(run.outcome):,} exchanges arrived in time, with valid times"
