"""The tables of a comparison, for a terminal, a pipe and a spreadsheet."""

import csv
import io
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fairbed.coordinator.report.quantities import MISSING
from fairbed.testbed.compare.comparison import (
    FRONT_RATE,
    FRONT_TIME,
    WORST_TENTHS,
    ArmSummary,
    CellSummary,
    Comparison,
    MetricSummary,
    three_digits,
)
from fairbed.testbed.compare.contrasts import POWER, Effect
from fairbed.testbed.compare.differences import (
    FAMILY_LEVEL,
    PRIMARY_SHARE,
    Difference,
    Estimate,
)
from fairbed.testbed.compare.measures import keys_with_table
from fairbed.testbed.compare.tuning.result import TuningSummary, tuning_rows
from fairbed.testbed.progress import rich_console
from fairbed.wire.printable import Printable, csv_cell

GAP = 3
"""Characters between two columns in a terminal."""
SMALLEST_P = 0.001
"""Smaller p-values are printed as `<0.001`."""
MAX_DIGITS = 6
"""Maximum number of decimal places."""
LARGEST_PLAIN = 1e9
"""Larger numbers are printed with an exponent."""
CLIPPED = "\u2020"
"""Dagger behind an interval that was clipped."""
MARKS = {"better": "+", "worse": "-", "unclear": "", "no verdict": "", "no power": ""}
COLOURS = {"better": "green", "worse": "red"}
_MARKED = re.compile(r"[0-9%](?P<mark>[+-])(?: |$)")


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of text; all columns but the first are numbers."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(comparison: Comparison) -> Iterator[TextTable]:
    """Yield a table of all metrics, the primary metric, the front, and tables of other metrics."""
    yield from _contrasts(comparison)
    yield from _overviews(comparison)
    for metric in comparison.metrics:
        if metric.key == comparison.primary:
            yield _one_metric(comparison, metric)
    yield _front(comparison)
    if comparison.pareto:
        yield _pareto(comparison)
    if comparison.budgets:
        yield _at_budgets(comparison)
    shown = {*keys_with_table(), *(target.key for target in comparison.targets)}
    if comparison.worst is not None:
        shown = shown - {*WORST_TENTHS} | {comparison.worst}
    shown -= {comparison.primary}
    for metric in comparison.metrics:
        if metric.key in shown:
            yield _one_metric(comparison, metric)


def plain(comparison: Comparison) -> str:
    """Return the tables as aligned text."""
    return "\n".join([*_plain_lines(comparison), *notes(comparison)])


