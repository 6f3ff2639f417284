"""One self-contained HTML page about one run, or about several side by side.

The page loads nothing: style, script and figures are inside, and its content security policy
forbids requests. It needs no script to be read, follows the light or dark preference of the reader,
and prints in sections. It depends on the store only: equal runs have equal pages.
"""

import hashlib
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import UnsetType

from fairbed.coordinator.report.figures import (
    FIGURES,
    THEME,
    RunFigures,
    inline_svg,
    read_figures,
    why_missing,
)
from fairbed.coordinator.report.findings import (
    Finding,
    RoundTime,
    counted,
    findings,
    read_round_time,
    span,
)
from fairbed.coordinator.report.markup import (
    HtmlCell,
    HtmlColumn,
    Markup,
    Row,
    Tone,
    html_table,
    join,
    tag,
)
from fairbed.coordinator.report.measures import (
    device_measures,
    own_of,
    run_measure,
    stated,
    text_of,
)
from fairbed.coordinator.report.measures.entry import DeviceMeasure, PageColumnOf, number_at
from fairbed.coordinator.report.quality import noise_mark
from fairbed.coordinator.report.quantities import (
    MISSING,
    cell,
    clock,
    instant,
    ratio,
    seconds,
    size,
)
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_schema import (
    BY_APP,
    DeviceSummary,
    ExchangeSummary,
    RunSummary,
)
from fairbed.coordinator.report.summary_table import (
    calibrated,
    counted_rate,
    frozen_line,
    is_kept,
    own_inputs,
)
from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.reader import LIVE, RunInfo, RunReader, read_settings
from fairbed.coordinator.store.tables import AlertRow, CommandRow, EventRow, ExchangeRow, MetricRow

MAX_LISTED = 200
"""Devices in the table of a fleet that is listed whole; of a larger one the `MAX_WORST` worst."""
MAX_WORST = 100
MAX_PROFILES = 40
MAX_EVENTS = 40
"""Newest warnings and errors that are listed."""
MAX_REASONS = 20
"""Reasons of exchanges without an update that are listed, the most frequent ones."""
MAX_COMMANDS = 200
MAX_KEYS = 60
"""Keys that differ between runs."""
MAX_TILES = 6
"""Key numbers on top of the page: one line of them."""
QUALITY_TILES = (
    "accuracy_mean",
    "accuracy_worst10",
    "auroc_mean",
    "perplexity",
    "rmse_mean",
    "rmse_worst10",
)
"""Measures of the model among them."""
MAX_DRAWN = 4
"""Runs of which a figure is drawn that does not compare runs."""
MAX_TEXT = 300
"""Characters of a text from a device or an operator."""

DOCTYPE = Markup("<!doctype html>\n")

