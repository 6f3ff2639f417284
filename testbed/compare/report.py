r"""Write a comparison as JSON, CSV and LaTeX.

In LaTeX: `\input{compare.tex}`, and `\input{effects.tex}` for the effects of contrasts, with
`\usepackage{booktabs}` in the preamble.
"""

import re
from collections.abc import Iterator, Sequence
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
from fairbed.testbed.compare.contrasts import POWER, Effect
from fairbed.testbed.compare.differences import FAMILY_LEVEL
from fairbed.testbed.compare.measures import CORE_MARGIN, RATIO_SUM
from fairbed.testbed.compare.table import (
    ShownNumber,
    cells_csv,
    effect_tables,
    effects_csv,
    equivalence_text,
    heading_of,
    metrics_csv,
    p_text,
    shown_gap,
    shown_number,
    shown_value,
    tuning_csv,
    verdict_of,
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


def effects_tex(comparison: Comparison) -> str:
    """Return one table for each contrast and metric, with all its effects."""
    head = _comment(latex(comparison.name), len(comparison.seeds))
    lines = [head, "% needs \\usepackage{booktabs}"]
    for name, metric, effects in effect_tables(comparison):
        lines += _effects(comparison, name, metric, effects)
    return "\n".join(lines) + "\n"


def _effects(
    comparison: Comparison, name: str, metric: MetricSummary, effects: Sequence[Effect]
) -> Iterator[str]:
    has_margin = any(effect.equivalence is not None for effect in effects)
    has_flips = any(effect.p_sign_flip is not None for effect in effects)
    heads = ["kind", "effect", "$n$", "$p$"]
    heads += ["$p$, sign flips"] if has_flips else []
    heads += ["verdict", *(["equivalence"] if has_margin else [])]
    heading = metric.heading[:1].upper() + metric.heading[1:]
    unit = f" ({metric.unit})" if metric.unit and metric.scale != "log" else ""
    yield r"\begin{table}"
    yield r"\centering"
    yield rf"\caption{{{latex(f'{heading}{unit}: effects of contrast {name}.')}}}"
    yield rf"\label{{tab:{_label(f'{comparison.name}-{name}-{metric.key}')}}}"
    yield rf"\begin{{tabular}}{{ll{'r' * (len(heads) - 1)}}}"
    yield r"\toprule"
    yield _row(latex(""), heads)
    yield r"\midrule"
    for effect in effects:
        gap = effect.estimate
        shown = shown_number(gap, metric, by_interval=True)
        cells = [
            latex(effect.kind),
            _tex(shown, is_bold=gap.judgement in ("better", "worse"), mark=bool(gap.reason)),
            f"${gap.n}$",
            _p_value(gap.p_family),
            *([_p_value(effect.p_sign_flip)] if has_flips else []),
            latex(verdict_of(gap)),
            *([latex(equivalence_text(effect, metric))] if has_margin else []),
        ]
        yield _row(latex(effect.effect), cells)
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\par\smallskip"
    yield r"\begin{minipage}{\linewidth}"
    yield rf"\footnotesize {' '.join(_notes_of_effects(comparison, metric, effects))}"
    yield r"\end{minipage}"
    yield r"\end{table}"


def _notes_of_effects(
    comparison: Comparison, metric: MetricSummary, effects: Sequence[Effect]
) -> Iterator[str]:
    seeds, percent = len(comparison.seeds), rf"{100 * comparison.confidence:g}\,\%"
    what = "Relative effects, ratios of geometric means," if metric.scale == "log" else "Effects"
    yield (
        f"{what} over {seeds} seed{'s' * (seeds != 1)} with {percent} intervals (Student's t); "
        rf"{latex(f'{metric.better} is better')}."
    )
    if comparison.comparisons:
        yield (
            rf"$p$ is corrected by Holm's method over {comparison.comparisons} comparisons; bold: "
            rf"shown at {100 * FAMILY_LEVEL:.0f}\,\%."
        )
    if any(effect.p_sign_flip is not None for effect in effects):
        yield "$p$ of sign flips is not corrected."
    if any(effect.equivalence is not None for effect in effects):
        yield "Equivalence: two one-sided tests, corrected with the others."
    known = [e.smallest for e in effects if e.smallest is not None]
    if known:
        yield (
            f"An effect of {max(known):.2f} standard deviations (of it over seeds) would be shown "
            rf"in {100 * POWER:.0f}\,\% of grids."
        )
    if any(effect.estimate.is_clipped for effect in effects):
        yield f"${CLIPPED}$ Clipped to the range of the metric."
    if reasons := dict.fromkeys(e.estimate.reason for e in effects if e.estimate.reason):
        yield _typeset(latex(f"{'; '.join(reasons)}."), "", f"${NO_VERDICT}$ Not tested: ")
    if comparison.constants:
        yield _typeset(latex(f"{comparison.constants}."))


def _p_value(p: float | None) -> str:
    text = p_text(p)
    return "--" if text == MISSING else f"${text}$"


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", name)


def _table(comparison: Comparison, metrics: list[MetricSummary]) -> Iterator[str]:
    yield r"\begin{table}"
    yield r"\centering"
    yield rf"\caption{{{_caption(comparison, metrics)}}}"
    yield rf"\label{{tab:{_label(comparison.name)}}}"
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
    if untested := [m.heading for m in metrics if not m.is_tested]:
        yield _typeset(latex(f"Differences are not tested: {', '.join(untested)}."))
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
    utilities = comparison.utilities if {RATIO_SUM, CORE_MARGIN} & {*keys} else ""
    for line in (
        *(utilities, comparison.constants, comparison.weightings),
        *(comparison.steps, comparison.cohorts),
    ):
        if line:
            yield _typeset(latex(f"{line}."))


def _comment(name: Printable, seeds: int) -> str:
    return f"% fairbed compare: {name}, {seeds} seeds"


def _row(first: Printable, cells: list[str], before: str = "") -> str:
    return " & ".join([before + first, *cells]) + r" \\"


def _typeset(text: Printable, more: str = "", before: str = "") -> str:
    return before + text + more


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
        **(
            {"effects.csv": effects_csv(comparison), "effects.tex": effects_tex(comparison)}
            if comparison.effects
            else {}
        ),
        **({"tuning.csv": tuning_csv(comparison.tuning)} if comparison.tuning else {}),
        "compare.tex": tex(comparison),
    }
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
