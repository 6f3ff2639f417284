"""Figures 2 to 4 of the RBCS-F paper from our replays, and two more."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.rbcs_f_paper.arms import (
    FASTEST,
    FEDCS,
    HIGH_NOISE,
    KNOWN_WEIGHTS,
    LOW_NOISE,
    RANDOM,
    WEIGHTS,
    Arm,
    Policy,
    rbcs_f,
    rbcs_f_known,
)
from experiments.rbcs_f_paper.rounds import Trajectory
from experiments.rbcs_f_paper.table import Replays
from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.coordinator.report.figure_style import GREY, band, drawing, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STRATEGIES = (RANDOM, rbcs_f(5.0), rbcs_f(20.0), rbcs_f(50.0), FEDCS)
"""The curves of the paper's figures."""
NAMES = ("fast", "medium", "slow", "slowest")
"""The groups of examples/rbcs-f-paper.toml, in the order of rows."""
BIN = 25
"""Rounds in one column of the selection record."""
MAX_SHARE = 0.5
"""Upper end of the colour scale of the selection record."""
ZOOM_S, ZOOM_RATE = (1250.0, 1800.0), (0.085, 0.155)
"""Axis limits around RBCS-F with V > 0."""
POINTS = 150
"""Points of a curve: more are invisible and make files large."""
BETA = 0.15
"""Guaranteed rate of examples/rbcs-f-paper.toml."""
WIDE_IN, TALL_IN = (7.2, 3.2), (7.2, 3.8)


def draw_queues(replays: Replays, folder: Path) -> Path:
    """Draw Fig. 2: the sum of the queues against rounds, by V."""
    path = folder / "fig2-queues"
    with drawing(path) as figure:
        axes = figure.subplots()
        for number, weight in enumerate((*WEIGHTS[::-1], 0.0)):
            runs = replays[Arm(policy=rbcs_f(weight))]
            _band(axes, runs, lambda x: x.backlog, f"V = {weight:g}", number)
        axes.set_xlabel("round")
        axes.set_ylabel("sum of the virtual queues, rounds")
        axes.set_title("Queues level off for every V: later and higher with a larger one")
        axes.margins(x=0.0)
        axes.set_ylim(bottom=0.0)
        axes.legend(title="weight of time, 1/s", loc="upper left")
    return path


def draw_times(replays: Replays, folder: Path) -> Path:
    """Draw Fig. 3: the time of all rounds so far, by strategy, for both noise levels."""
    path = folder / "fig3-time"
    with drawing(path, WIDE_IN) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, noise in zip(panels, (LOW_NOISE, HIGH_NOISE), strict=True):
            for number, policy in enumerate((*STRATEGIES, FASTEST)):
                runs = replays[Arm(policy=policy, noise=noise)]
                _band(axes, runs, lambda x: x.duration_s.cumsum(), policy.label, number)
            axes.set_xlabel("round")
            axes.set_title(f"times vary by ± {noise:.0%}")
            axes.margins(x=0.0)
        panels[0].set_ylim(bottom=0.0)
        panels[0].set_ylabel("training time so far, s")
        panels[0].legend(loc="upper left")
    return path