PAGE = Path(__file__).parent / "page"
"""Style sheet and script of the page."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """What the page has about one run, from one state of its store."""

    info: RunInfo
    summary: RunSummary
    """With all devices."""
    time: RoundTime
    evaluations: list[MetricRow]
    outcomes: dict[str, Counter[str]]
    """Number of exchanges of each device by outcome, and as `untimed`."""
    reasons: list[tuple[str, str, int, int]]
    """Outcome, reason, exchanges and devices; the most frequent first."""
    problems: list[EventRow]
    """The newest warnings and errors, oldest first."""
    problem_counts: dict[str, int]
    """All warnings and errors by kind."""
    alerts: list[AlertRow]
    commands: list[CommandRow]
    figures: RunFigures | None
    n_values: int | None
    """Values of the model, if the page has several runs."""
    """None: the page has no figures."""
    experiment: dict[str, Any]
    """The resolved experiment, as its TOML file; empty if that is damaged."""

    @property
    def is_live(self) -> bool:
        """The run goes on, so the page is about a part of it."""
        return self.summary.status in LIVE

    @property
    def findings(self) -> list[Finding]:
        """The summary in words."""
        return findings(self.summary, self.info.plan, self.time, self.evaluations)


@dataclass(frozen=True, slots=True)
class SideTable:
    """A table that compares the runs of a page."""

    title: str
    note: str
    columns: Sequence[HtmlColumn]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class RunComparison:
    """How the runs of a page differ; the arms are runs with equal experiments but the seed."""

    arms: Sequence[str]
    """Name of the arm of each run, in the order of the runs."""
    sentences: Sequence[str]
    tables: Sequence[SideTable]
    notes: Sequence[str] = ()


def read_page(reader: RunReader, *, has_figures: bool = True, is_beside: bool = False) -> RunPage:
    """Read what the page has about a run, live or finished, from one snapshot of its store.

    Args:
        reader: Of the run.
        has_figures: The page has figures.
        is_beside: It has other runs, too, beside which it states the size of the model.

    Raises:
        StoreError: The store cannot be read.
    """
    with reader.snapshot():
        info = reader.run()
        summary = summarise_run(reader, max_devices=None)
        outcomes, reasons = _outcomes(reader)
        names = tuple(column.name for column in fields(EventRow))
        newest = f"WHERE level != 'info' ORDER BY id DESC LIMIT {MAX_EVENTS}"
        problems = [
            EventRow(**dict(zip(names, row, strict=True)))
            for row in reader.columns(EventRow, names, newest)
        ][::-1]
        kinds = reader.columns(EventRow, ("kind",), "WHERE level != 'info'")
        return RunPage(
            info=info,
            summary=summary,
            time=read_round_time(reader),
            evaluations=reader.metrics(),
            outcomes=outcomes,
            reasons=reasons,
            problems=problems,
            problem_counts=dict(Counter(kind for (kind,) in kinds).most_common()),
            alerts=reader.alerts(),
            commands=reader.commands(),
            figures=read_figures(reader) if has_figures else None,
            n_values=_n_values(reader) if is_beside else None,
            experiment=read_settings(reader.experiment_toml),
        )


def _n_values(reader: RunReader) -> int | None:
    """Return the values of the newest stored model; None if none can be read."""
    with suppress(StoreError):
        found = reader.final_model()
        return None if found is None else len(found[1])
    return None


def _outcomes(
    reader: RunReader,
) -> tuple[dict[str, Counter[str]], list[tuple[str, str, int, int]]]:
    """Return the exchanges of each device by outcome, and the reasons of those without success."""
    by_device: dict[str, Counter[str]] = {}
    devices: dict[tuple[str, str], Counter[str]] = {}
    examples: dict[tuple[str, str], str] = {}
    names = ("device", "outcome", "is_valid", "reason")
    for device, outcome, is_valid, reason in reader.columns(ExchangeRow, names):
        kind = "untimed" if outcome == "done" and not is_valid else outcome
        by_device.setdefault(device, Counter())[kind] += 1
        if kind != "done":
            alike = kind, re.sub(r"[0-9][0-9.,:]*", "0", reason)  # but for its numbers
            examples.setdefault(alike, reason)
            devices.setdefault(alike, Counter())[device] += 1
    reasons = [
        (kind[0], examples[kind], sum(found.values()), len(found))
        for kind, found in devices.items()
    ]
    return by_device, sorted(reasons, key=lambda item: (-item[2], item[0], item[1]))


def write_report(
    readers: Sequence[RunReader],
    path: Path,
    comparison: RunComparison | None = None,
    *,
    has_figures: bool = True,
    advance: Callable[[float], None] = lambda parts: None,
) -> None:
    """Write the page of one run, or of several side by side; an earlier page is replaced.

    Args:
        readers: Of each run.
        path: The file.
        comparison: How several runs differ.
        has_figures: Draw the figures, which takes most of the time.
        advance: Called with 1 after each of `n_parts` parts.

    Raises:
        StoreError: A store cannot be read.
        OSError: The file cannot be written.
    """
    pages = []
    for reader in readers:
        several = len(readers) > 1
        pages.append(read_page(reader, has_figures=has_figures, is_beside=several))
        advance(1)
    text = report_page(pages, comparison, advance)
    _write(text, path)


def _write(page: Markup, path: Path) -> None:
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.write_text(page, encoding="utf-8")
        draft.replace(path)
    except OSError as exc:
        exc.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)


def n_parts(runs: int, *, has_figures: bool = True) -> int:
    """Return how often `write_report` calls `advance` for a number of runs."""
    return runs + (len(FIGURES) if has_figures else 0)


def report_page(
    runs: Sequence[RunPage],
    comparison: RunComparison | None = None,
    advance: Callable[[float], None] = lambda parts: None,
) -> Markup:
    """Return the page as HTML; `advance` is called with 1 after each figure."""
    body = _one(runs[0], advance) if len(runs) == 1 else _several(runs, comparison, advance)
    return html_page(_title(runs), body)


def html_page(title: str, body: Markup) -> Markup:
    """Return a page of one file, in the style of the reports: nothing is loaded from elsewhere."""
    style, script = (PAGE / name for name in ("report.css", "sort.js"))
    code = script.read_text(encoding="utf-8")
    digest = b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} - Fairbed"),
        tag("style", Markup(_colours() + style.read_text(encoding="utf-8"))),
    )
    page = tag("html", head, tag("body", body, tag("script", Markup(code))), lang="en")
    return join(DOCTYPE, page, Markup("\n"))


def _colours() -> str:
    """Return the rules with the colours that page and figures share."""
    light, dark = (
        " ".join(f"{name}: {pair[at]};" for name, pair in THEME.items()) for at in (0, 1)
    )
    query = "@media screen and (prefers-color-scheme: dark)"
    return f":root {{ {light} }}\n{query} {{ :root {{ {dark} }} }}\n"


def _figures(
    runs: Sequence[RunFigures], arms: Sequence[str], advance: Callable[[float], None]
) -> list[Markup]:
    """Return the figures for which the runs have data, and the names of the others.

    Args:
        runs: The runs.
        arms: Their arms. What does not compare runs is drawn for the first run of each arm, if
            there are more than `MAX_DRAWN` runs.
        advance: Called after each figure.
    """
    few = list(runs)
    if len(runs) > MAX_DRAWN:
        is_first = [arm not in arms[:at] for at, arm in enumerate(arms)]
        few = [run for run, own in zip(runs, is_first, strict=True) if own][:MAX_DRAWN]
    drawn, missing = list[str](), list[str]()
    if not runs:
        return []
    for name, kind in FIGURES.items():
        shown = runs if kind.compares else few
        reason = why_missing(name, shown)
        advance(1)
        if reason is not None:
            if not kind.is_rare:
                missing.append(f"{kind.title} ({reason})")
            continue
        try:
            svg = Markup(inline_svg(name, shown))
        except ModuleNotFoundError as exc:
            text = (
                f"Figures need the package {exc.name}, which was not installed when this page was "
                "written: the extra fairbed[figures]."
            )
            return [_section("figures", "Figures", tag("p", text, class_="note"))]
        part = " One run of each arm is shown." if len(shown) < len(runs) else ""
        caption = tag("figcaption", kind.caption, part)
        drawn.append(tag("figure", tag("h3", kind.title), caption, svg, id=f"figure-{name}"))
    if not drawn:
        return []
    note = tag("p", f"Not drawn: {'; '.join(missing)}.", class_="note") if missing else Markup("")
    return [_section("figures", "Figures", *drawn, note)]


def _title(runs: Sequence[RunPage]) -> str:
    names = list(dict.fromkeys(run.summary.name for run in runs))
    if len(runs) == 1:
        return names[0]
    return f"{names[0] if len(names) == 1 else 'Comparison'}: {len(runs)} runs"


def _one(run: RunPage, advance: Callable[[float], None]) -> Markup:
    sections = [
        _section("summary", "Summary", _words(run.findings), _further(run.summary)),
        *(
            [_section("metrics", "Metrics by name", _named(run.summary))]
            if run.summary.metrics
            else []
        ),
        *_client_section(run.summary),
        _section("what", "What was run", _what(run)),
        *_figures(_labelled([run], [""]), [""], advance),
        *_devices_section(run),
        _section("faults", "Faults and alerts", _faults(run)),
        *_commands_section(run),
    ]
    return join(_header([run]), _banner(run), _tiles(run), tag("main", *sections), _footer([run]))


def _several(
    runs: Sequence[RunPage],
    comparison: RunComparison | None,
    advance: Callable[[float], None],
) -> Markup:
    arms = comparison.arms if comparison else [""] * len(runs)
    sections = [_section("runs", "Runs", _runs_table(runs, arms), *_sent_table(runs, arms))]
    if comparison is not None:
        text = tag("ul", *(tag("li", line) for line in comparison.sentences), class_="findings")
        sections += [_section("summary", "Summary", text)] if comparison.sentences else []
        differing = _differing(runs, arms)
        sections += [_section("differ", "Settings that differ", differing)] if differing else []
        parts = [
            join(
                tag("h3", table.title),
                tag("p", table.note, class_="note"),
                html_table(table.columns, table.rows),
            )
            for table in comparison.tables
        ]
        notes = tag("ul", *(tag("li", line) for line in comparison.notes), class_="notes")
        if comparison.tables or comparison.notes:
            sections.append(_section("differences", "Side by side", *parts, notes))
    sections += _figures(_labelled(runs, arms), arms, advance)
    each = []
    for letter, run in zip(_letters(len(runs)), runs, strict=True):
        s = run.summary
        inner = [
            _banner(run),
            _words(run.findings),
            _further(s),
            *([tag("h3", "Metrics by name"), _named(s)] if s.metrics else []),
            *([tag("h3", "Metrics of the client"), _client(s)] if s.client_metrics else []),
            tag("h3", "What was run"),
            _what(run),
            tag("h3", "Devices"),
            _devices(run),
            tag("h3", "Faults and alerts"),
            _faults(run),
            *([tag("h3", "Notes and commands"), _commands(run)] if run.commands else []),
        ]
        label = join(tag("b", letter), f" {s.run_id} ", tag("span", s.status, class_="note"))
        each.append(tag("details", tag("summary", label), *inner))
    sections.append(_section("each", "Each run", *each))
    return join(_header(runs), tag("main", *sections), _footer(runs))


def _labelled(runs: Sequence[RunPage], arms: Sequence[str]) -> list[RunFigures]:
    """Return the data of the figures, each run named by its letter and what is its own."""
    seeds = len({run.summary.seed for run in runs}) > 1
    found = []
    for letter, run, arm in zip(_letters(len(runs)), runs, arms, strict=True):
        seed = f"seed {run.summary.seed}" if seeds else ""
        if run.figures is not None:
            name = " ".join(filter(None, (f"{letter}:", arm, seed)))
            found.append(replace(run.figures, name=name) if len(runs) > 1 else run.figures)
    return found


def _letters(number: int) -> list[str]:
    """Return the short names of runs on a page: A, B, ..., Z, A2, ..."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return [alphabet[i % 26] + (str(i // 26 + 1) if i >= 26 else "") for i in range(number)]


