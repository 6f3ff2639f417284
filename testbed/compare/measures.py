"""Read the metrics and curves of a cell from its run: the measures of the catalogue with `compare`.

Virtual queues are computed for policies without queues, too: all arms have the same guarantee.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.report.device_time import device_seconds
from fairbed.coordinator.report.facts import RunFacts, VirtualQueues
from fairbed.coordinator.report.measures import run_measures
from fairbed.coordinator.report.measures.entry import Evaluation, Group, number_at
from fairbed.coordinator.report.measures.scales import ANY_METRIC, MetricKind, RunSize
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_schema import RunSummary
from fairbed.coordinator.store import Provenance, RunReader
from fairbed.coordinator.store.tables import MetricRow, RoundRow
from fairbed.wire.shard import LEAST_VALIDATION

MAX_LOSSES = 1_000
"""Most devices whose losses are kept, for the utilities of several arms."""
MAX_POINTS = 1_000
"""Maximum number of rounds in the curves of a run; longer runs have every k-th round."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Description of a number of a cell."""

    key: str
    group: Group
    heading: str
    short: str
    """Heading in tables of all metrics."""
    unit: str
    """Empty for a ratio or a count."""
    better: Literal["less", "more"] | None
    """None: it describes the arm, and differences are not tested."""
    digits: int
    """Digits after the decimal point."""
    quantity: MetricKind
    """Range, scale and resolution."""
    is_tested: bool = True
    """False: differences are tested if it is the primary metric or that of a contrast."""


def known_metrics() -> tuple[Metric, ...]:
    """Return the metrics of every run; those of a target or a budget are added when known."""
    return tuple(
        Metric(
            measure.key,
            measure.compare.group,
            measure.compare.heading or measure.name,
            measure.compare.short,
            measure.unit,
            measure.compare.better,
            measure.compare.digits,
            measure.compare.kind,
            measure.compare.is_tested,
        )
        for measure in run_measures()
        if measure.compare is not None
    )


def named_keys(names: Iterable[str]) -> list[str]:
    """Return the keys of metrics by name: the mean over devices of each, and its worst tenth."""
    return [key for name in names for key in (f"metric.{name}", f"metric.{name}.worst10")]


def named_metrics(directions: Mapping[str, str]) -> list[Metric]:
    """Return the metrics by name, given whether more or less of each is better."""
    found = []
    for name, direction in directions.items():
        better: Literal["less", "more"] = "less" if direction == "less" else "more"
        mean, worst = named_keys([name])
        headings = ((mean, name), (worst, f"{name}, worst 10 %"))
        found += [
            Metric(key, "quality", heading, heading, "", better, 4, ANY_METRIC)
            for key, heading in headings
        ]
    return found


def keys_of(group: Group) -> tuple[str, ...]:
    """Return the keys of the metrics of a group."""
    return tuple(metric.key for metric in known_metrics() if metric.group == group)


def keys_with_table() -> tuple[str, ...]:
    """Return the metrics with a table of their own, besides the primary one and the targets."""
    return tuple(m.key for m in run_measures() if m.compare is not None and m.compare.has_table)


RATIO_SUM, CORE_MARGIN = "core_ratio_sum", "core_margin"


def metrics_of_pairs() -> tuple[Metric, ...]:
    """Return the metrics of an arm beside others, whose differences are not tested."""
    headings = {RATIO_SUM: "ratio sum of the baseline", CORE_MARGIN: "core margin"}
    return tuple(
        Metric(key, "fairness", heading, heading, "", None, 3, ANY_METRIC, is_tested=False)
        for key, heading in headings.items()
    )


TOTAL_TIME, FINAL_ACCURACY, MACHINE_TIME = "virtual_s", "accuracy_mean", "wall_s"
FINAL_ERROR = "rmse_mean"
"""Of regression, which has no accuracy."""
POOLED_ACCURACY, POOLED_ERROR = "accuracy_pooled", "rmse_pooled"
"""Over the examples of all devices, each of which counts once."""
ENERGY = "energy_j"
"""Known where the profile of every device has its power."""
UPDATES = "updates"
"""Updates aggregated so far: progress without training."""
NEEDS_TRAINING: tuple[Group, ...] = ("accuracy", "quality", "fairness", "served", "attack")
"""Groups of metrics that need training, but for `WITHOUT_TRAINING`."""
WITHOUT_TRAINING = "malicious_selections"


def scores() -> tuple[str, ...]:
    """Return the metrics of each evaluation: columns of its row in the store."""
    return tuple(
        measure.key
        for measure in run_measures()
        if measure.compare is not None
        and measure.compare.group == "accuracy"
        and isinstance(measure.source, Evaluation)
    )


