"""A source as data: what it ran, what it printed, and what it claims.

A study is one TOML file in `studies/`. A panel is a table, or a part of one, on one data set. Its
runs are replays that differ in a few keys; its rows are lines of the published table, each read
from a run: of the global or the personal models, over all devices or the benign ones.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fairbed.coordinator.policy.config import PositiveFloat, Section
from fairbed.testbed.experiment.explain import assign, explain
from fairbed.testbed.experiment.file import Experiment, parse_experiment
from fairbed.testbed.reproduction.measures import MEASURES
from fairbed.testbed.reproduction.options import NAMES
from fairbed.wire.text import text_of, toml_of

FOLDER = Path(__file__).with_name("studies")

Name: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
"""Of a panel and of a run: a part of the names of folders."""
SizeName: TypeAlias = Literal["smoke", "full"]
ClaimKind: TypeAlias = Literal["more", "less", "not less", "within", "below"]


class Size(Section, frozen=True, kw_only=True):
    """How much of a panel is run."""

    seeds: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    """Number of seeds, from 0; None: the number of the study."""
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keys of the experiment, with dots, and their values."""


class Run(Section, frozen=True, kw_only=True):
    """A replay."""

    name: Name
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    cost_s: PositiveFloat = 60.0
    """Processor seconds of one cell of the full run, for the estimate before the first one ends."""


class Row(Section, frozen=True, kw_only=True):
    """A line of a published table, or one of ours beside it."""

    label: str
    run: Name
    panel: Name | None = None
    """Panel of that run; None: this panel. A run without an attack serves several panels."""
    model: Literal["global", "personal"] = "global"
    benign: Name | None = None
    """The run whose malicious devices do not count; None counts all devices."""
    published: dict[str, float] = msgspec.field(default_factory=dict)
    """By metric; in its unit."""
    spread: dict[str, float] = msgspec.field(default_factory=dict)
    """The deviation that the source prints beside a number."""


class Panel(Section, frozen=True, kw_only=True):
    """A table of a source, or a part of one, on one data set."""

    name: Name
    title: str
    metrics: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Columns of the table."""
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    runs: tuple[Name, ...] = ()
    """Runs of the study that it has; empty takes all."""
    row: Annotated[tuple[Row, ...], Meta(min_length=1)]
    M: PositiveFloat | None = None
    """Bound of the losses, for metrics of utility."""
    reference: str = ""
    """Label of the row that ratios refer to."""
    deviations: tuple[str, ...] = ()
    """What differs from the source."""
    not_comparable: str = ""
    """Why its numbers decide no claim; empty if they do."""
    smoke: Size = Size()
    full: Size = Size()


class Claim(Section, frozen=True, kw_only=True):
    """An ordering that a source states, as a sentence about the rows of a panel."""

    panel: Name
    metric: str
    of: str
    """Label of a row."""
    kind: ClaimKind
    """more, less: than every row of `than`; not less: than it by `margin` or more; within: `margin`
    of the row of `than`, or of `bound`; below: `bound`."""
    than: tuple[str, ...] = ()
    margin: PositiveFloat | None = None
    bound: float = 0.0
    is_primary: bool = True
    """The claims that a source is about begin with four fifths of the level."""
    treatment: Literal["as published", "equal", "not in the source"] = "as published"
    """equal: rules with equal weights and steps of one length."""
    not_comparable: str = ""
    """Why it cannot be judged here, whatever the numbers are."""
    published_fails: str = ""
    """Set if the published numbers themselves contradict it: where."""


class Study(Section, frozen=True, kw_only=True):
    """A source."""

    title: str
    source: str
    """Citation."""
    settings: str
    """Where settings and numbers are from, in a sentence or two."""
    experiment: dict[str, Any]
    """The experiment that all runs change."""
    run: Annotated[tuple[Run, ...], Meta(min_length=1)]
    panel: Annotated[tuple[Panel, ...], Meta(min_length=1)]
    claim: tuple[Claim, ...] = ()
    deviations: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Tables of the source that are not run, each with the reason."""
    smoke: Size
    full: Size

    def runs_of(self, panel: Panel) -> list[Run]:
        """Return the runs of a panel."""
        return [run for run in self.run if not panel.runs or run.name in panel.runs]

    def seeds(self, panel: Panel, size: SizeName) -> int:
        """Return the number of seeds of a panel."""
        own, shared = getattr(panel, size), getattr(self, size)
        found: int = own.seeds or shared.seeds or 1
        return found

    def experiment_of(
        self, name: str, panel: Panel, run: Run, size: SizeName, seed: int
    ) -> Experiment:
        """Return the experiment of a cell.

        Raises:
            ExperimentError: A key or a value is refused.
            ValueError: A key is no key of an experiment.
        """
        raw = copy.deepcopy(self.experiment)
        of_size: tuple[Size, Size] = (getattr(self, size), getattr(panel, size))
        for settings in (panel.set, run.set, *(one.set for one in of_size)):
            for key, value in settings.items():
                assign(raw, key, copy.deepcopy(value))
        raw |= {"name": f"{name}.{panel.name}.{run.name}", "seed": seed}
        return parse_experiment(raw, f"{name}: {panel.name}: {run.name}")