def _section(name: str, title: str, *children: str) -> Markup:
    return tag("section", tag("h2", title), *children, id=name)


def _header(runs: Sequence[RunPage]) -> Markup:
    parts = [tag("p", "Fairbed report", class_="kicker"), tag("h1", _title(runs))]
    if len(runs) == 1:
        s, row = runs[0].summary, runs[0].info.row
        kind = "replay on a virtual clock" if s.clock == "virtual" else "run with real clock"
        facts = [s.run_id, kind, f"seed {s.seed}", f"started {row.created[:16].replace('T', ' ')}"]
        status = tag("span", s.status, class_=f"status {_tone(s.status)}")
        parts.append(tag("p", status, " " + " · ".join(facts), class_="facts"))
    return tag("header", *parts)


def _tone(status: str) -> str:
    return {"done": "good", "failed": "bad", "interrupted": "bad"}.get(status, "quiet")


def _banner(run: RunPage) -> Markup:
    s = run.summary
    planned = f" of {s.last_round}" if s.last_round else ""
    if run.is_live:
        text = (
            f"This run is {s.status}: the page shows it after round {s.rounds_completed}{planned}, "
            f"{clock(run.info.elapsed_s)} after its start. Its numbers will change."
        )
    elif s.status != "done":
        more = f" Continue it with: {s.resume_command}" if s.resume_command else ""
        reason = f": {s.reason}" if s.reason else ""
        text = (
            f"This run is not complete ({s.status}{reason}): the page shows "
            f"{s.rounds_completed}{planned} rounds.{more}"
        )
    elif not s.rounds_completed:
        text = "This run has no completed round: there is nothing to show of them."
    else:
        return Markup("")
    return tag("p", text, class_="banner", role="note")


