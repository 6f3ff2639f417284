"""The rows and the claims of a study over its finished cells. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from fairbed.testbed.compare.statistics import mean_interval
from fairbed.testbed.reproduction.claims import Judged, RowValues, judged_claims
from fairbed.testbed.reproduction.measures import MEASURES, Context, Scores, Undefined
from fairbed.testbed.reproduction.record import CellRecord
from fairbed.testbed.reproduction.study import Claim, Panel, Row, SizeName, Study


class Number(Struct, frozen=True, kw_only=True):
    """One number of a row, published and ours."""

    published: float | None
    spread: float | None
    mean: float | None
    low: float | None
    high: float | None
    n: int
    """Seeds that have it."""
    missing: str
    """Why a seed lacks it; empty if none does."""


class RowResult(Struct, frozen=True, kw_only=True):
    """A row of a panel."""

    label: str
    numbers: dict[str, Number]
    """By metric."""


class PanelResult(Struct, frozen=True, kw_only=True):
    """A panel with its rows."""

    name: str
    title: str
    metrics: list[str]
    rows: list[RowResult]
    seeds: int
    """Planned seeds."""
    cells: int
    """Planned cells."""
    finished: int
    problem: str
    """Why it has no data; empty if it has."""
    deviations: list[str]
    not_comparable: str


class StudyResult(Struct, frozen=True, kw_only=True):
    """A source: its rows beside ours, and its claims."""

    name: str
    title: str
    source: str
    settings: str
    size: str
    command: str
    panels: list[PanelResult]
    claims: list[Judged]
    deviations: list[str]
    left_out: list[str]
    versions: list[str]
    """Versions of Fairbed that its cells have."""
    seconds: float
    """Processor seconds of its finished cells."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The finished cells of a panel."""

    records: Mapping[tuple[str, int], CellRecord]
    """By run and seed."""
    problem: str = ""
    """Why there is no data; empty if there is."""


def result_of(
    name: str, study: Study, size: SizeName, command: str, finished: Mapping[str, Finished]
) -> StudyResult:
    """Return the rows and claims of a study.

    Args:
        name: Of the study.
        study: The study.
        size: What was run.
        command: The command that runs it.
        finished: The finished cells by panel.
    """
    by_panel = {panel.name: _values(study, panel, size, finished) for panel in study.panel}
    rows = {(p, metric): own for p, found in by_panel.items() for metric, own in found.items()}
    own_panels = {panel.name: panel for panel in study.panel}
    records = [record for one in finished.values() for record in one.records.values()]
    return StudyResult(
        name=name,
        title=study.title,
        source=study.source,
        settings=study.settings,
        size=size,
        command=command,
        panels=[
            _panel(study, panel, size, finished[panel.name], by_panel[panel.name])
            for panel in study.panel
        ],
        claims=judged_claims(
            study.claim,
            rows,
            {p: one.problem for p, one in finished.items() if one.problem},
            {panel.name: panel.not_comparable for panel in study.panel if panel.not_comparable},
            [published_of(claim, own_panels[claim.panel]) for claim in study.claim],
        ),
        deviations=list(study.deviations),
        left_out=list(study.left_out),
        versions=sorted({record.fairbed for record in records}),
        seconds=sum(record.seconds for record in records),
    )


def _values(
    study: Study, panel: Panel, size: SizeName, finished: Mapping[str, Finished]
) -> dict[str, dict[str, RowValues]]:
    """Return the values of each metric and row; also of metrics that only a claim has."""
    metrics = dict.fromkeys(panel.metrics)
    metrics |= dict.fromkeys(c.metric for c in study.claim if c.panel == panel.name)
    seeds = range(study.seeds(panel, size))
    rows = {row.label: row for row in panel.row}
    found: dict[str, dict[str, RowValues]] = {metric: {} for metric in metrics}
    for label, row in rows.items():
        scores = {seed: _scores(panel, row, seed, finished) for seed in seeds}
        reference = rows.get(panel.reference)
        for metric in metrics:
            values, missing = dict[int, float](), dict[int, str]()
            resolution = 0.0
            for seed in seeds:
                own = scores[seed]
                if isinstance(own, str):
                    missing[seed] = own
                    continue
                other = None
                if reference is not None and reference.label != label:
                    of_reference = _scores(panel, reference, seed, finished)
                    other = None if isinstance(of_reference, str) else of_reference
                try:
                    values[seed] = MEASURES[metric].of(own, Context(panel.M, other))
                except Undefined as exc:
                    missing[seed] = str(exc)
                    continue
                resolution = max(resolution, MEASURES[metric].resolution(own))
            found[metric][label] = RowValues(values, missing, resolution)
    return found


def _scores(panel: Panel, row: Row, seed: int, finished: Mapping[str, Finished]) -> Scores | str:
    """Return the scores of a row in a seed; a reason if they are missing."""
    record = finished[row.panel or panel.name].records.get((row.run, seed))
    if record is None:
        return "not finished"
    without = None
    if row.benign is not None:
        without = finished[panel.name].records.get((row.benign, seed))
        if without is None:
            return f"{row.benign} is not finished"
    return record.scores(row.model, without)


def _panel(
    study: Study,
    panel: Panel,
    size: SizeName,
    finished: Finished,
    values: Mapping[str, Mapping[str, RowValues]],
) -> PanelResult:
    seeds = study.seeds(panel, size)
    return PanelResult(
        name=panel.name,
        title=panel.title,
        metrics=list(panel.metrics),
        rows=[
            RowResult(
                label=row.label,
                numbers={m: _number(row, m, values[m][row.label]) for m in panel.metrics},
            )
            for row in panel.row
        ],
        seeds=seeds,
        cells=seeds * len(study.runs_of(panel)),
        finished=len(finished.records),
        problem=finished.problem,
        deviations=list(panel.deviations),
        not_comparable=panel.not_comparable,
    )


def _number(row: Row, metric: str, values: RowValues) -> Number:
    known = np.array([values.values[seed] for seed in sorted(values.values)], dtype=np.float64)
    interval = mean_interval(known) if known.size else None
    return Number(
        published=row.published.get(metric),
        spread=row.spread.get(metric),
        mean=None if interval is None else interval.mean,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        n=known.size,
        missing=next(iter(values.missing.values()), ""),
    )


def published_of(claim: Claim, panel: Panel) -> str:
    """Return what the numbers of the source are for a claim; empty if it prints none."""
    printed = {row.label: row.published.get(claim.metric) for row in panel.row}
    own = printed[claim.of]
    others = [printed[label] for label in claim.than]
    if own is None or any(value is None for value in others):
        return ""
    if not others:
        return f"{own:g}"
    return f"{own:g}, against {', '.join(f'{value:g}' for value in others)}"


def published_agrees(claim: Claim, panel: Panel) -> bool | None:
    """Return whether the numbers of the source agree with a claim; None if it prints none."""
    printed = {row.label: row.published.get(claim.metric) for row in panel.row}
    own = printed[claim.of]
    if own is None:
        return None
    gaps = list[float]()
    for label in claim.than:
        other = printed[label]
        if other is None:
            return None
        gaps.append(own - other)
    if not claim.than:
        gaps.append(own - claim.bound)
    if claim.kind == "within":
        assert claim.margin is not None, "a study without it is refused"
        return all(abs(gap) <= claim.margin + 1e-9 for gap in gaps)
    if claim.kind == "not less":
        return all(gap > -(claim.margin or 0.0) for gap in gaps)
    return all(gap > 0.0 if claim.kind == "more" else gap < 0.0 for gap in gaps)