def print_rich(comparison: Comparison) -> None:
    """Print the tables to a terminal, in colour."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table as RichTable

    console = rich_console(sys.stdout)
    for table in (part for whole in tables(comparison) for part in _split(whole, console.width)):
        drawn = RichTable(title=escape(table.title), title_justify="left", box=box.SIMPLE_HEAD)
        first, *others = map(escape, table.headings)
        drawn.add_column(first, no_wrap=True)
        for heading in others:
            drawn.add_column(heading, justify="right")
        for row in table.rows:
            drawn.add_row(*(_coloured(cell, i > 0) for i, cell in enumerate(row)))
        console.print(drawn)
    for line in notes(comparison):
        console.print(line, markup=False)


def notes(comparison: Comparison) -> list[str]:
    """Return an explanation of the tables, and every warning."""
    primary = {m.key: m.heading for m in comparison.metrics}.get(comparison.primary)
    first = "contrasts" if comparison.effects else "differences of the primary metric"
    marks = (
        f"+ and - mark arms that are better or worse than {comparison.baseline}: the "
        f"{comparison.comparisons} differences of this grid, paired by seed, were tested together "
        f"(Holm; {first} begin with {100 * PRIMARY_SHARE:g} % of the level), so at "
        f"most {100 * FAMILY_LEVEL:.0f} % of grids of equal arms have any mark."
    )
    tested = marks if comparison.comparisons else "No difference was tested."
    return [
        f"Primary metric: {primary or comparison.primary} (key `primary` of a grid file), "
        "marked by *.",
        f"{brackets(comparison)} {tested}",
        *power_of(comparison),
        *(comparison.tuning.power if comparison.tuning is not None else ()),
        *reading(comparison),
        *(f"warning: {line}" for line in comparison.warnings),
    ]


def power_of(comparison: Comparison) -> list[str]:
    """Return what the contrasts can show with these seeds; empty without a tested one."""
    known = [(e.smallest, e.estimate.n) for e in comparison.effects if e.smallest is not None]
    if not known:
        return []
    smallest, n = max(known)
    return [
        f"Power: {n} seeds show an effect of {smallest:.2f} standard deviations (of it over seeds) "
        f"in {100 * POWER:.0f} % of grids, as the first verdict of the family; unclear is not none."
    ]


def brackets(comparison: Comparison) -> str:
    """Return what the brackets are."""
    percent = f"{100 * comparison.confidence:g} %"
    return f"Brackets are {percent} confidence intervals of one mean over seeds (Student's t)."


def reading(comparison: Comparison) -> list[str]:
    """Return how to read the means and intervals, and what they lack, one line each."""
    lines = list(comparison.scales)
    if comparison.has_clipped:
        lines.append(f"{CLIPPED}: an end of the interval is clipped to the range of the metric.")
    if comparison.horizon_s is not None:
        horizon = three_digits(comparison.horizon_s)
        lines.append(
            f"Times to a target are means of min(T, {horizon} s), beside the "
            "share of runs that reached it by their end; "
            + "; ".join(f"{t.accuracy:.3f} is {t.rule}" for t in comparison.targets)
            + "."
        )
    lines += comparison.undefined
    if comparison.has_no_verdicts:
        lines.append(
            "No verdict: an arm has none by a metric that one of its seeds or of the baseline's "
            "lacks, and none at all if that is the primary metric. n is the number of seeds with "
            "the metric; differences are those of the seeds in which both have it."
        )
    found = (
        comparison.utilities,
        comparison.constants,
        comparison.weightings,
        comparison.steps,
        comparison.cohorts,
    )
    return [*lines, *(f"{line}." for line in found if line)]


def metrics_csv(comparison: Comparison) -> str:
    """Return CSV with a row for each arm and metric."""
    heads = ("arm", "metric", "unit", "scale", "seeds", "n", "mean", "low", "high", "clipped")
    more = ("", "_low", "_high", "_clipped", "_n", "_resolution", "_p", "_p_family")
    rows: list[Sequence[object]] = [
        (
            *heads,
            "reached",
            "undefined",
            *(f"difference{part}" for part in more),
            "judgement",
            "no_verdict",
        )
    ]
    for arm in comparison.arms:
        for m in comparison.metrics:
            value, gap = arm.values.get(m.key), arm.differences.get(m.key)
            lacks = arm.missing.get(m.key)
            rows.append(
                (
                    *(arm.name, m.key, m.unit, m.scale, arm.n_seeds(m.key)),
                    *(
                        (value.n, value.mean, value.low, value.high, value.is_clipped)
                        if value
                        else (0, None, None, None, None)
                    ),
                    arm.reached.get(m.key),
                    lacks.reason if lacks else None,
                    *(
                        (gap.mean, gap.low, gap.high, gap.is_clipped, gap.n, gap.resolution)
                        if gap
                        else (None,) * 6
                    ),
                    *((gap.p, gap.p_family, gap.judgement, gap.reason) if gap else (None,) * 4),
                )
            )
    return csv_of(rows)


def effects_csv(comparison: Comparison) -> str:
    """Return CSV with a row for each effect of a contrast and metric."""
    names = ("contrast", "kind", "effect", "metric")
    gap = ("mean", "low", "high", "n", "resolution", "p", "p_family", "judgement", "reason")
    pair = ("margin", "p", "p_family", "is_shown")
    rows: list[Sequence[object]] = [
        (*names, *gap, "p_sign_flip", *(f"equivalence_{key}" for key in pair), "smallest_sd")
    ]
    for effect in comparison.effects:
        rows.append(
            (
                *(getattr(effect, key) for key in names),
                *(getattr(effect.estimate, key) for key in gap),
                effect.p_sign_flip,
                *(getattr(effect.equivalence, key, None) for key in pair),
                effect.smallest,
            )
        )
    return csv_of(rows)


def tuning_csv(tuning: TuningSummary) -> str:
    """Return CSV with a row for each arm, point and seed of a search for constants."""
    return csv_of(list(tuning_rows(tuning)))


def cells_csv(comparison: Comparison) -> str:
    """Return CSV with a row for each cell, with every metric."""
    keys = [metric.key for metric in comparison.metrics]

    def row(cell: CellSummary) -> Sequence[object]:
        values = [cell.values.get(key) for key in keys]
        why = "; ".join(f"{key}: {reason}" for key, reason in cell.missing.items())
        return (cell.arm, cell.seed, cell.folder, cell.problem, *values, why)

    heads = ("arm", "seed", "folder", "problem", *keys, "undefined")
    return csv_of([heads, *(row(cell) for cell in comparison.cells)])


def number(value: float | None, digits: int, *, is_signed: bool = False) -> str:
    """Return a number of a metric as text."""
    if value is None:
        return MISSING
    sign = "+" if is_signed else ""
    if abs(value) >= LARGEST_PLAIN:
        return f"{value:{sign}.1e}"
    return f"{value:{sign},.{digits}f}"


@dataclass(frozen=True, slots=True)
class ShownNumber:
    """A mean with its interval, and what belongs beside it, as texts; empty if there is none."""

    mean: str
    interval: tuple[str, str] | None
    is_percent: bool
    is_clipped: bool
    n: str
    """Seeds that have the metric, `4/6` or pairs, `1`, where some lack it."""
    reached: str
    """Share of runs that reached a target."""

    def __str__(self) -> str:
        """Return all of it, as in a table of plain text."""
        text = f"{self.mean} %" if self.is_percent else self.mean
        if self.interval is not None:
            text += f" [{self.interval[0]}, {self.interval[1]}]"
        return f"{text}{CLIPPED if self.is_clipped else ''}{self.beside}"

    @property
    def beside(self) -> str:
        """What is printed behind the interval."""
        n = f" n={self.n}" if self.n else ""
        return f"{n} ({self.reached})" if self.reached else n


def shown_value(
    arm: ArmSummary, metric: MetricSummary, *, by_interval: bool = False
) -> ShownNumber:
    """Return the mean of an arm.

    Args:
        arm: The arm.
        metric: The metric.
        by_interval: The interval alone gives the decimal places, as in a paper; otherwise the
            metric has a least number of them.
    """
    found = arm.values.get(metric.key)
    n, reached = of_seeds(arm, metric.key), arm.reached.get(metric.key, "")
    if found is None:
        return ShownNumber(MISSING, None, False, False, n, "")
    n = n if metric.key in arm.missing else ""
    return shown_number(found, metric, n, reached, by_interval=by_interval)


def shown_gap(
    arm: ArmSummary, metric: MetricSummary, comparison: Comparison, *, by_interval: bool = False
) -> ShownNumber | None:
    """Return the difference of an arm from the baseline; None if there is none.

    The arguments are those of `shown_value`, and the comparison.
    """
    gap = arm.differences.get(metric.key)
    if gap is None:
        return None
    baseline = next(one for one in comparison.arms if one.name == comparison.baseline)
    fewer = gap.n < max(arm.n_seeds(metric.key), baseline.n_seeds(metric.key))
    return shown_number(gap, metric, str(gap.n) if fewer else "", by_interval=by_interval)


def shown_number(
    found: Estimate | Difference,
    metric: MetricSummary,
    n: str = "",
    reached: str = "",
    *,
    by_interval: bool = False,
) -> ShownNumber:
    """Return a mean with the text of its seeds and of its share of reached targets, if any."""
    is_signed = isinstance(found, Difference)
    is_percent = is_signed and metric.scale == "log"
    factor, least = (100.0, 1) if is_percent else (1.0, metric.digits)
    ends = [None if v is None else factor * v for v in (found.mean, found.low, found.high)]
    digits = _digits(ends, least, is_difference=is_signed, by_interval=by_interval)
    mean, low, high = (number(end, digits, is_signed=is_signed) for end in ends)
    interval = None if found.low is None else (low, high)
    return ShownNumber(mean, interval, is_percent, found.is_clipped, n, reached)


def _digits(
    ends: Sequence[float | None], least: int, *, is_difference: bool, by_interval: bool
) -> int:
    """Return the decimal places that show two significant digits of half the interval.

    Without an interval, or with one of no width, two of the largest number. Plain text has at most
    three significant digits of the largest number, unless the metric has more.

    Args:
        ends: Mean and both ends.
        least: Least decimal places, for a table of plain text.
        is_difference: Small differences have more decimal places, small means do not.
        by_interval: There is no least number.
    """
    known = [end for end in ends if end is not None]
    half = (known[-1] - known[-2]) / 2.0 if len(known) == 3 else 0.0
    largest = max(abs(end) for end in known)
    if largest < 10.0**-MAX_DIGITS and not is_difference:
        return least
    if half > 0.0:
        wanted = 1 - math.floor(math.log10(half))
        if by_interval:
            return min(MAX_DIGITS, max(0, wanted))
        return min(MAX_DIGITS, max(least, min(wanted, 2 - math.floor(math.log10(largest)))))
    if largest == 0.0 or not (is_difference or by_interval):
        return least
    return min(MAX_DIGITS, max(least, 1 - math.floor(math.log10(largest))))


def of_seeds(arm: ArmSummary, key: str) -> str:
    """Return the number of seeds with a metric, and of how many if some lack it: `4/6`."""
    n_seeds, lacks = arm.n_seeds(key), arm.missing.get(key)
    return f"{n_seeds - len(lacks.seeds)}/{n_seeds}" if lacks else f"{n_seeds}"


def heading_of(metric: MetricSummary) -> str:
    """Return a metric's heading and its unit."""
    return f"{metric.heading}, {metric.unit}" if metric.unit else metric.heading


