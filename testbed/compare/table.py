"""The tables of a comparison, for a terminal, a pipe and a spreadsheet."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairbed.coordinator.report.quantities import MISSING
from fairbed.testbed.compare.comparison import (
    FRONT_RATE,
    FRONT_TIME,
    ArmSummary,
    CellSummary,
    Comparison,
    Difference,
    Estimate,
    MetricSummary,
)

HEADLINES = (FRONT_TIME, FRONT_RATE, "mape", "accuracy_mean", "accuracy_worst10")
"""Metrics with their own table with intervals, besides the times to a target."""
MAX_DIGITS = 6
"""Maximum number of decimal places."""
MARKS = {"better": "+", "worse": "-", "unclear": ""}
COLOURS = {"better": "green", "worse": "red", "unclear": "default"}


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of text; all columns but the first are numbers."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(comparison: Comparison) -> Iterator[TextTable]:
    """Yield a table of all metrics, the Pareto front, and tables of single metrics."""
    yield _overview(comparison)
    yield _front(comparison)
    for metric in comparison.metrics:
        if metric.key in HEADLINES or metric.key.startswith("time_to_"):
            yield _one_metric(comparison, metric)


def plain(comparison: Comparison) -> str:
    """Return the tables as aligned text."""
    return "\n".join([*_plain_lines(comparison), *notes(comparison)])


def print_rich(comparison: Comparison) -> None:
    """Print the tables to a terminal, in colour."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as RichTable

    console = Console(highlight=False)
    for table in tables(comparison):
        drawn = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
        for column, heading in enumerate(table.headings):
            drawn.add_column(heading, justify="right" if column else "left", no_wrap=not column)
        for row in table.rows:
            drawn.add_row(escape(row[0]), *(_coloured(cell) for cell in row[1:]))
        console.print(drawn)
    for line in notes(comparison):
        console.print(line, markup=False)


def notes(comparison: Comparison) -> list[str]:
    """Return an explanation of the tables, and every warning."""
    percent = f"{100 * comparison.confidence:g} %"
    lines = [
        f"Brackets are {percent} confidence intervals of means over seeds. + and - mark arms that "
        f"are better or worse than {comparison.baseline}: the interval of their differences, "
        "paired by seed, excludes 0.",
    ]
    if comparison.horizon_s is not None:
        lines.append(
            f"Times to a target are means of min(T, {comparison.horizon_s:,.1f} s); "
            + "; ".join(f"{t.accuracy:.3f} is {t.rule}" for t in comparison.targets)
            + "."
        )
    if comparison.weightings:
        lines.append(f"{comparison.weightings}.")
    return [*lines, *(f"warning: {line}" for line in comparison.warnings)]


def metrics_csv(comparison: Comparison) -> str:
    """Return CSV with a row for each arm and metric."""
    heads = ("arm", "metric", "unit", "n", "mean", "low", "high")
    more = ("difference", "difference_low", "difference_high", "difference_n", "judgement")
    rows: list[Sequence[object]] = [(*heads, *more)]
    for arm in comparison.arms:
        for metric in comparison.metrics:
            value, gap = arm.values.get(metric.key), arm.differences.get(metric.key)
            if value is None:
                continue
            difference = (
                (gap.mean, gap.low, gap.high, gap.n, gap.judgement) if gap else (None,) * len(more)
            )
            rows.append(
                (
                    arm.name,
                    metric.key,
                    metric.unit,
                    value.n,
                    value.mean,
                    value.low,
                    value.high,
                    *difference,
                )
            )
    return _csv(rows)


def cells_csv(comparison: Comparison) -> str:
    """Return CSV with a row for each cell, with every metric."""
    keys = [metric.key for metric in comparison.metrics]

    def row(cell: CellSummary) -> Sequence[object]:
        values = [cell.values.get(key) for key in keys]
        return (cell.arm, cell.seed, cell.folder, cell.problem, *values)

    heads = ("arm", "seed", "folder", "problem", *keys)
    return _csv([heads, *(row(cell) for cell in comparison.cells)])


def number(value: float | None, digits: int, *, is_signed: bool = False) -> str:
    """Return a number of a metric as text."""
    if value is None:
        return MISSING
    return f"{value:{'+' if is_signed else ''},.{digits}f}"