def _tiles(run: RunPage) -> Markup:
    s = run.summary
    fair, x = s.fairness, s.exchange
    planned = f" of {s.last_round}" if s.last_round else ""
    guaranteed = (
        run_measure("min_rate_selected").report
        if fair.beta is None
        else f"lowest rate ({fair.beta:g} guaranteed)"
    )
    tiles = [
        (str(s.rounds_completed), f"rounds{planned}"),
        (span(s.virtual_s), run_measure("virtual_s").report),
        *(_quality_tile(s, key) for key in QUALITY_TILES if key not in _replaced(s)),
        *_worst_tile(s),
        (ratio(counted_rate(fair)), guaranteed) if s.rounds_completed else None,
        _exchange_tile(x) if s.rounds_completed else None,
        (
            text_of(s, "energy_j"),
            f"{run_measure('energy_j').report} of {s.energy.samples['total_j']} exchanges",
        )
        if s.energy is not None and s.accuracy.mean is None
        else None,
    ]
    known = [tile for tile in tiles if tile is not None][:MAX_TILES]
    shown = [tag("div", tag("dt", label), tag("dd", value)) for value, label in known]
    return tag("dl", *shown, class_="tiles")


def _replaced(s: RunSummary) -> tuple[str, ...]:
    """Return the tiles in whose place is the metric of `evaluation.worst`."""
    return () if s.worst_metric is None else ("accuracy_worst10", "rmse_worst10")


def _worst_tile(s: RunSummary) -> list[tuple[str, str]]:
    """Return the worst tenth in the metric of `evaluation.worst`, if it names one."""
    m = s.worst_metric
    if m is None or m.worst10 is None:
        return []
    return [(f"{m.worst10:.4g}", f"{_cut(m.name)}, worst 10 % ({m.better} is better)")]


def _quality_tile(s: RunSummary, key: str) -> tuple[str, str] | None:
    """Return a number of the model, or None; that of a task is shown if it is not known, too."""
    measure = run_measure(key)
    value = number_at(s, measure.json).value
    is_of_task = (
        s.auroc if key == "auroc_mean" else s.error if "rmse" in key else None
    ) is not None
    if value is None and not is_of_task:
        return None
    mark = _noise_mark(s) if key == "accuracy_worst10" else ""
    return measure.text(value), f"{measure.report}{mark}"


def _exchange_tile(x: ExchangeSummary) -> tuple[str, str]:
    """Return the median exchange time, or why there is none."""
    sample = x.samples["median_s"]
    why = f", {sample.why_none}" if x.median_s is None else ""
    value = MISSING if x.median_s is None else span(x.median_s)
    return value, f"{run_measure('tau_median_s').name} ({sample} timed{why})"


def _noise_mark(s: RunSummary) -> str:
    """Return the share of noise of the worst 10 %, as text to append."""
    return noise_mark(s.accuracy.noise.worst10_share) if s.accuracy.noise else ""


def _words(found: Sequence[Finding]) -> Markup:
    items = [
        tag(
            "div",
            tag("dt", finding.topic),
            tag("dd", finding.text),
            class_="bad" if finding.is_bad else None,
        )
        for finding in found
    ]
    return tag("dl", *items, class_="findings")


def _further(s: RunSummary) -> Markup:
    """Return the measures that no sentence has."""
    shown = [(m.report, stated(s, m), m.meaning) for m in own_of(s) if m.report]
    items = [
        tag("div", tag("dt", label, title=meaning), tag("dd", text))
        for label, text, meaning in shown
    ]
    return tag("dl", *items, class_="pairs") if items else Markup("")


def _client_section(s: RunSummary) -> list[Markup]:
    if not s.client_metrics:
        return []
    return [_section("client", "Metrics of the client", _client(s))]


def _client(s: RunSummary) -> Markup:
    """Return the newest values of what the client measures, in a table."""
    columns = [HtmlColumn("metric", "text"), HtmlColumn("phase", "text"), HtmlColumn("round")]
    columns += [HtmlColumn("devices"), HtmlColumn("mean by examples"), HtmlColumn("lowest")]
    columns += [HtmlColumn("of", "text"), HtmlColumn("highest"), HtmlColumn("of", "text")]
    rows: list[Row] = [
        (
            _cut(one.name),
            one.phase,
            str(one.round),
            _count(one.devices) if one.devices else "",
            HtmlCell(f"{one.mean:.4g}", one.mean),
            HtmlCell(f"{one.lowest:.4g}", one.lowest) if one.devices else "",
            one.lowest_device,
            HtmlCell(f"{one.highest:.4g}", one.highest) if one.devices else "",
            one.highest_device,
        )
        for one in s.client_metrics or []
    ]
    note = "Named by the client of this run, which alone knows whether a large value is good."
    if any(not one.devices for one in s.client_metrics or []):
        note += (
            " Rows without devices are of the strategy of the app: central is its own test of the "
            "model, the others are what it has merged of the devices."
        )
    return join(tag("p", note, class_="note"), html_table(columns, rows, sorts=True))