def _overviews(comparison: Comparison) -> Iterator[TextTable]:
    """Yield a table of the metrics whose differences are tested, and one of the others."""
    budgets = {budget.key for budget in comparison.budgets} - {comparison.primary}
    metrics = [metric for metric in comparison.metrics if metric.key not in budgets]
    has_weights = comparison.has_training
    weights = ("weights",) if has_weights else ()
    own = [metric for metric in metrics if metric.is_tested]
    yield TextTable(
        f"{comparison.name}: means over seeds",
        ("arm", "seeds", "beta", *weights, *(_short(comparison, m) for m in own)),
        tuple(
            (
                arm.name,
                _seeds(comparison, arm),
                f"{arm.beta:g}",
                *((arm.weights,) if has_weights else ()),
                *(_marked(arm, metric) for metric in own),
            )
            for arm in comparison.arms
        ),
    )
    others = [metric for metric in metrics if not metric.is_tested]
    if others:
        yield TextTable(
            f"{comparison.name}: means over seeds, whose differences are not tested unless a grid "
            "declares them",
            ("arm", *(_short(comparison, m) for m in others)),
            tuple(
                (arm.name, *(_marked(arm, metric) for metric in others)) for arm in comparison.arms
            ),
        )


def effect_tables(
    comparison: Comparison,
) -> Iterator[tuple[str, MetricSummary, list[Effect]]]:
    """Yield name of the contrast, metric and effects of each table of effects."""
    metrics = {metric.key: metric for metric in comparison.metrics}
    of_table = dict[tuple[str, str], list[Effect]]()
    for effect in comparison.effects:
        of_table.setdefault((effect.contrast, effect.metric), []).append(effect)
    for (name, key), effects in of_table.items():
        yield name, metrics[key], effects


