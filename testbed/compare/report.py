r"""Write a comparison as JSON, CSV and LaTeX.

In LaTeX: `\input{compare.tex}`, with `\usepackage{booktabs}` in the preamble.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fairbed.testbed.compare.comparison import (
    ArmSummary,
    Comparison,
    Difference,
    Estimate,
    MetricSummary,
)
from fairbed.testbed.compare.table import cells_csv, enough_digits, heading_of, metrics_csv, number

COLUMNS = 4
"""Maximum number of metrics in one table: with intervals, they fit the width of a page."""

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def tex(comparison: Comparison) -> str:
    """Return tables of at most four metrics each: means, and differences from the baseline."""
    metrics = comparison.metrics
    parts = [metrics[start : start + COLUMNS] for start in range(0, len(metrics), COLUMNS)]
    head = f"% fairbed compare: {escaped(comparison.name)}, {len(comparison.seeds)} seeds"
    lines = [head, "% needs \\usepackage{booktabs}"]
    for index, part in enumerate(parts, 1):
        lines += ["", *_table(comparison, part, index)]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return text with the special characters of LaTeX escaped."""
    return re.sub(r"[\\{}&%$#_~^<>]", lambda match: _SPECIAL[match[0]], text)


def _table(comparison: Comparison, metrics: list[MetricSummary], index: int) -> Iterator[str]:
    yield r"\begin{table}"
    yield r"\centering"
    yield rf"\caption{{{_caption(comparison)}}}"
    yield rf"\label{{tab:{re.sub(r'[^A-Za-z0-9-]', '-', comparison.name)}-{index}}}"
    yield rf"\begin{{tabular}}{{l{'r' * len(metrics)}}}"
    yield r"\toprule"
    yield _row("arm", (escaped(heading_of(metric)) for metric in metrics))
    yield r"\midrule"
    for arm in comparison.arms:
        yield _row(escaped(arm.name), (_value(arm.values.get(m.key), m.digits) for m in metrics))
        if arm.differences:
            yield _row(r"\quad difference", (_gap(arm, metric) for metric in metrics))
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\end{table}"


def _caption(comparison: Comparison) -> str:
    headings = {metric.key: metric.heading for metric in comparison.metrics}
    primary = headings.get(comparison.primary, comparison.primary)
    percent = rf"{100 * comparison.confidence:g}\,\%"
    text = (
        f"{escaped(comparison.name)}: means over {len(comparison.seeds)} seeds with {percent} "
        f"intervals; differences from {escaped(comparison.baseline)}, paired by seed, in bold if "
        f"shown by Holm's method over {comparison.comparisons} comparisons; the primary metric is "
        f"{escaped(primary)}."
    )
    if comparison.weightings:
        text += f" {escaped(comparison.weightings)}."
    if comparison.horizon_s is None:
        return text
    horizon = number(comparison.horizon_s, 1)
    return f"{text} Times to a target are restricted to {horizon}\\,s."


def _row(first: str, cells: Iterator[str]) -> str:
    return " & ".join([first, *cells]) + r" \\"


def _value(found: Estimate | None, digits: int) -> str:
    return "--" if found is None else _with_interval(found, digits)


def _gap(arm: ArmSummary, metric: MetricSummary) -> str:
    gap = arm.differences.get(metric.key)
    return "--" if gap is None else _with_interval(gap, metric.digits)


def _with_interval(found: Estimate | Difference, digits: int) -> str:
    is_signed = isinstance(found, Difference)
    digits = enough_digits(found, digits)
    mean, low, high = (
        number(value, digits, is_signed=is_signed).replace(",", "{,}")
        for value in (found.mean, found.low, found.high)
    )
    body = f"${mean}$"
    if isinstance(found, Difference) and found.judgement != "unclear":
        body = rf"$\mathbf{{{mean}}}$"
    return body if found.low is None else rf"{body} {{\scriptsize $[{low},\,{high}]$}}"


def write_report(comparison: Comparison, out: Path) -> None:
    """Write all files except the figures into the grid's folder.

    Raises:
        OSError: A file cannot be written.
    """
    files = {
        "compare.json": msgspec.json.format(msgspec.json.encode(comparison)).decode() + "\n",
        "compare.csv": metrics_csv(comparison),
        "cells.csv": cells_csv(comparison),
        "compare.tex": tex(comparison),
    }
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