def _named(s: RunSummary) -> Markup:
    """Return the metrics of `evaluation.metrics`, in a table."""
    columns = [HtmlColumn("metric", "text"), HtmlColumn("better", "text"), HtmlColumn("devices")]
    numbers = {
        "mean": "mean",
        "worst10": "worst 10 %",
        "best10": "best 10 %",
        "std": "standard deviation",
        "gap": "gap",
        "pooled": "all examples",
        "test_set": "test set",
    }
    columns += [HtmlColumn(heading) for heading in numbers.values()]
    columns += [HtmlColumn("worst device", "text")]
    rows: list[Row] = []
    for one in s.metrics or []:
        cells: list[Any] = [_cut(one.name), one.better, _count(one.devices)]
        for key in numbers:
            value = getattr(one, key)
            cells.append(HtmlCell(MISSING if value is None else f"{value:.4g}", value))
        rows.append((*cells, one.worst_device or MISSING))
    worst = s.worst_metric
    about = "" if worst is None else f" evaluation.worst names {worst.name}."
    note = (
        "Each device counts once, on its own held-out examples; all examples are those of all "
        f"devices together.{about}"
    )
    return join(tag("p", note, class_="note"), html_table(columns, rows, sorts=True))


def _what(run: RunPage) -> Markup:
    s, row, p = run.summary, run.info.row, run.summary.provenance
    packages = ", ".join(f"{name} {value}" for name, value in p.packages.items())
    frozen = [] if isinstance(s.frozen, UnsetType) else [("frozen", frozen_line(s.frozen))]
    facts = [
        ("experiment", s.name),
        *frozen,
        ("run", s.run_id),
        ("started", row.created),
        ("resumed", counted(row.resumes, "time") if row.resumes else ""),
        ("clock", "virtual: a replay" if s.clock == "virtual" else "real: live devices"),
        ("costs of training", s.costs_from or ""),
        ("seed", str(s.seed)),
        ("devices", _profiles(s)),
        ("local rule", s.local_rule),
        ("optimiser", s.optimiser or ""),
        ("kept by devices", s.personal_part or ""),
        ("merge", _merge(s)),
        ("Fairbed", _version(row.version, p.git_revision)),
        ("experiment file", f"git {p.experiment_revision}" if p.experiment_revision else ""),
        ("packages", packages),
        ("machine", ", ".join(f"{name} {value}" for name, value in p.machine.items())),
        ("calibration", "" if p.calibration is None else calibrated(p.calibration)),
        ("data set", f"sha256 {p.data_sha256}" if p.data_sha256 else ""),
        *(("columns", note) for note in p.data_notes),
        ("partition", f"sha256 {p.partition_sha256}" if p.partition_sha256 else ""),
        *((name, f"sha256 {value}") for name, value in own_inputs(p).items()),
        ("experiment hash", f"sha256 {row.config_hash}" if row.config_hash else ""),
    ]
    table = tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", text)) for name, text in facts if text),
        class_="pairs",
    )
    return join(table, _config(run))


def _version(number: str, revision: str | None) -> str:
    return f"{number or MISSING}{f' (git {revision})' if revision else ''}"


def _profiles(s: RunSummary) -> str:
    kinds = list(s.profiles.items())
    shown = ", ".join(f"{kind.devices} {name or 'unknown'}" for name, kind in kinds[:MAX_PROFILES])
    more = f" and {len(kinds) - MAX_PROFILES} more profiles" if len(kinds) > MAX_PROFILES else ""
    return f"{s.devices:,}: {shown}{more}" if shown else f"{s.devices:,}"


def _merge(s: RunSummary) -> str:
    a = s.aggregation
    if a.rule is None:
        return ""
    if a.rule == "app":
        return BY_APP
    defence = f"defence {a.defence}, " if a.defence != "none" else ""
    return (
        f"{defence}{a.rule} with weights {a.weights}, pseudo-gradient {a.pseudo_gradient}, "
        f"server step {a.server}, step length {a.step}"
    )