def _contrasts(comparison: Comparison) -> Iterator[TextTable]:
    """Yield a table for each contrast and metric."""
    for name, metric, effects in effect_tables(comparison):
        has_margin = any(effect.equivalence is not None for effect in effects)
        what = "relative, ratios of geometric means" if metric.scale == "log" else "differences"
        headings = ("effect", "", what, "n", "corrected p", "sign flips p", "")
        yield TextTable(
            f"contrast {name}: {heading_of(metric)} ({metric.better} is better)",
            (*headings, *(("equivalent",) if has_margin else ())),
            tuple(_effect_row(effect, metric, has_margin=has_margin) for effect in effects),
        )


def _effect_row(effect: Effect, metric: MetricSummary, *, has_margin: bool) -> tuple[str, ...]:
    gap = effect.estimate
    row = (
        *(effect.effect, effect.kind, str(shown_number(gap, metric)), str(gap.n)),
        *(p_text(gap.p_family), p_text(effect.p_sign_flip)),
        verdict_of(gap),
    )
    return (*row, equivalence_text(effect, metric)) if has_margin else row


def equivalence_text(effect: Effect, metric: MetricSummary) -> str:
    """Return whether an effect is shown to be within its margin, in words."""
    pair = effect.equivalence
    if pair is None or pair.p_family is None:
        return MISSING
    factor, unit = (100.0, " %") if metric.scale == "log" else (1.0, "")
    within = f"within {factor * pair.margin:g}{unit}"
    return f"{within}, p {p_text(pair.p_family)}" if pair.is_shown else f"not shown {within}"


