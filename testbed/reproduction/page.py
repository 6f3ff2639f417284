"""The results of a study as Markdown, HTML and CSV. Pure, but for the style sheet of the page."""

from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence

from fairbed.coordinator.report.findings import counted
from fairbed.coordinator.report.html import html_page
from fairbed.coordinator.report.markup import (
    HtmlCell,
    HtmlColumn,
    Markup,
    Tone,
    html_table,
    join,
    tag,
)
from fairbed.coordinator.report.quantities import MISSING
from fairbed.testbed.compare.differences import FAMILY_LEVEL
from fairbed.testbed.compare.statistics import LEAST_SEEDS_TO_JUDGE
from fairbed.testbed.compare.table import csv_of
from fairbed.testbed.reproduction.claims import Judged
from fairbed.testbed.reproduction.measures import MEASURES
from fairbed.testbed.reproduction.results import Number, PanelResult, StudyResult
from fairbed.wire.printable import printable

VERDICTS = ("holds", "fails", "no power", "not comparable", "not run: no data", "no judgement")
TONES: dict[str, Tone] = {"holds": "good", "fails": "bad"}


def summary(result: StudyResult) -> str:
    """Return how many claims have which verdict: `3 holds, 1 no power`."""
    counts = Counter[str](claim.verdict for claim in result.claims)
    found = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    return ", ".join(found) or "no claim"


def markdown(result: StudyResult, *, has_figure: bool = True) -> str:
    """Return the page of a study as Markdown; its figure is a file beside it."""
    lines = [f"# {result.title}", "", *(f"{line}\n" for line in _limits(result))]
    lines += [f"Source: {result.source} {result.settings}", ""]
    lines += ["## Claims", "", *_table(*_claims(result)), ""]
    if has_figure:
        lines += [f"![Published numbers and ours]({result.name}.svg)", ""]
    for panel in result.panels:
        lines += [f"## {panel.title}", "", *(f"{line}\n" for line in _about(panel))]
        if not panel.problem:
            lines += [*_table(*_rows(panel)), ""]
        lines += [*(f"- {line}" for line in panel.deviations), *([""] if panel.deviations else [])]
    lines += ["## Deviations", "", *(f"- {line}" for line in result.deviations), ""]
    if result.left_out:
        lines += ["## Not run", "", *(f"- {line}" for line in result.left_out), ""]
    lines += ["## Run it again", "", "```sh", result.command, "```", "", *_made(result)]
    return "\n".join(map(printable, "\n".join(lines).splitlines())).rstrip() + "\n"


def html(result: StudyResult, figure: bytes | None) -> str:
    """Return the page of a study as HTML; `figure` is an SVG."""
    sections = [_section("Claims", _html(*_claims(result)))]
    if figure is not None:
        image = f"data:image/svg+xml;base64,{b64encode(figure).decode()}"
        sections.append(tag("figure", tag("img", src=image, alt="Published numbers and ours")))
    for panel in result.panels:
        parts = [tag("p", line, class_="note") for line in _about(panel)]
        if not panel.problem:
            parts.append(_html(*_rows(panel)))
        sections.append(_section(panel.title, *parts, _list(panel.deviations)))
    sections.append(_section("Deviations", _list(result.deviations)))
    if result.left_out:
        sections.append(_section("Not run", _list(result.left_out)))
    made = [tag("p", line) for line in _made(result)]
    sections.append(_section("Run it again", tag("pre", result.command), *made))
    header = tag(
        "header",
        tag("p", "Fairbed reproduction", class_="kicker"),
        tag("h1", result.title),
        *(tag("p", line) for line in _limits(result)),
        tag("p", f"Source: {result.source} {result.settings}", class_="note"),
    )
    return html_page(result.title, join(header, tag("main", *sections)))


def _section(title: str, *children: str) -> Markup:
    return tag("section", tag("h2", title), *children)


def _list(lines: Sequence[str]) -> Markup:
    return tag("ul", *(tag("li", line) for line in lines), class_="notes") if lines else join()


def _limits(result: StudyResult) -> Iterator[str]:
    """Yield what the page cannot show, first."""
    finished = sum(panel.finished for panel in result.panels)
    planned = sum(panel.cells for panel in result.panels)
    if result.size == "smoke":
        yield "A smoke run: a few rounds of each cell. Its numbers mean nothing."
    yield (
        f"{summary(result)}. {finished} of {planned} cells are finished. A verdict needs "
        f"{LEAST_SEEDS_TO_JUDGE} seeds, and all claims of the source are tested together at "
        f'{100.0 * FAMILY_LEVEL:.0f} %; "no power" does not mean that there is no effect. Compare '
        "no absolute number with the source: data, rounds and devices differ as listed."
    )