def load_study(name: str, folder: Path = FOLDER) -> Study:
    """Return a study by name.

    Raises:
        ValueError: The file breaks a rule; one line.
    """
    path = folder / f"{name}.toml"
    raw = toml_of(text_of(path.read_bytes()))
    try:
        study = msgspec.convert(raw, Study)
    except msgspec.ValidationError as exc:
        raise ValueError(f"{path}: {explain(exc, raw, Study)}") from exc
    for problem in _problems(study):
        raise ValueError(f"{path}: {problem}")
    return study


def load_studies(names: tuple[str, ...] = NAMES) -> Mapping[str, Study]:
    """Return studies by name; all of them by default."""
    return {name: load_study(name) for name in names}


def _problems(study: Study) -> "list[str]":
    """Return the names that lead nowhere."""
    found = list[str]()
    runs = {run.name for run in study.run}
    panels = {panel.name: panel for panel in study.panel}
    for panel in study.panel:
        labels = [row.label for row in panel.row]
        own = {run.name for run in study.runs_of(panel)}
        found += [f"panel {panel.name}: unknown run {name!r}" for name in {*panel.runs} - runs]
        for row in panel.row:
            there = panels.get(row.panel or panel.name)
            if there is None:
                found.append(f"{panel.name}: {row.label}: unknown panel {row.panel!r}")
            elif row.run not in {run.name for run in study.runs_of(there)}:
                found.append(f"{panel.name}: {row.label}: unknown run {row.run!r}")
            if row.benign is not None and row.benign not in own:
                found.append(f"{panel.name}: {row.label}: unknown run {row.benign!r}")
            printed = {*row.published, *row.spread}
            found += [
                f"{panel.name}: {row.label}: {key!r} is no column"
                for key in printed - {*panel.metrics}
            ]
        found += [f"{panel.name}: unknown metric {x!r}" for x in {*panel.metrics} - {*MEASURES}]
        if len(set(labels)) < len(labels):
            found.append(f"panel {panel.name}: labels of rows must be distinct, got {labels}")
        if panel.reference and panel.reference not in labels:
            found.append(f"panel {panel.name}: unknown reference {panel.reference!r}")
    for claim in study.claim:
        if claim.panel not in panels:
            found.append(f"claim: unknown panel {claim.panel!r}")
            continue
        labels = [row.label for row in panels[claim.panel].row]
        found += [
            f"claim: {claim.panel}: no row {x!r}" for x in {claim.of, *claim.than} - {*labels}
        ]
        if claim.metric not in MEASURES:
            found.append(f"claim: unknown metric {claim.metric!r}")
        if (claim.kind in ("within", "not less")) != (claim.margin is not None):
            found.append(
                f"claim: {claim.of}: margin is for kinds within and not less, and for them"
            )
        if claim.kind in ("more", "less", "not less") and not claim.than:
            found.append(f"claim: {claim.of}: than must name a row")
    return found