def verdict_of(gap: Difference) -> str:
    """Return the verdict on a difference in words."""
    return "not tested" if gap.judgement == "no verdict" and not gap.reason else gap.judgement


def _seeds(comparison: Comparison, arm: ArmSummary) -> str:
    """Return the number of finished cells, and of how many if some failed."""
    done = len(arm.seeds)
    n_seeds = max((arm.n_seeds(metric.key) for metric in comparison.metrics), default=done)
    return f"{done}/{n_seeds}" if n_seeds > done else f"{done}"


def _short(comparison: Comparison, metric: MetricSummary) -> str:
    mark = "*" if metric.key == comparison.primary else ""
    return f"{metric.short}{mark}, {metric.unit}" if metric.unit else f"{metric.short}{mark}"


def _marked(arm: ArmSummary, metric: MetricSummary) -> str:
    gap, value = arm.differences.get(metric.key), shown_value(arm, metric)
    if metric.key not in arm.values:
        return MISSING
    if arm.values[metric.key].n == len(arm.seeds):
        value = replace(value, n="")
    mark = MARKS[gap.judgement] if gap else ""
    return f"{value.mean}{mark}{value.beside}" if mark or value.beside else f"{value.mean} "


def _front(comparison: Comparison) -> TextTable:
    metrics = {metric.key: metric for metric in comparison.metrics}
    known = [arm for arm in comparison.arms if arm.is_on_front is not None]
    known.sort(key=lambda arm: (arm.values[FRONT_TIME].mean, arm.name))
    rows = tuple(
        (
            arm.name,
            *(
                f"{shown.mean}{shown.beside}"
                for shown in (shown_value(arm, metrics[key]) for key in (FRONT_TIME, FRONT_RATE))
            ),
            number(arm.values[FRONT_RATE].mean - arm.beta, 3, is_signed=True),
            "yes" if arm.is_on_front else "no",
        )
        for arm in known
    )
    headings = ("arm", "total time, s", "min rate", "rate - beta", "on the front")
    return TextTable("Pareto front: total time against min rate", headings, rows)


MAX_DOMINATING = 3
"""Most arms that a cell of a table names."""