def _about(panel: PanelResult) -> Iterator[str]:
    if panel.problem:
        yield f"Not run: no data: {panel.problem}"
        return
    yield f"{panel.finished} of {panel.cells} cells, {counted(panel.seeds, 'seed')}."
    if panel.not_comparable:
        yield f"Not comparable: {panel.not_comparable}"


def _made(result: StudyResult) -> Iterator[str]:
    versions = ", ".join(result.versions) or "none"
    yield f"Cells of Fairbed {versions}; {result.seconds / 3600.0:.2f} hours of one core."


def _claims(result: StudyResult) -> tuple[list[str], list[list[str]]]:
    head = [
        *("table", "metric", "claim", "rules", "published", "difference here", "seeds"),
        *("corrected p", "could show", "verdict"),
    ]
    return head, [_claim(claim) for claim in result.claims]


def _claim(claim: Judged) -> list[str]:
    digits = MEASURES[claim.metric].digits + 1
    against = f" against {claim.against}" if claim.against and "each of" in claim.text else ""
    return [
        claim.panel,
        MEASURES[claim.metric].heading,
        claim.text + ("" if claim.is_primary else " (secondary)"),
        claim.treatment,
        claim.published or MISSING,
        f"{_interval(claim.mean, claim.low, claim.high, digits, signed=True)}{against}",
        str(claim.n or MISSING),
        MISSING if claim.p_family is None else _p(claim.p_family),
        MISSING if claim.smallest is None else f"{claim.smallest:.{digits}f}",
        f"{claim.verdict}: {claim.reason}" if claim.reason else claim.verdict,
    ]


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _rows(panel: PanelResult) -> tuple[list[str], list[list[str]]]:
    """Return two lines for each row: that of the source, if it prints one, and ours."""
    head = ["", "", *(_heading(metric) for metric in panel.metrics)]
    lines = list[list[str]]()
    for row in panel.rows:
        numbers = [(metric, row.numbers[metric]) for metric in panel.metrics]
        if any(number.published is not None for _, number in numbers):
            lines.append([row.label, "source", *(_published(m, n) for m, n in numbers)])
            lines.append(["", "here", *(_ours(m, n) for m, n in numbers)])
        else:
            lines.append([row.label, "here", *(_ours(m, n) for m, n in numbers)])
    return head, lines


def _heading(metric: str) -> str:
    measure = MEASURES[metric]
    return f"{measure.heading}, {measure.unit}" if measure.unit else measure.heading


def _published(metric: str, number: Number) -> str:
    if number.published is None:
        return MISSING
    spread = "" if number.spread is None else f" ± {number.spread:g}"
    return f"{number.published:g}{spread}"


def _ours(metric: str, number: Number) -> str:
    shown = _interval(number.mean, number.low, number.high, MEASURES[metric].digits)
    some = f" ({number.n} seeds: {number.missing})" if number.missing and number.n else ""
    return f"{shown}{some}"


def _interval(
    mean: float | None, low: float | None, high: float | None, digits: int, *, signed: bool = False
) -> str:
    if mean is None:
        return MISSING
    sign = "+" if signed else ""
    shown = f"{mean:{sign}.{digits}f}"
    if low is None or high is None:
        return shown
    return f"{shown} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    columns = [HtmlColumn(name, "text") for name in head]
    return html_table(columns, [[_html_cell(cell) for cell in row] for row in rows])


def _html_cell(cell: str) -> HtmlCell:
    return HtmlCell(cell, tone=TONES.get(cell, ""))


def rows_csv(result: StudyResult) -> str:
    """Return the rows of a study, one line for each number."""
    head = "study,table,row,metric,unit,published,published_spread,mean,low,high,seeds,missing"
    lines = [
        [
            *(result.name, panel.name, row.label, metric, MEASURES[metric].unit),
            *_numbers((number.published, number.spread, number.mean, number.low, number.high)),
            *(number.n, number.missing),
        ]
        for panel in result.panels
        for row in panel.rows
        for metric, number in row.numbers.items()
    ]
    return csv_of([head.split(","), *lines])


def claims_csv(result: StudyResult) -> str:
    """Return the claims of a study, one line each."""
    lines = [
        [
            *(result.name, claim.panel, claim.metric, claim.text, claim.treatment),
            *("primary" if claim.is_primary else "secondary", claim.published, claim.against),
            *_numbers((claim.mean, claim.low, claim.high)),
            claim.n,
            *_numbers((claim.p, claim.p_family, claim.smallest)),
            *(claim.verdict, claim.reason),
        ]
        for claim in result.claims
    ]
    head = (
        "study,table,metric,claim,rules,family,published,against,mean,low,high,seeds,p,p_family,"
        "could_show,verdict,reason"
    )
    return csv_of([head.split(","), *lines])


def _numbers(values: Sequence[float | None]) -> list[str | None]:
    return [None if value is None else f"{value:.6g}" for value in values]
