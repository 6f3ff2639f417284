r"""Write a comparison as JSON, CSV and LaTeX.

In LaTeX: `\input{compare.tex}`, with `\usepackage{booktabs}` in the preamble.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fairbed.coordinator.report.quantities import MISSING
from fairbed.testbed.compare.comparison import (
    ArmSummary,
    Comparison,
    MetricSummary,
    three_digits,
    undefined_in,
)
from fairbed.testbed.compare.differences import FAMILY_LEVEL
from fairbed.testbed.compare.table import (
    ShownNumber,
    cells_csv,
    effects_csv,
    heading_of,
    metrics_csv,
    shown_gap,
    shown_value,
    tuning_csv,
)
from fairbed.wire.printable import Printable, latex

CLIPPED, NO_VERDICT = r"^{\dagger}", r"^{\ddagger}"
"""Marks, in math, of a clipped interval, and of a difference that was not tested."""


def tex(comparison: Comparison) -> str:
    """Return one table: means of the reported metrics, and differences from the baseline."""
    metrics = {metric.key: metric for metric in comparison.metrics}
    reported = [metrics[key] for key in comparison.report]
    head = _comment(latex(comparison.name), len(comparison.seeds))
    if not reported:
        return f"{head}: no metric to report\n"
    return "\n".join([head, "% needs \\usepackage{booktabs}", *_table(comparison, reported)]) + "\n"


def _table(comparison: Comparison, metrics: list[MetricSummary]) -> Iterator[str]:
    yield r"\begin{table}"
    yield r"\centering"
    yield rf"\caption{{{_caption(comparison, metrics)}}}"
    yield rf"\label{{tab:{re.sub(r'[^A-Za-z0-9-]', '-', comparison.name)}}}"
    yield rf"\begin{{tabular}}{{l{'r' * len(metrics)}}}"
    yield r"\toprule"
    yield _row(latex(""), [_heading(comparison, metric) for metric in metrics])
    yield r"\midrule"
    for arm in comparison.arms:
        values = [shown_value(arm, metric, by_interval=True) for metric in metrics]
        yield _row(latex(arm.name), [_tex(value) for value in values])
        if arm.name != comparison.baseline:
            gaps = [_gap(comparison, arm, metric) for metric in metrics]
            yield _row(latex("difference"), gaps, r"\quad ")
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\par\smallskip"
    yield r"\begin{minipage}{\linewidth}"
    yield rf"\footnotesize {' '.join(_notes(comparison, metrics))}"
    yield r"\end{minipage}"
    yield r"\end{table}"


def _heading(comparison: Comparison, metric: MetricSummary) -> str:
    star = "$^{*}$" if metric.key == comparison.primary else ""
    return _typeset(latex(heading_of(metric)), star)


def _caption(comparison: Comparison, metrics: list[MetricSummary]) -> Printable:
    first, n_arms = metrics[0].heading, len(comparison.arms)
    more = " and other metrics" if len(metrics) > 1 else ""
    return latex(f"{first[:1].upper()}{first[1:]}{more} of {n_arms} arms.")


def _notes(comparison: Comparison, metrics: list[MetricSummary]) -> Iterator[str]:
    """Yield the sentences below the table: what its numbers and marks mean, where it has them."""
    seeds, percent = len(comparison.seeds), rf"{100 * comparison.confidence:g}\,\%"
    if metrics[0].key == comparison.primary:
        yield "$^{*}$ Primary metric."
    yield f"Means over {seeds} seed{'s' * (seeds != 1)} with {percent} intervals (Student's t)."
    if len(comparison.arms) > 1:
        yield _typeset(latex(f"Differences from {comparison.baseline} are paired by seed."))
    if comparison.comparisons:
        yield (
            f"Bold: shown by Holm's method over {comparison.comparisons} comparisons at "
            rf"{100 * FAMILY_LEVEL:.0f}\,\%."
        )
    if is_log := [metric.heading for metric in metrics if metric.scale == "log"]:
        yield _typeset(latex(f"Geometric means, and relative differences: {', '.join(is_log)}."))
    keys = [metric.key for metric in metrics]
    if any(target.key in keys for target in comparison.targets):
        horizon = three_digits(comparison.horizon_s or 0.0).replace(",", "{,}")
        yield (
            rf"Times to a target are means of $\min(T, {horizon}\,\mathrm{{s}})$, with the share "
            "of runs that reached it."
        )
    arms = comparison.arms
    gaps = [gap for arm in arms for key, gap in arm.differences.items() if key in keys]
    values = [value for arm in arms for key, value in arm.values.items() if key in keys]
    if any(gap.is_clipped for gap in gaps) or any(value.is_clipped for value in values):
        yield f"${CLIPPED}$ Clipped to the range of the metric."
    if any(gap.reason for gap in gaps):
        yield f"${NO_VERDICT}$ Not tested, because a seed lacks this metric or the primary one."
    for metric in comparison.metrics:
        text = undefined_in(arms, metric.key) if metric.key in {*keys, comparison.primary} else ""
        if text:
            heading = metric.heading[:1].upper() + metric.heading[1:]
            yield _typeset(latex(f"{heading} is undefined in {text};"), " $n$ counts the others.")
    for line in (comparison.constants, comparison.weightings, comparison.steps, comparison.cohorts):
        if line:
            yield _typeset(latex(f"{line}."))


def _comment(name: Printable, seeds: int) -> str:
    return f"% fairbed compare: {name}, {seeds} seeds"


def _row(first: Printable, cells: list[str], before: str = "") -> str:
    return " & ".join([before + first, *cells]) + r" \\"


def _typeset(text: Printable, more: str = "") -> str:
    return text + more


def _gap(comparison: Comparison, arm: ArmSummary, metric: MetricSummary) -> str:
    shown = shown_gap(arm, metric, comparison, by_interval=True)
    if shown is None:
        return "--"
    gap = arm.differences[metric.key]
    return _tex(shown, is_bold=gap.judgement in ("better", "worse"), mark=bool(gap.reason))


def _tex(shown: ShownNumber, *, is_bold: bool = False, mark: bool = False) -> str:
    """Return a mean with its interval and what belongs beside it."""
    if shown.interval is None and shown.mean == MISSING:
        return f"-- {{\\scriptsize $n={shown.n}$}}" if shown.n else "--"
    mean, *ends = (text.replace(",", "{,}") for text in (shown.mean, *(shown.interval or ())))
    unit, note = r"\,\%" if shown.is_percent else "", NO_VERDICT if mark else ""
    bold = rf"\mathbf{{{mean}}}" if is_bold else mean
    parts = [f"${bold}{unit}{note}$"]
    small = [f"$n={shown.n}$"] if shown.n else []
    if ends:
        small.insert(0, rf"$[{ends[0]},\,{ends[1]}]{CLIPPED if shown.is_clipped else ''}$")
    if small:
        parts.append(rf"{{\scriptsize {' '.join(small)}}}")
    if shown.reached:
        parts.append(f"({shown.reached})")
    return " ".join(parts)


def write_report(comparison: Comparison, out: Path) -> None:
    """Write all files except the figures into the grid's folder.

    Raises:
        OSError: A file cannot be written.
    """
    files = {
        "compare.json": msgspec.json.format(msgspec.json.encode(comparison)).decode() + "\n",
        "compare.csv": metrics_csv(comparison),
        "cells.csv": cells_csv(comparison),
        **({"effects.csv": effects_csv(comparison)} if comparison.effects else {}),
        **({"tuning.csv": tuning_csv(comparison.tuning)} if comparison.tuning else {}),
        "compare.tex": tex(comparison),
    }
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
