"""The tables of a comparison, for a terminal, a pipe and a spreadsheet."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairbed.coordinator.report.quantities import MISSING
from fairbed.testbed.compare.comparison import (
    FAMILY_LEVEL,
    FRONT_RATE,
    FRONT_TIME,
    PRIMARY_SHARE,
    ArmSummary,
    CellSummary,
    Comparison,
    Difference,
    Estimate,
    MetricSummary,
)

HEADLINES = (
    FRONT_TIME,
    "device_s",
    FRONT_RATE,
    "mape",
    "accuracy_mean",
    "accuracy_worst10",
    "accuracy_worst10_shrunken",
    "auroc_mean",
    "rmse_mean",
    "rmse_worst10",
    "personal_accuracy_mean",
    "benign_accuracy_mean",
)
"""Metrics with their own table with intervals, besides the primary one and times to a target."""
GAP = 3
"""Characters between two columns in a terminal."""
SMALLEST_P = 0.001
"""Smaller p-values are printed as `<0.001`."""
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
    """Yield a table of all metrics, the primary metric, the front, and tables of other metrics."""
    yield _overview(comparison)
    for metric in comparison.metrics:
        if metric.key == comparison.primary:
            yield _one_metric(comparison, metric)
    yield _front(comparison)
    if comparison.budgets:
        yield _at_budgets(comparison)
    shown = {*HEADLINES, *(target.key for target in comparison.targets)} - {comparison.primary}
    for metric in comparison.metrics:
        if metric.key in shown:
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
    for table in (part for whole in tables(comparison) for part in _split(whole, console.width)):
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
    primary = {m.key: m.heading for m in comparison.metrics}.get(comparison.primary)
    marks = (
        f"+ and - mark arms that are better or worse than {comparison.baseline}: the "
        f"{comparison.comparisons} differences of this grid, paired by seed, were tested together "
        f"(Holm; the primary metric begins with {100 * PRIMARY_SHARE:g} % of the level), so at "
        f"most {100 * FAMILY_LEVEL:.0f} % of grids of equal arms have any mark."
    )
    lines = [
        f"Primary metric: {primary or comparison.primary} (key `primary` of a grid file), "
        "marked by *.",
        f"Brackets are {percent} confidence intervals of one mean over seeds (Student's t). "
        f"{marks if comparison.comparisons else 'No difference was tested.'}",
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
    more = tuple(f"difference{part}" for part in ("", "_low", "_high", "_n", "_p", "_p_family"))
    more += ("judgement",)
    rows: list[Sequence[object]] = [(*heads, *more)]
    for arm in comparison.arms:
        for metric in comparison.metrics:
            value, gap = arm.values.get(metric.key), arm.differences.get(metric.key)
            if value is None:
                continue
            difference = (
                (gap.mean, gap.low, gap.high, gap.n, gap.p, gap.p_family, gap.judgement)
                if gap
                else (None,) * len(more)
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
    budgets = {budget.key for budget in comparison.budgets} - {comparison.primary}
    metrics = [metric for metric in comparison.metrics if metric.key not in budgets]
    weights = ("weights",) if comparison.has_training else ()
    headings = ("arm", "seeds", "beta", *weights, *(_short(comparison, m) for m in metrics))
    rows = tuple(
        (
            arm.name,
            str(len(arm.seeds)),
            f"{arm.beta:g}",
            *((arm.weights,) if comparison.has_training else ()),
            *(_marked(arm, metric) for metric in metrics),
        )
        for arm in comparison.arms
    )
    return TextTable(f"{comparison.name}: means over seeds", headings, rows)


def _short(comparison: Comparison, metric: MetricSummary) -> str:
    mark = "*" if metric.key == comparison.primary else ""
    return f"{metric.short}{mark}, {metric.unit}" if metric.unit else f"{metric.short}{mark}"


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


def _at_budgets(comparison: Comparison) -> TextTable:
    """Return the metric of equal budgets at each of them, and its differences."""
    metrics = {metric.key: metric for metric in comparison.metrics}
    known = [budget for budget in comparison.budgets if budget.key in metrics]
    rows = tuple(
        (arm.name, *(text for b in known for text in _value_and_gap(arm, metrics[b.key])))
        for arm in comparison.arms
    )
    against = f"against {comparison.baseline}"
    headings = tuple(text for budget in known for text in (f"at {budget.text}", against))
    title = f"{comparison.budget_heading} at the largest budgets that every run reached"
    return TextTable(title, ("arm", *headings), rows)


def _value_and_gap(arm: ArmSummary, metric: MetricSummary) -> tuple[str, str]:
    value, gap = arm.values.get(metric.key), arm.differences.get(metric.key)
    if value is None:
        return MISSING, ""
    mean = number(value.mean, metric.digits)
    if gap is None:
        return mean, ""
    return mean, f"{with_interval(gap, metric.digits)}{MARKS[gap.judgement] or ' '}"


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
    primary = "primary metric: " if metric.key == comparison.primary else ""
    title = f"{primary}{heading_of(metric)} ({metric.better} is better)"
    return TextTable(title, ("arm", "mean", *reached, difference, "corrected p", ""), rows)


def _against(gap: Difference | None, digits: int) -> tuple[str, str, str]:
    if gap is None:
        return "", "", ""
    return with_interval(gap, digits), _p(gap.p_family), gap.judgement


def _p(p: float | None) -> str:
    if p is None:
        return MISSING
    return f"<{SMALLEST_P:g}" if p < SMALLEST_P else f"{p:.3f}"


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


def _split(table: TextTable, width: int) -> Iterator[TextTable]:
    """Yield parts of a table, each with the first column and at most `width` characters wide.

    A part has at least one other column, and may be wider then.
    """
    cells = [table.headings, *table.rows]
    widths = [GAP + max(len(row[at]) for row in cells) for at in range(len(table.headings))]
    parts, left = list[list[int]](), 0
    for at in range(1, len(widths)):
        if widths[at] > left:
            parts.append([0])
            left = width - GAP - widths[0]
        parts[-1].append(at)
        left -= widths[at]
    for number, part in enumerate(parts):
        headings, *rows = (tuple(row[at] for at in part) for row in cells)
        yield TextTable(f"{table.title}{' (continued)' if number else ''}", headings, tuple(rows))


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
