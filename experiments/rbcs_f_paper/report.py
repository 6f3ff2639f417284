"""The summary as Markdown, for the terminal and as a file beside the figures."""

from collections.abc import Sequence

from experiments.rbcs_f_paper.arms import POLICIES
from experiments.rbcs_f_paper.reference import METRICS, TIMES
from experiments.rbcs_f_paper.summary import Summary
from experiments.rbcs_f_paper.table import Cell

MISSING = "–"


def markdown(summary: Summary) -> str:
    """Return all tables, in Markdown that is readable on a terminal."""
    parts = [
        f"{summary.seeds} seeds, {summary.rounds} rounds. Each cell: mean ± standard error "
        "(reference); * marks a difference beyond the limits.",
        _numbers(summary),
        _verdict(summary),
        "Checks:",
        _checks(summary),
        "Cost of learning the expected times (mean over seeds; ± standard error):",
        _regrets(summary),
        "Both codings of s: cold if not in the last round / the literal opposite:",
        _codings(summary),
    ]
    return "\n\n".join(parts) + "\n"


def _numbers(summary: Summary) -> str:
    by_place = {(cell.policy, cell.metric): cell for cell in summary.cells}
    rows = [
        [policy.label, *(_cell(by_place.get((policy.label, metric))) for metric in METRICS)]
        for policy in POLICIES
    ]
    return table(["policy", *METRICS], rows)


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return MISSING
    digits = 0 if cell.metric in TIMES else 1 if cell.metric == "queues" else 3
    error = max(digits, 1) if cell.metric in TIMES else digits + (digits == 3)
    text = f"{cell.mean:.{digits}f} ± {cell.error:.{error}f}"
    if cell.reference is not None:
        text += f" ({cell.reference:g})"
    return text + (" *" if cell.is_within is False else "")


def _verdict(summary: Summary) -> str:
    compared = [cell for cell in summary.cells if cell.is_within is not None]
    if not compared:
        return "No verdict: it needs 500 rounds and at least two seeds."
    within = len(compared) - len(summary.missed)
    lines = [f"{within} of {len(compared)} numbers are within the limits."]
    for cell in summary.missed:
        ratio = f", {cell.apart_ratio:+.1%}" if cell.apart_ratio is not None else ""
        lines.append(
            f"- {cell.policy}, {cell.metric}: {cell.mean:.4g} for {cell.reference:g}{ratio}, "
            f"{cell.apart_errors:.1f} standard errors"
        )
    worst = max((cell.apart_errors or 0.0) for cell in compared)
    times = [abs(cell.apart_ratio or 0.0) for cell in compared if cell.metric in TIMES]
    lines.append(
        f"Largest difference: {worst:.1f} standard errors; {max(times):.1%} of a total time."
    )
    return "\n".join(lines)


def _checks(summary: Summary) -> str:
    return "\n".join(
        f"- {'yes' if check.holds else 'NO'}: {check.text} ({check.detail})"
        for check in summary.checks
    )


def _regrets(summary: Summary) -> str:
    rows = [
        [
            f"{one.weight:g}",
            f"{one.noise:.0%}",
            f"{one.extra_s:.1f} ± {one.extra_error_s:.1f}",
            f"{one.extra_ratio:.1%}",
            f"{one.first_s:.3f}",
            f"{one.last_s:.3f}",
        ]
        for one in summary.regrets
    ]
    heads = [
        "V",
        "noise",
        "extra time, s",
        "of the time",
        "(J - min J) / V per round, first 100, s",
        "last 100, s",
    ]
    return table(heads, rows)


def _codings(summary: Summary) -> str:
    rows = [
        [
            f"{one.weight:g}",
            f"{one.noise:.0%}",
            f"{one.error_selected:.1%} / {one.error_selected_literal:.1%}",
            f"{one.error_all:.1%} / {one.error_all_literal:.1%}",
            f"{one.total_s:.0f} / {one.total_s_literal:.0f}",
            f"{one.extra_time_ratio:+.1%}",
        ]
        for one in summary.codings
    ]
    heads = ["V", "noise", "error, selected", "error, all", "total time, s", "extra time"]
    return table(heads, rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "| " + " | ".join(padded) + " |"

    return "\n".join([line(heads), line(["-" * width for width in widths]), *map(line, rows)])
