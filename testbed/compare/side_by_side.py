"""The differences of several runs, in words and tables of one page."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fairbed.coordinator.report.html import RunComparison, SideTable, write_report
from fairbed.coordinator.report.markup import HtmlCell, HtmlColumn, Row
from fairbed.coordinator.store import RunReader
from fairbed.testbed.compare.comparison import ArmSummary, Comparison, MetricSummary
from fairbed.testbed.compare.differences import FAMILY_LEVEL
from fairbed.testbed.compare.finished import as_grid, name_arms, read_runs, recorded
from fairbed.testbed.compare.run_warnings import differing_inputs
from fairbed.testbed.compare.statistics import LEAST_SEEDS_TO_JUDGE
from fairbed.testbed.compare.table import (
    brackets,
    heading_of,
    reading,
    shown_gap,
    shown_value,
)
from fairbed.testbed.experiment.file import ExperimentError


def report_runs(
    folders: Sequence[Path],
    path: Path,
    *,
    has_figures: bool = True,
    advance: Callable[[float], None] = lambda parts: None,
) -> None:
    """Write the page of one run, or of several side by side, as `write_report` does.

    Raises:
        StoreError: A store cannot be read.
        OSError: The file cannot be written.
    """
    comparison = side_by_side(folders) if len(folders) > 1 else None
    with ExitStack() as stack:
        readers = [stack.enter_context(RunReader(folder)) for folder in folders]
        write_report(readers, path, comparison, has_figures=has_figures, advance=advance)


def side_by_side(folders: Sequence[Path]) -> RunComparison:
    """Return how the runs in some folders differ, paired by seed where seeds agree.

    Runs that cannot be paired are named in a note: the page shows them beside each other.

    Raises:
        StoreError: A store cannot be read.
    """
    try:
        runs = read_runs(folders)
    except ExperimentError as exc:
        return RunComparison([""] * len(folders), [], [], [f"No differences were tested: {exc}."])
    try:
        found = as_grid(runs)
    except ExperimentError as exc:
        notes = [f"No differences were tested: {exc}.", *differing_inputs(recorded(folders))]
        return RunComparison(name_arms(runs), [], [], notes)
    comparison = found.compare()
    return RunComparison(
        arms=found.arms,
        sentences=list(_sentences(comparison)),
        tables=[_table(comparison)],
        notes=list(_notes(comparison)),
    )


def _sentences(comparison: Comparison) -> Iterator[str]:
    """Yield what each arm is against the baseline: the primary metric, then the other verdicts."""
    metrics = {metric.key: metric for metric in comparison.metrics}
    primary = metrics.get(comparison.primary)
    for arm in comparison.arms:
        if primary is not None and arm.name != comparison.baseline:
            yield _against(arm, comparison, primary)
        for verdict in ("better", "worse"):
            shown = [
                f"{metrics[key].heading} ({_with_unit(arm, metrics[key], comparison)})"
                for key, found in arm.differences.items()
                if found.judgement == verdict and key != comparison.primary
            ]
            if shown:
                yield f"{arm.name} is {verdict} in {', '.join(shown)}."


def _against(arm: ArmSummary, comparison: Comparison, metric: MetricSummary) -> str:
    baseline = next(one for one in comparison.arms if one.name == comparison.baseline)
    gap, shown = arm.differences.get(metric.key), shown_gap(arm, metric, comparison)
    unit = f" {metric.unit}" if metric.unit else ""
    heading = metric.heading[:1].upper() + metric.heading[1:]
    if gap is None or shown is None:
        return f"{heading} of {arm.name}: no seed has it in both {arm.name} and {baseline.name}."
    own, other = (
        f"{value.mean}{unit}{value.beside}"
        for value in (shown_value(arm, metric), shown_value(baseline, metric))
    )
    seeds = f"{gap.n} shared seeds" if gap.n > 1 else "one shared seed"
    verdict = (
        f"no verdict: {gap.reason}"
        if gap.reason
        else f"no power: a verdict needs {LEAST_SEEDS_TO_JUDGE} shared seeds"
        if gap.judgement == "no power"
        else "no difference is shown"
        if gap.judgement == "unclear"
        else f"{arm.name} is {gap.judgement}"
    )
    return (
        f"{heading} of {arm.name}: {own}, against {other} of {baseline.name}; "
        f"difference {replace(shown, n='')} over {seeds}: {verdict}."
    )


def _with_unit(arm: ArmSummary, metric: MetricSummary, comparison: Comparison) -> str:
    shown = shown_gap(arm, metric, comparison)
    assert shown is not None, "a verdict has a difference"
    unit = "%" if shown.is_percent else metric.unit
    return f"{shown.mean} {unit}".strip()


def _notes(comparison: Comparison) -> Iterator[str]:
    """Yield how to read the table, and every warning."""
    yield "* marks the primary metric, which has the most weight in the test."
    tested = (
        f"The {comparison.comparisons} differences were tested together (Holm): of comparisons of "
        f"equal arms, at most {100 * FAMILY_LEVEL:.0f} % call any of them better or worse."
        if comparison.comparisons
        else "No difference was tested."
    )
    yield f"{brackets(comparison)} {tested}"
    yield from reading(comparison)
    yield from comparison.warnings


def _table(comparison: Comparison) -> SideTable:
    others = [arm for arm in comparison.arms if arm.name != comparison.baseline]
    columns = [
        HtmlColumn("", "text"),
        *(HtmlColumn(arm.name) for arm in comparison.arms),
        *(HtmlColumn(f"{arm.name} - {comparison.baseline}") for arm in others),
    ]
    rows: list[Row] = []
    for metric in comparison.metrics:
        mark = "*" if metric.key == comparison.primary else ""
        values = [str(shown_value(arm, metric)) for arm in comparison.arms]
        gaps = [_gap(arm, metric, comparison) for arm in others]
        rows.append([f"{heading_of(metric)}{mark}", *values, *gaps])
    return SideTable(
        f"Means over seeds, and differences from {comparison.baseline}",
        "Runs with equal experiments but the seed are one arm. Differences are paired by seed; "
        "brackets are confidence intervals.",
        columns,
        rows,
    )


def _gap(arm: ArmSummary, metric: MetricSummary, comparison: Comparison) -> HtmlCell:
    gap, shown = arm.differences.get(metric.key), shown_gap(arm, metric, comparison)
    if gap is None:
        return HtmlCell("", tone="quiet")
    if gap.judgement == "no verdict":
        return HtmlCell(f"{shown} no verdict", gap.mean, tone="quiet")
    if gap.judgement in ("unclear", "no power"):
        return HtmlCell(str(shown))
    text = f"{shown} {gap.judgement}"
    return HtmlCell(text, gap.mean, tone="good" if gap.judgement == "better" else "bad")