def _pareto(comparison: Comparison) -> TextTable:
    """Return which arms are better in mean and worst tenth, by means over seeds."""
    metrics = {metric.key: metric for metric in comparison.metrics}
    pair = [metrics[key] for key in comparison.pareto]
    rows = []
    for arm in comparison.arms:
        if arm.dominated_by is None:
            continue
        by = [f"{name} ({seeds} seeds)" for name, seeds in arm.dominated_by.items()]
        more = f" and {len(by) - MAX_DOMINATING} more" if len(by) > MAX_DOMINATING else ""
        shown = [shown_value(arm, metric) for metric in pair]
        texts = (f"{one.mean}{one.beside}" for one in shown)
        named = f"{', '.join(by[:MAX_DOMINATING])}{more}" or "none"
        rows.append((arm.name, *texts, "no" if by else "yes", named))
    title = f"Pareto front: {pair[0].heading} against {pair[1].heading}, by means, not tested"
    return TextTable(
        title,
        ("arm", *(heading_of(metric) for metric in pair), "on the front", "dominated by"),
        tuple(rows),
    )


def _at_budgets(comparison: Comparison) -> TextTable:
    """Return the metric of equal budgets at each of them, and its differences."""
    metrics = {metric.key: metric for metric in comparison.metrics}
    known = [budget for budget in comparison.budgets if budget.key in metrics]
    rows = tuple(
        (
            arm.name,
            *(text for b in known for text in _value_and_gap(comparison, arm, metrics[b.key])),
        )
        for arm in comparison.arms
    )
    against = f"against {comparison.baseline}"
    headings = tuple(text for budget in known for text in (f"at {budget.text}", against))
    title = f"{comparison.budget_heading} at the largest budgets that every run reached"
    return TextTable(title, ("arm", *headings), rows)


def _value_and_gap(
    comparison: Comparison, arm: ArmSummary, metric: MetricSummary
) -> tuple[str, str]:
    value, gap = shown_value(arm, metric), shown_gap(arm, metric, comparison)
    if gap is None:
        return f"{value.mean}{value.beside}", ""
    judgement = arm.differences[metric.key].judgement
    return f"{value.mean}{value.beside}", f"{gap}{MARKS[judgement] or ' '}"


def _one_metric(comparison: Comparison, metric: MetricSummary) -> TextTable:
    is_time_to = metric.key in {target.key for target in comparison.targets}
    rows = tuple(
        (
            arm.name,
            str(replace(shown_value(arm, metric), n="", reached="")),
            of_seeds(arm, metric.key),
            *((arm.reached[metric.key],) if is_time_to else ()),
            *_against(comparison, arm, metric),
        )
        for arm in comparison.arms
    )
    difference = f"against {comparison.baseline}"
    reached = ("reached",) if is_time_to else ()
    primary = "primary metric: " if metric.key == comparison.primary else ""
    mean = "geometric mean" if metric.scale == "log" else "mean"
    title = f"{primary}{heading_of(metric)} ({metric.better} is better)"
    headings = ("arm", mean, "n", *reached, difference, "pairs", "corrected p", "")
    return TextTable(title, headings, rows)


def _against(
    comparison: Comparison, arm: ArmSummary, metric: MetricSummary
) -> tuple[str, str, str, str]:
    gap, shown = arm.differences.get(metric.key), shown_gap(arm, metric, comparison)
    if gap is None or shown is None:
        is_baseline = arm.name == comparison.baseline
        return ("", "", "", "") if is_baseline else (MISSING, "0", MISSING, "no verdict")
    return str(replace(shown, n="")), str(gap.n), p_text(gap.p_family), verdict_of(gap)


def p_text(p: float | None) -> str:
    """Return a p-value as text."""
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


def _coloured(cell: str, is_value: bool) -> str:
    from rich.markup import escape

    found = _MARKED.search(cell) if is_value else None
    word = {"+": "better", "-": "worse"}[found["mark"]] if found else cell
    has_colour = is_value and word in COLOURS
    return f"[{COLOURS[word]}]{escape(cell)}[/]" if has_colour else escape(cell)


def csv_of(rows: Sequence[Sequence[object]]) -> str:
    """Return rows as CSV; a text that a spreadsheet would evaluate is marked."""
    return _csv_text([_csv_cell(value) for value in row] for row in rows)


def _csv_cell(value: object) -> Printable | float | None:
    return value if value is None or isinstance(value, int | float) else csv_cell(str(value))


def _csv_text(rows: Iterable[Sequence[Printable | float | None]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