def draw_pulls(replays: Replays, folder: Path) -> Path:
    """Draw Fig. 4: selections over rounds, one panel per strategy; the first seed."""
    path = folder / "fig4-pulls"
    with drawing(path, TALL_IN) as figure:
        panels = figure.subplots(1, len(STRATEGIES), sharey=True)
        for axes, policy in zip(panels, STRATEGIES, strict=True):
            first = replays[Arm(policy=policy)][0].is_selected
            image = axes.imshow(
                binned(first).T,
                aspect="auto",
                origin="lower",
                interpolation="nearest",
                cmap="cividis",  # uniform in lightness, for colour-blind readers
                vmin=0.0,
                vmax=MAX_SHARE,
                extent=(0.0, len(first), 0.5, first.shape[1] + 0.5),
            )
            axes.grid(visible=False)
            axes.set_title(policy.label, fontsize=9.0)
            axes.set_xlabel("round")
            axes.set_xticks([0, len(first) // 2, len(first)])
            size = first.shape[1] // 4
            for edge in (1, 2, 3):
                axes.axhline(edge * size + 0.5, color="white", linewidth=0.8)
            axes.set_yticks([size * (group + 0.5) for group in range(4)], NAMES)
            axes.tick_params(axis="y", length=0.0, labelrotation=90.0)
        for label in panels[0].get_yticklabels():
            label.set_verticalalignment("center")
        panels[0].set_ylabel("forty devices")
        figure.colorbar(image, ax=panels, label=f"selected in {BIN} rounds, share", extend="max")
    return path


def binned(is_selected: Bools) -> Floats:
    """Return the rate of each device in each bin of rounds, shape (T / BIN, N)."""
    starts = np.arange(0, len(is_selected), BIN)
    sums = np.add.reduceat(is_selected.astype(np.float64), starts, axis=0)
    rates: Floats = sums / np.diff(np.append(starts, len(is_selected)))[:, None]
    return rates


def draw_front(replays: Replays, folder: Path) -> Path:
    """Draw the choice of V: total time against the rate of the least selected device."""
    path = folder / "front"
    learned = [rbcs_f(weight) for weight in (0.0, *WEIGHTS)]
    known = [rbcs_f_known(weight) for weight in KNOWN_WEIGHTS]
    with drawing(path, WIDE_IN) as figure:
        left, right = figure.subplots(1, 2)
        for axes in (left, right):
            axes.axhline(BETA, color=GREY, linewidth=0.8, linestyle=":")
            _front(axes, replays, "RBCS-F, learning", learned, 0)
            _front(axes, replays, "RBCS-F, times known", known, 1)
            axes.set_xlabel("time of all rounds, s")
        for number, policy in enumerate((RANDOM, FEDCS, FASTEST), start=2):
            _front(left, replays, policy.label, [policy], number)
        left.set_ylabel("rate of the least selected device")
        left.set_title("all policies")
        left.legend(loc="lower right")
        left.annotate("guaranteed", (2300.0, BETA), va="bottom", fontsize=7.5, color=GREY)
        right.set_title("RBCS-F by its V")
        right.set_xlim(*ZOOM_S)
        right.set_ylim(*ZOOM_RATE)
        for policies, offset, side in ((learned[1:], (7, -3), "left"), (known, (-7, 3), "right")):
            for policy in policies:
                time_s, rate = _place(replays, policy)
                right.annotate(
                    f"V = {policy.weight:g}",
                    (float(time_s.mean()), float(rate.mean())),
                    xytext=offset,
                    textcoords="offset points",
                    ha=side,
                    va="center",
                    fontsize=7.5,
                )
    return path


def _place(replays: Replays, policy: Policy) -> tuple[Floats, Floats]:
    """Return the total time and the least rate of each seed."""
    runs = replays[Arm(policy=policy)]
    return np.array([run.total_s for run in runs]), np.array([run.min_rate for run in runs])


def _front(
    axes: "Axes", replays: Replays, label: str, policies: Sequence[Policy], number: int
) -> None:
    places = np.array([_place(replays, policy) for policy in policies])
    style, (x, y), (wide, high) = series_style(number), places.mean(axis=2).T, places.std(axis=2).T
    axes.errorbar(
        x, y, xerr=wide, yerr=high, label=label, elinewidth=0.7,
        color=style.colour, marker=style.marker, linestyle=style.dash if len(x) > 1 else "none",
    )  # fmt: skip


def draw_regret(replays: Replays, folder: Path) -> Path:
    """Draw the cost of learning the times: extra time and regret over rounds."""
    path = folder / "regret"
    with drawing(path, WIDE_IN) as figure:
        left, right = figure.subplots(1, 2)
        for number, weight in enumerate(KNOWN_WEIGHTS):
            learned = replays[Arm(policy=rbcs_f(weight))]
            pairs = zip(learned, replays[Arm(policy=rbcs_f_known(weight))], strict=True)
            extra_s = np.array([(a.duration_s - b.duration_s).cumsum() for a, b in pairs])
            _spread(left, extra_s, f"V = {weight:g}", number)
            _band(right, learned, lambda x: x.regret_s.cumsum(), f"V = {weight:g}", number)
        left.set_title("against known times", fontsize=9.0)
        left.set_ylabel("extra time so far, s")
        right.set_title("against the best cohort, same queues", fontsize=9.0)
        right.set_ylabel("regret so far, (J - min J) / V, s")
        for axes in (left, right):
            axes.set_xlabel("round")
            axes.margins(x=0.0)
            axes.set_ylim(bottom=0.0)
        left.legend(loc="upper left")
    return path


def _band(
    axes: "Axes",
    runs: Iterable[Trajectory],
    value: Callable[[Trajectory], Floats],
    label: str,
    number: int,
) -> None:
    _spread(axes, np.array([value(run) for run in runs]), label, number)


def _spread(axes: "Axes", values: Floats, label: str, number: int) -> None:
    """Draw the mean over seeds and the range of all of them; values of shape (seeds, T)."""
    shown = np.unique(np.linspace(0, values.shape[1] - 1, POINTS).astype(np.int64))
    few = values[:, shown]
    band(
        axes, shown + 1, few.min(axis=0), few.mean(axis=0), few.max(axis=0),
        label=label, style=series_style(number),
    )  # fmt: skip