def _config(run: RunPage) -> Markup:
    """Return the keys of the experiment that are no defaults, and folded all of them."""
    values = list(flat(run.experiment))
    if not values:
        return tag("p", "The experiment file of this run cannot be read.", class_="note")
    origins = run.summary.provenance.origins
    columns = [HtmlColumn("key", "text"), HtmlColumn("value", "text")]
    if not origins:  # of a run that an older version has made
        rows: list[Row] = [(key, _shown(value)) for key, value in values]
        title = tag("summary", f"All {len(rows)} keys of the experiment")
        return tag("details", title, html_table(columns, rows, kind="config"))
    columns.append(HtmlColumn("origin", "text"))
    rows = [(key, _shown(value), origins.get(key, "default")) for key, value in values]
    given = [row for row in rows if row[2] != "default"]
    title = tag("summary", f"All {len(rows)} keys that have a value, defaults included")
    return join(
        tag("h3", "Settings that are not defaults"),
        html_table(columns, given, kind="config"),
        tag("details", title, html_table(columns, rows, kind="config")),
    )


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each key that is not a table: `fleet.0.count`, 3."""
    if isinstance(value, Mapping):
        children: Iterator[tuple[str, Any]] = iter(value.items())
    else:
        children = ((str(index), child) for index, child in enumerate(value))
    for key, child in children:
        below = f"{path}.{key}".removeprefix(".")
        is_table = isinstance(child, Mapping) or (
            isinstance(child, list) and bool(child) and isinstance(child[0], Mapping)
        )
        if is_table:
            yield from flat(child, below)
        else:
            yield below, child


def _shown(value: Any) -> str:
    text = (
        value
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."


def _devices_section(run: RunPage) -> list[Markup]:
    return [_section("devices", "Devices", _devices(run))] if run.summary.fleet else []


def _devices(run: RunPage) -> Markup:
    """Return the table of devices: all, or of a large fleet the worst."""
    s = run.summary
    listed, note = list(s.fleet), ""
    if len(listed) > MAX_LISTED:
        by_accuracy = any(device.accuracy is not None for device in listed)
        order = "lowest accuracy" if by_accuracy else "lowest selection rate"
        listed.sort(key=lambda device: _badness(device, by_accuracy=by_accuracy))
        listed = listed[:MAX_WORST]
        note = (
            f"The {MAX_WORST} of {len(s.fleet):,} devices with the {order}; for all of them: "
            f"fairbed export {s.run_id} --format csv"
        )
    if s.devices > len(s.fleet):
        never = s.devices - len(s.fleet)
        note += f" {never:,} of the {s.devices:,} devices were never selected and are not listed."
    columns = _device_columns(run)
    heads = [column for column, _ in columns]
    rows = [[cell(device) for _, cell in columns] for device in listed]
    text = tag("p", note.strip(), class_="note") if note else Markup("")
    return join(text, html_table(heads, rows, sorts=True, kind="devices"))


def _badness(device: DeviceSummary, *, by_accuracy: bool) -> tuple[float, float, str]:
    accuracy = 2.0 if device.accuracy is None or not by_accuracy else device.accuracy
    rate = 2.0 if device.selection_rate is None else device.selection_rate
    return accuracy, rate, device.name


_DeviceColumn: TypeAlias = tuple[HtmlColumn, Callable[[DeviceSummary], str | HtmlCell]]


def _device_columns(run: RunPage) -> list[_DeviceColumn]:
    """Return the columns of the table of devices for which the run has numbers."""
    s = run.summary
    beta = s.fairness.beta
    guaranteed = "selection_rate" if s.fairness.queue_counts == "selected" else "aggregation_rate"

    def measured(measure: DeviceMeasure, place: PageColumnOf) -> _DeviceColumn:
        values = [measure.value(device) or 0.0 for device in s.fleet] if measure.unit else []
        largest = max(values, default=0.0)

        def cell_of(device: DeviceSummary) -> HtmlCell:
            number = measure.number(device)
            value, share = number.value, None
            if place.has_bar and value is not None:
                share = value if not measure.unit else value / largest if largest else None
            tone: Tone = ""
            if beta is not None and value is not None and measure.key == guaranteed:
                tone = "bad" if value < beta else ""
            elif value is None and number.sample and measure.format.of_sample is None:
                tone = "quiet"
            return HtmlCell(measure.cell(device), value, share=share, tone=tone)

        return HtmlColumn(place.heading, title=measure.meaning), cell_of

    def timed(device: DeviceSummary) -> HtmlCell:
        sample = device.samples["tau_s_median"]
        return HtmlCell(str(sample), float(sample.n))

    def problems(device: DeviceSummary) -> HtmlCell:
        found = run.outcomes.get(device.name, Counter())
        bad = {kind: count for kind, count in found.items() if kind != "done"}
        text = ", ".join(f"{count} {kind}" for kind, count in sorted(bad.items()))
        return HtmlCell(text or "0", float(sum(bad.values())), tone="" if bad else "quiet")

    fleet = s.fleet
    names: list[tuple[bool, HtmlColumn, Callable[[DeviceSummary], str]]] = [
        (True, HtmlColumn("device", "text"), lambda d: d.name),
        (len({d.kind for d in fleet}) > 1, HtmlColumn("kind", "text"), lambda d: d.kind),
        (True, HtmlColumn("profile", "text"), lambda d: d.profile or MISSING),
        (any(d.link for d in fleet), HtmlColumn("link", "text"), lambda d: d.link or MISSING),
        (
            any(d.malicious for d in fleet),
            HtmlColumn("malicious", "text"),
            lambda d: d.malicious or "",
        ),
    ]
    before: dict[str, list[_DeviceColumn]] = {
        "tau_s_median": [
            (HtmlColumn("timed", title="Exchanges with a valid time, of all its exchanges"), timed)
        ]
        if s.exchange.count
        else [],
        "accuracy": [
            (
                HtmlColumn(
                    "problems", title="Exchanges without an update, or with an unreliable time"
                ),
                problems,
            )
        ],
    }
    columns: list[_DeviceColumn] = [(column, cell) for is_known, column, cell in names if is_known]
    for measure in device_measures():
        columns += before.get(measure.key, [])
        if measure.report is not None and measure.report.is_known(s):
            columns.append(measured(measure, measure.report))
    return columns


def _count(value: int) -> HtmlCell:
    return HtmlCell(f"{value:,}", float(value))


def _faults(run: RunPage) -> Markup:
    parts: list[str] = []
    total: Counter[str] = sum(run.outcomes.values(), Counter())
    if total:
        number = sum(total.values())
        text = ", ".join(f"{count:,} {kind}" for kind, count in total.most_common())
        parts.append(tag("p", f"{counted(number, 'exchange')}: {text}."))
    if run.reasons:
        columns = [
            HtmlColumn("outcome", "text"),
            HtmlColumn("reason", "text"),
            HtmlColumn("exchanges"),
            HtmlColumn("devices"),
        ]
        rows: list[Row] = [
            (outcome, _cut(reason) or MISSING, _count(number), _count(devices))
            for outcome, reason, number, devices in run.reasons[:MAX_REASONS]
        ]
        more = len(run.reasons) - MAX_REASONS
        parts += [
            tag("h4", "Exchanges without an update, or with an unreliable time"),
            html_table(columns, rows, sorts=True),
            tag("p", f"and {more} more reasons", class_="note") if more > 0 else Markup(""),
        ]
    if run.alerts:
        columns = [HtmlColumn("alert", "text"), HtmlColumn("from"), HtmlColumn("until")]
        columns.append(HtmlColumn("what to do", "text"))
        rows = [
            (
                alert.kind,
                HtmlCell(clock(alert.begin_s), alert.begin_s),
                HtmlCell("not over", tone="bad")
                if alert.end_s is None
                else HtmlCell(clock(alert.end_s), alert.end_s),
                _cut(alert.text),
            )
            for alert in run.alerts
        ]
        parts += [tag("h4", "Alerts"), html_table(columns, rows)]
    if run.problems:
        kinds = ", ".join(f"{count} {kind}" for kind, count in run.problem_counts.items())
        columns = [HtmlColumn("time"), HtmlColumn("round"), HtmlColumn("level", "text")]
        columns += [HtmlColumn("device", "text"), HtmlColumn("event", "text")]
        rows = [
            (
                instant(event.at_s),
                str(event.round or ""),
                event.level,
                event.device or "",
                f"{event.kind}: {_cut(event.text)}",
            )
            for event in run.problems
        ]
        number = sum(run.problem_counts.values())
        newest = f", the newest {len(rows)} of {number:,}" if number > len(rows) else ""
        parts += [
            tag("h4", f"Warnings and errors{newest}"),
            tag("p", kinds, class_="note"),
            html_table(columns, rows, kind="events"),
        ]
    return join(*parts) if parts else tag("p", "No exchange took place, and no alert was raised.")


def _commands_section(run: RunPage) -> list[Markup]:
    return [_section("commands", "Notes and commands", _commands(run))] if run.commands else []


def _commands(run: RunPage) -> Markup:
    columns = [HtmlColumn("time"), HtmlColumn("operator", "text"), HtmlColumn("command", "text")]
    columns.append(HtmlColumn("answer", "text"))
    rows: list[Row] = []
    for row in run.commands[-MAX_COMMANDS:]:
        value = "" if row.value is None else f"{row.value:g}"
        command = " ".join(filter(None, (row.action, row.device, row.name, value, row.text)))
        answer = HtmlCell(_cut(row.answer), tone="" if row.is_accepted else "bad")
        rows.append((instant(row.at_s), row.operator, _cut(command), answer))
    more = len(run.commands) - len(rows)
    note = f"The newest {len(rows)}; {more} earlier ones are in the store." if more else ""
    text = tag("p", note, class_="note") if note else Markup("")
    return join(text, html_table(columns, rows))


def _runs_table(runs: Sequence[RunPage], arms: Sequence[str]) -> Markup:
    has_arms = len(set(arms)) > 1
    columns = [HtmlColumn("", "text"), HtmlColumn("run", "text")]
    columns += [HtmlColumn("settings", "text")] if has_arms else []
    columns += [HtmlColumn("status", "text"), HtmlColumn("kind", "text"), HtmlColumn("seed")]
    columns += [HtmlColumn("devices"), HtmlColumn("rounds"), HtmlColumn("time in rounds, s")]
    columns.append(HtmlColumn("lowest rate"))
    quality = [_quality(run.summary) for run in runs]
    heads = dict.fromkeys(head for found in quality for head in found)
    columns += [HtmlColumn(head) for head in heads]
    own = list(dict.fromkeys(m for run in runs for m in own_of(run.summary) if m.report))
    columns += [HtmlColumn(m.report, title=m.meaning) for m in own]
    rows: list[Row] = []
    letters = _letters(len(runs))
    for letter, run, arm, found in zip(letters, runs, arms, quality, strict=True):
        s = run.summary
        planned = f" of {s.last_round}" if s.last_round else ""
        tone = "bad" if is_kept(s.fairness) is False else ""
        rate = counted_rate(s.fairness)
        rows.append(
            (
                letter,
                s.run_id,
                *((arm,) if has_arms else ()),
                HtmlCell(s.status, tone="" if s.status == "done" else "bad"),
                "replay" if s.clock == "virtual" else "live",
                str(s.seed),
                _count(s.devices),
                HtmlCell(f"{s.rounds_completed}{planned}", float(s.rounds_completed)),
                HtmlCell(f"{s.virtual_s:,.1f}", s.virtual_s),
                HtmlCell(ratio(rate), rate, tone="bad" if tone else ""),
                *(HtmlCell(ratio(found.get(head)), found.get(head)) for head in heads),
                *(HtmlCell(stated(s, m), number_at(s, m.json).value) for m in own),
            )
        )
    return html_table(columns, rows, sorts=True)


def _sent_table(runs: Sequence[RunPage], arms: Sequence[str]) -> list[Markup]:
    """Return what each run sent and how long its exchanges took; nothing before the first one."""
    if not any(run.summary.exchange.count for run in runs):
        return []
    has_arms = len(set(arms)) > 1
    has_base = any(not isinstance(run.summary.frozen, UnsetType) for run in runs)
    columns = [HtmlColumn("", "text"), *([HtmlColumn("settings", "text")] if has_arms else [])]
    columns += [HtmlColumn("kind", "text"), HtmlColumn("values of the model")]
    columns += [HtmlColumn("all traffic down"), HtmlColumn("up")]
    columns += [HtmlColumn("down, an exchange"), HtmlColumn("up, an exchange")]
    columns += [HtmlColumn(head) for head in ("timed", "median, s", "95 %, s")]
    if has_base:
        columns += [HtmlColumn("frozen part"), HtmlColumn("its download, s", "text")]
    quality = [_quality(run.summary) for run in runs]
    heads = [head for head in dict.fromkeys(h for one in quality for h in one) if "worst" in head]
    columns += [HtmlColumn(head) for head in heads]
    rows: list[Row] = []
    for letter, run, arm, found in zip(_letters(len(runs)), runs, arms, quality, strict=True):
        s, x = run.summary, run.summary.exchange
        times = [
            HtmlCell(cell(seconds(value), value, x.samples[key]), value)
            for key, value in (("median_s", x.median_s), ("p95_s", x.p95_s))
        ]
        rows.append(
            (
                letter,
                *((arm,) if has_arms else ()),
                "replay" if s.clock == "virtual" else "live",
                MISSING if run.n_values is None else HtmlCell(f"{run.n_values:,}", run.n_values),
                HtmlCell(size(s.bytes.down), s.bytes.down),
                HtmlCell(size(s.bytes.up), s.bytes.up),
                HtmlCell(size(x.down_median_bytes), x.down_median_bytes),
                HtmlCell(size(x.up_median_bytes), x.up_median_bytes),
                HtmlCell(f"{x.timed} of {x.count}", x.timed),
                *times,
                *(_base_cells(s) if has_base else ()),
                *(HtmlCell(ratio(found.get(head)), found.get(head)) for head in heads),
            )
        )
    note = (
        "All traffic is that of the rounds, in a live run with the reports of devices; that of an "
        "exchange is the median of model and update. Times are those of timed exchanges."
    )
    if has_base:
        note += (
            " The frozen part is sent to a device once, before its first exchange: none of these "
            "bytes and times contains it."
        )
    table = html_table(columns, rows, sorts=True)
    return [tag("h3", "What was sent, and how long it took"), tag("p", note, class_="note"), table]


def _base_cells(s: RunSummary) -> tuple[HtmlCell, HtmlCell]:
    """Return size and download of the frozen part of a model."""
    part = s.frozen
    if isinstance(part, UnsetType):
        return HtmlCell("0 B", 0), HtmlCell(MISSING)
    took = HtmlCell("none in this run")
    if part.shortest_s is not None and part.longest_s is not None:
        text = f"{seconds(part.shortest_s)} to {seconds(part.longest_s)}, {part.downloaded} devices"
        took = HtmlCell(text, part.longest_s)
    return HtmlCell(size(part.bytes), part.bytes), took


def _quality(s: RunSummary) -> dict[str, float | None]:
    """Return the quality of the model by its name; empty without an evaluation."""
    m = s.worst_metric
    chosen = {} if m is None else {f"{_cut(m.name)}, worst 10 %": m.worst10}
    if s.error is not None:
        return {"RMSE": s.error.rmse_mean} | (chosen or {"RMSE, worst 10 %": s.error.rmse_worst10})
    if s.accuracy.mean is not None:
        return {"accuracy": s.accuracy.mean} | (chosen or {"worst 10 %": s.accuracy.worst10})
    return chosen


def _differing(runs: Sequence[RunPage], arms: Sequence[str]) -> Markup | None:
    """Return the keys in which the experiments of the arms differ; None if there are none."""
    letters: dict[str, list[str]] = {}
    first: dict[str, dict[str, Any]] = {}
    for letter, run, arm in zip(_letters(len(runs)), runs, arms, strict=True):
        letters.setdefault(arm, []).append(letter)
        first.setdefault(arm, dict(flat(run.experiment)))
    values = list(first.values())
    keys = dict.fromkeys(key for found in values for key in found if key != "seed")
    differ = [key for key in keys if len({repr(found.get(key)) for found in values}) > 1]
    if not differ:
        return None
    heads = [HtmlColumn(" ".join(own), "text") for own in letters.values()]
    rows = [
        [key, *(_shown(found[key]) if key in found else MISSING for found in values)]
        for key in differ[:MAX_KEYS]
    ]
    more = len(differ) - len(rows)
    note = tag("p", f"and {more} more keys", class_="note") if more else Markup("")
    return join(html_table([HtmlColumn("key", "text"), *heads], rows, kind="config"), note)


def _footer(runs: Sequence[RunPage]) -> Markup:
    command = " ".join(["fairbed report", *(run.summary.run_id for run in runs[:8])])
    more = " ..." if len(runs) > 8 else ""
    text = (
        f"Written by {command}{more}, Fairbed {version('fairbed')}. Times are those of the fleet."
    )
    return tag("footer", tag("p", text))