def with_interval(found: Estimate | Difference, digits: int) -> str:
    """Return a mean and its interval as text."""
    is_signed = isinstance(found, Difference)
    digits = enough_digits(found, digits)
    mean, low, high = (
        number(value, digits, is_signed=is_signed) for value in (found.mean, found.low, found.high)
    )
    return mean if found.low is None else f"{mean} [{low}, {high}]"


def enough_digits(found: Estimate | Difference, digits: int) -> int:
    """Return the decimal places that show two significant digits of a small difference."""
    largest = max(abs(value) for value in (found.mean, found.low, found.high) if value is not None)
    if not isinstance(found, Difference) or largest == 0.0:
        return digits
    return min(MAX_DIGITS, max(digits, 1 - math.floor(math.log10(largest))))


def heading_of(metric: MetricSummary) -> str:
    """Return a metric's heading and its unit."""
    return f"{metric.heading}, {metric.unit}" if metric.unit else metric.heading


def _overview(comparison: Comparison) -> TextTable:
    short = (f"{m.short}, {m.unit}" if m.unit else m.short for m in comparison.metrics)
    headings = ("arm", "seeds", "beta", *short)
    rows = tuple(
        (
            arm.name,
            str(len(arm.seeds)),
            f"{arm.beta:g}",
            *(_marked(arm, metric) for metric in comparison.metrics),
        )
        for arm in comparison.arms
    )
    return TextTable(f"{comparison.name}: means over seeds", headings, rows)


def _marked(arm: ArmSummary, metric: MetricSummary) -> str:
    value, gap = arm.values.get(metric.key), arm.differences.get(metric.key)
    if value is None:
        return MISSING
    mark = MARKS[gap.judgement] if gap else ""
    return f"{number(value.mean, metric.digits)}{mark or ' '}"


def _front(comparison: Comparison) -> TextTable:
    def mean(arm: ArmSummary, key: str) -> float | None:
        return arm.values[key].mean if key in arm.values else None

    known = [arm for arm in comparison.arms if arm.is_on_front is not None]
    known.sort(key=lambda arm: (mean(arm, FRONT_TIME) or 0.0, arm.name))
    rows = tuple(
        (
            arm.name,
            number(mean(arm, FRONT_TIME), 1),
            number(mean(arm, FRONT_RATE), 3),
            number((mean(arm, FRONT_RATE) or 0.0) - arm.beta, 3, is_signed=True),
            "yes" if arm.is_on_front else "no",
        )
        for arm in known
    )
    headings = ("arm", "total time, s", "min rate", "rate - beta", "on the front")
    return TextTable("Pareto front: total time against min rate", headings, rows)


def _one_metric(comparison: Comparison, metric: MetricSummary) -> TextTable:
    is_time_to = metric.key in {target.key for target in comparison.targets}
    rows = tuple(
        (
            arm.name,
            with_interval(arm.values[metric.key], metric.digits),
            *((arm.reached[metric.key],) if is_time_to else ()),
            *_against(arm.differences.get(metric.key), metric.digits),
        )
        for arm in comparison.arms
        if metric.key in arm.values
    )
    difference = f"against {comparison.baseline}"
    reached = ("reached",) if is_time_to else ()
    title = f"{heading_of(metric)} ({metric.better} is better)"
    return TextTable(title, ("arm", "mean", *reached, difference, ""), rows)


def _against(gap: Difference | None, digits: int) -> tuple[str, str]:
    if gap is None:
        return "", ""
    return with_interval(gap, digits), gap.judgement


def _plain_lines(comparison: Comparison) -> Iterator[str]:
    for table in tables(comparison):
        cells = [table.headings, *table.rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(table.headings))]
        yield table.title
        for row in cells:
            name, *values = row
            aligned = (f"{value:>{width}}" for value, width in zip(values, widths[1:], strict=True))
            yield "  ".join([f"  {name:<{widths[0]}}", *aligned]).rstrip()
        yield ""


def _coloured(cell: str) -> str:
    from rich.markup import escape

    for word, colour in COLOURS.items():
        mark = MARKS[word]
        if cell == word or (mark and cell.endswith(mark)):
            return f"[{colour}]{escape(cell)}[/]"
    return escape(cell)


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