class RunCurves(Struct, frozen=True, kw_only=True):
    """A run over time; times are seconds of the fleet, without evaluation."""

    rounds: tuple[int, ...]
    closed_s: tuple[float, ...]
    """End of each of these rounds."""
    device_s: tuple[float, ...]
    """Device-seconds up to the end of each of these rounds."""
    updates: tuple[int, ...]
    """Updates aggregated up to the end of each of these rounds."""
    queue_total: tuple[float, ...]
    """Sum of Z after each of these rounds; empty if unknown."""
    evaluated: tuple[int, ...]
    """All rounds after which the model was evaluated."""
    evaluated_s: tuple[float, ...]
    evaluated_device_s: tuple[float, ...]
    scores: dict[str, tuple[float, ...]]
    """Metrics of each evaluation, by the keys of `scores`."""

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Mean accuracy over devices of each evaluation."""
        return self.scores[FINAL_ACCURACY]


class RunMeasures(Struct, frozen=True, kw_only=True):
    """Metrics and curves of a finished run."""

    values: dict[str, float | None]
    """Values by the keys of `known_metrics`; None is undefined or unknown."""
    missing: dict[str, str]
    """Why a value is None, by its key; the reasons of equal causes are equal texts."""
    size: RunSize
    curves: RunCurves
    warnings: dict[str, str] = {}
    """First text of each kind of warning of the run (`RunSummary.warnings`)."""
    inputs: dict[str, str] = {}
    """Hash of each input (`testbed.inputs`), and versions of packages."""
    named: dict[str, str] = {}
    """Direction of each metric of `evaluation.metrics`: more or less."""
    has_attack: bool = False
    """Whether its experiment has `[fleet.malicious]`, which may make no device malicious."""
    evaluated: int = 0
    """Devices with held-out examples."""
    few: int = 0
    """Those of them with fewer than `LEAST_VALIDATION`."""
    losses: dict[str, float | None] = {}
    """Loss of the model on the held-out examples of each device, nats; empty for more than
    `MAX_LOSSES` devices, and without training."""


def measure(folder: Path) -> RunMeasures:
    """Return the metrics and curves of a finished run.

    Raises:
        StoreError: There is no run, or its store cannot be read.
    """
    with RunReader(folder) as reader:
        summary = summarise_run(reader)
        with reader.snapshot():
            facts = RunFacts(reader, summary)
            rounds, counts, queues = facts.rounds, facts.counts, facts.queues
            evaluations, device_s = reader.metrics(), device_seconds(reader)
            values, missing = _values(facts, summary)
            tests = [row for row in facts.device_metrics.values() if row.n]
            held_out = [row.n for row in tests]
            losses = {row.device: row.loss for row in tests} if len(tests) <= MAX_LOSSES else {}
            tested = sum(held_out)
    if not tested and evaluations and evaluations[-1].test_n is not None:
        tested = evaluations[-1].test_n
    for one in summary.metrics or ():
        for key, value in zip(named_keys([one.name]), (one.mean, one.worst10), strict=True):
            values[key] = value
            if value is None:
                missing[key] = "no device has an example that counts in it"
    size = RunSize(
        rounds=max(1, len(rounds)),
        devices=max(1, summary.devices),
        selections=max(1, sum(count.selected for count in counts.values())),
        test_examples=tested or None,
    )
    return RunMeasures(
        values=values,
        missing=missing,
        size=size,
        curves=_curves(rounds, device_s, queues, evaluations),
        warnings={warning.kind: warning.text for warning in summary.warnings},
        inputs=inputs_in(summary.provenance),
        named={one.name: one.better for one in summary.metrics or ()},
        has_attack=summary.attackers is not None,
        evaluated=len(held_out),
        few=sum(n < LEAST_VALIDATION for n in held_out),
        losses=losses,
    )


def _values(facts: RunFacts, summary: RunSummary) -> tuple[dict[str, float | None], dict[str, str]]:
    """Return the values of all metrics of a run, and why it lacks one."""
    values, missing = dict[str, float | None](), dict[str, str]()
    for one in run_measures():
        if one.compare is None:
            continue
        number = number_at(summary, one.json) if one.is_own else one.of(facts)
        values[one.key] = number.value
        if number.value is None:
            why = one.why_none if isinstance(one.why_none, str) else one.why_none(summary)
            missing[one.key] = (number.why_none if one.is_own else "") or why
    return values, missing


def inputs_in(provenance: Provenance) -> dict[str, str]:
    """Return the inputs of a run, and the versions of packages."""
    return provenance.packages | provenance.inputs


def _curves(
    rounds: Sequence[RoundRow],
    device_s: Floats,
    queues: VirtualQueues | None,
    evaluations: Sequence[MetricRow],
) -> RunCurves:
    ends: Floats = np.cumsum([row.duration_s for row in rounds], dtype=np.float64)
    updates = np.cumsum([row.aggregated for row in rounds], dtype=np.int64)
    index = {row.round: position for position, row in enumerate(rounds)}
    known = [row for row in evaluations if row.round in index and row.accuracy_mean is not None]
    at = np.array([index[row.round] for row in known], dtype=np.int64)
    every = max(1, -(-len(rounds) // MAX_POINTS))
    shown = slice(every - 1, None, every)
    return RunCurves(
        rounds=tuple(row.round for row in rounds[shown]),
        closed_s=tuple(ends[shown].tolist()),
        device_s=tuple(device_s[shown].tolist()),
        updates=tuple(updates[shown].tolist()),
        queue_total=tuple(queues.total[shown].tolist()) if queues else (),
        evaluated=tuple(row.round for row in known),
        evaluated_s=tuple(ends[at].tolist()),
        evaluated_device_s=tuple(device_s[at].tolist()),
        scores={key: tuple(getattr(row, key) for row in known) for key in scores()},
    )
