"""Compare the arms of a grid with its baseline: the content of `compare.json`, tables and figures.

After the first release, new versions only add keys to the JSON; an unknown number is null.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.config import ACCURACY
from fairbed.coordinator.policy.factories import rescaling_parts
from fairbed.coordinator.report.measures.scales import (
    CLOCK_S,
    COUNT,
    MetricKind,
    RunSize,
    Scale,
)
from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.contrasts import Effect, measured_effects
from fairbed.testbed.compare.differences import (
    ArmValues,
    Difference,
    Estimate,
    corrected,
    difference,
    estimate,
    first_level,
    judged,
    on_scale,
    without_verdict,
)
from fairbed.testbed.compare.grid import BUDGETS, Arm, Grid, TargetConfig, serves_personal
from fairbed.testbed.compare.measures import (
    CORE_MARGIN,
    FINAL_ERROR,
    MACHINE_TIME,
    RATIO_SUM,
    UPDATES,
    Metric,
    RunCurves,
    keys_of,
    known_metrics,
    metrics_of_pairs,
    named_keys,
    named_metrics,
)
from fairbed.testbed.compare.run_warnings import warnings_of_runs
from fairbed.testbed.compare.statistics import (
    CONFIDENCE,
    LEAST_SEEDS_TO_JUDGE,
    WINDOW,
    dominators,
    final_value,
    on_front,
    restricted,
    time_to,
    value_at,
)
from fairbed.testbed.compare.tuning.result import TuningSummary
from fairbed.testbed.compare.utilities import common_m, one_game, pairs_of, utilities_of

LEAST_SEEDS = 10
"""Fewer seeds give a warning without training, where seeds are cheap."""
ADD_SEEDS = "add seeds, finished cells are kept"
"""What to do about too few seeds."""
FRONT_TIME, FRONT_RATE = "virtual_s", "min_rate_selected"
T = TypeVar("T")

UPDATE_COUNT = Metric(UPDATES, "selection", "updates", "updates", "", "more", 0, COUNT)


def metric_of_budgets(key: str) -> Metric:
    """Return a metric that can be compared at equal budgets."""
    return ({metric.key: metric for metric in known_metrics()} | {UPDATES: UPDATE_COUNT})[key]


REPORTED = ("accuracy_mean", "accuracy_worst10", FINAL_ERROR, FRONT_TIME, FRONT_RATE, "device_s")
"""Metrics of the table for a paper, besides the primary one and the first target."""
MAX_REPORTED = 4
"""Maximum number of them unless the grid file chooses: with intervals, they fit a page."""
FAILED = "the run failed"
"""Why a failed cell lacks every metric; its problem has the details."""


class Missing(Struct, frozen=True, kw_only=True):
    """Seeds of an arm in which a metric is undefined."""

    seeds: list[int]
    reason: str
    """Why, in one line; empty if unknown."""


class ArmSummary(Struct, frozen=True, kw_only=True):
    """One arm."""

    name: str
    curve: str
    """Arms of one curve differ only in selection.V."""
    front_value: float | None
    """selection.V, if it is an axis."""
    beta: float
    """Guaranteed rate."""
    weights: str
    """Weight of each device in the aggregation before its loss counts: equal, n or n_over_pi."""
    weights_from: str
    """The rule whose default these weights are; empty if the experiment sets them."""
    step: str
    """Length of the step: as-published, or normalised."""
    rescaled_by: list[str]
    """Parts of the arm that set the length of the step by another law than a mean of updates."""
    cohorts_of: str | None
    """The arm whose cohorts it has; null: it selects for itself."""
    seeds: list[int]
    """Seeds of its finished cells."""
    is_on_front: bool | None
    """Whether no other arm has a shorter mean total time and a higher mean least rate (Pareto
    front); None if these are unknown."""
    dominated_by: dict[str, str] | None
    """The arms that are no worse in both metrics of `Comparison.pareto` and better in one, by means
    over the seeds of both, each with the seeds in which it is so alone: `7/10`; None if a metric is
    unknown."""
    reached: dict[str, str]
    """Share of runs that reached each target before their end: `7/10`."""
    missing: dict[str, Missing]
    """The metrics that a seed of the arm lacks, failed cells included."""
    values: dict[str, Estimate]
    differences: dict[str, Difference]
    """Differences from the baseline; empty for the baseline itself."""

    def n_seeds(self, key: str) -> int:
        """Seeds of the arm, with and without a metric."""
        own, lacks = self.values.get(key), self.missing.get(key)
        return (own.n if own else 0) + (len(lacks.seeds) if lacks else 0)


def undefined_in(arms: Sequence[ArmSummary], key: str, *, with_failed: bool = True) -> str:
    """Return in how many seeds arms lack a metric, and why; empty if all have it.

    Args:
        arms: The arms.
        key: The metric.
        with_failed: Count arms in which failed cells alone lack it.
    """
    lacking = [arm for arm in arms if key in arm.missing]
    if not with_failed:
        lacking = [arm for arm in lacking if arm.missing[key].reason != FAILED]
    of_reason: dict[str, list[str]] = {}
    for arm in lacking:
        seeds = f"{len(arm.missing[key].seeds)} of {arm.n_seeds(key)} seeds of {arm.name}"
        of_reason.setdefault(arm.missing[key].reason, []).append(seeds)
    return "; ".join(
        f"{', '.join(parts)}{f' ({reason})' if reason else ''}"
        for reason, parts in of_reason.items()
    )


class Target(Struct, frozen=True, kw_only=True):
    """An accuracy to reach."""

    key: str
    """Key of its metric."""
    accuracy: float
    rule: str
    """Origin of the number."""


def three_digits(value: float) -> str:
    """Return a positive number with at least three significant digits, and one decimal place."""
    return f"{value:,.{max(1, 2 - math.floor(math.log10(value)) if value > 0.0 else 1)}f}"


class Budget(Struct, frozen=True, kw_only=True):
    """The largest budget that every run reached."""

    key: str
    """Key of its metric."""
    amount: float
    unit: Literal["rounds", "s", "device-s"]

    @property
    def text(self) -> str:
        """The budget with its unit."""
        if self.unit == "rounds":
            return f"{self.amount:,.0f} rounds"
        return f"{three_digits(self.amount)} {self.unit}"


class CellSummary(Struct, frozen=True, kw_only=True):
    """One run."""

    arm: str
    seed: int
    folder: str
    problem: str
    """One line if the run failed; otherwise empty."""
    values: dict[str, float | None]
    missing: dict[str, str]
    """Why a value is null, by its key; empty if unknown."""


class MetricSummary(Struct, frozen=True, kw_only=True):
    """Description of a key of `values`."""

    key: str
    group: str
    heading: str
    short: str
    unit: str
    better: Literal["less", "more"] | None
    digits: int
    is_tested: bool
    """False: differences are shown without a verdict, but for the primary metric."""
    scale: Scale
    """`log`: means are geometric, and differences relative to the baseline."""
    lowest: float | None
    """Range of the metric, to which intervals are clipped; null without a bound."""
    highest: float | None


class Comparison(Struct, frozen=True, kw_only=True):
    """The results of a grid."""

    name: str
    grid: str
    """Hash of the cells, the baseline and the target."""
    version: str
    fleet: str
    baseline: str
    primary: str
    """Key of the metric that the grid is about."""
    report: list[str]
    """Keys of the metrics of the table for a paper, the primary one first."""
    pareto: list[str]
    """Keys of the mean and the worst tenth by which arms dominate others; empty if unknown."""
    utilities: str
    """How utilities of the arms are counted, in one line; empty without any."""
    worst: str | None
    """Key of the worst tenth that has a table, by `evaluation.worst`; None: that of accuracy or
    error."""
    seeds: list[int]
    has_training: bool
    targets: list[Target]
    budget_metric: str
    """Key of the metric that is compared at equal budgets."""
    budgets: list[Budget]
    horizon_s: float | None
    """Limit of the times to a target in their mean; None without targets."""
    confidence: float
    comparisons: int
    """Differences that were tested together: the family."""
    warnings: list[str]
    metrics: list[MetricSummary]
    arms: list[ArmSummary]
    effects: list[Effect]
    """Of the contrasts; empty without any."""
    tuning: TuningSummary | None
    """How the constants of the arms were chosen; null: they are those of the experiments."""
    cells: list[CellSummary]

    @property
    def problems(self) -> list[CellSummary]:
        """Cells that failed."""
        return [cell for cell in self.cells if cell.problem]

    @property
    def budget_heading(self) -> str:
        """Heading of the metric that is compared at equal budgets."""
        return metric_of_budgets(self.budget_metric).heading.removeprefix("final ")

    @property
    def undefined(self) -> list[str]:
        """One line for the metrics, besides the primary one, that some seeds lack for one reason.

        Those that failed cells lack have a warning.
        """
        metrics: dict[str, list[str]] = {}
        for metric in self.metrics:
            text = undefined_in(self.arms, metric.key, with_failed=False)
            if text and metric.key != self.primary:
                metrics.setdefault(text, []).append(metric.heading)
        return [f"Undefined: {', '.join(names)}: {text}." for text, names in metrics.items()]

    @property
    def scales(self) -> list[str]:
        """How to read the metrics on the log scale, and which could not be on it."""
        wanted = {metric.key for metric in known_metrics() if metric.quantity.scale == "log"}
        if metric_of_budgets(self.budget_metric).quantity.scale == "log":
            wanted.update(BUDGETS)
        is_log = [metric.heading for metric in self.metrics if metric.scale == "log"]
        no_log = [m.heading for m in self.metrics if m.key in wanted and m.scale == "linear"]
        lines = []
        if is_log:
            lines.append(
                f"Geometric means, and differences in % of {self.baseline} (ratios of these means, "
                f"tested on logarithms): {', '.join(is_log)}."
            )
        if no_log:
            lines.append(
                f"Arithmetic means and differences, because a value is 0: {', '.join(no_log)}."
            )
        return lines

    @property
    def has_clipped(self) -> bool:
        """An end of an interval was outside the range of its metric."""
        return any(
            any(found.is_clipped for found in arm.values.values())
            or any(gap.is_clipped for gap in arm.differences.values())
            for arm in self.arms
        )

    @property
    def has_no_verdicts(self) -> bool:
        """An arm has no verdict because a seed lacks a metric."""
        return any(gap.reason for arm in self.arms for gap in arm.differences.values())

    @property
    def weightings(self) -> str:
        """One line with the weights of each arm; empty without training."""
        if not self.has_training:
            return ""
        arms_by_weights: dict[str, list[str]] = {}
        for arm in self.arms:
            default = f" (default of {arm.weights_from})" if arm.weights_from else ""
            arms_by_weights.setdefault(f"{arm.weights}{default}", []).append(arm.name)
        if len(arms_by_weights) == 1:
            return f"aggregation.weights: {next(iter(arms_by_weights))} in all arms"
        differ = " differ" if len({arm.weights for arm in self.arms}) > 1 else ""
        return f"aggregation.weights{differ}: " + "; ".join(
            f"{weights} in {', '.join(names)}" for weights, names in arms_by_weights.items()
        )

    @property
    def constants(self) -> str:
        """How the constants of the arms were chosen, in one line; empty without training."""
        if self.tuning is not None:
            return self.tuning.line
        if not self.has_training:
            return ""
        return (
            "Constants were not tuned: every arm has those of its experiment, and a difference may "
            "come from them ([tune] in a grid file)"
        )

    @property
    def cohorts(self) -> str:
        """One line with the arms that have the cohorts of another one; empty if none has."""
        arms_by_leader: dict[str, list[str]] = {}
        for arm in self.arms:
            if arm.cohorts_of is not None:
                arms_by_leader.setdefault(arm.cohorts_of, []).append(arm.name)
        if not arms_by_leader:
            return ""
        return "cohorts fixed: those of " + "; those of ".join(
            f"{leader} also in {', '.join(names)}" for leader, names in arms_by_leader.items()
        )

    @property
    def steps(self) -> str:
        """One line with the length of the step in each arm; empty if all are those of a mean."""
        if not self.has_training or not any(
            arm.rescaled_by or arm.step != "as-published" for arm in self.arms
        ):
            return ""
        arms_by_step: dict[str, list[str]] = {}
        for arm in self.arms:
            by = f" (set by {' and '.join(arm.rescaled_by)})" if arm.rescaled_by else ""
            arms_by_step.setdefault(f"{arm.step}{by}", []).append(arm.name)
        if len(arms_by_step) == 1:
            return f"aggregation.step: {next(iter(arms_by_step))} in all arms"
        return "aggregation.step: " + "; ".join(
            f"{step} in {', '.join(names)}" for step, names in arms_by_step.items()
        )


@dataclass(frozen=True, slots=True)
class _FinishedCell:
    """Numbers of a finished cell; those of targets and budgets are added."""

    values: dict[str, float | None]
    missing: dict[str, str]
    """Why a value is None, by its key."""
    size: RunSize
    curves: RunCurves
    named: Mapping[str, str]
    """Direction of each metric by name."""
    losses: Mapping[str, float | None]
    """Loss of each device; empty if unknown."""

    def add(self, key: str, value: float | None, why_none: str) -> None:
        """Add a metric."""
        self.values[key] = value
        if value is None:
            self.missing[key] = why_none

    def put(self, key: str, value: float | str) -> None:
        """Set a metric to a value, or to None for the reason that is given."""
        self.missing.pop(key, None)
        if isinstance(value, str):
            self.add(key, None, value)
        else:
            self.add(key, value, "")


@dataclass(frozen=True, slots=True)
class _Cells:
    """All cells, by arm and seed."""

    finished: Mapping[str, Mapping[int, _FinishedCell]]
    failed: Mapping[str, Sequence[int]]
    """Seeds of the failed cells."""

    def all(self) -> Iterator[_FinishedCell]:
        """Yield the finished cells."""
        for cells in self.finished.values():
            yield from cells.values()

    def of(self, arm: str, key: str) -> ArmValues:
        """Return a metric of an arm: its value in each seed, or why there is none."""
        cells = self.finished[arm]
        values = {seed: cell.values.get(key) for seed, cell in cells.items()}
        undefined = [seed for seed, value in values.items() if value is None]
        return ArmValues(
            values={seed: value for seed, value in values.items() if value is not None},
            sizes={seed: cell.size for seed, cell in cells.items()},
            missing=dict.fromkeys(self.failed[arm], FAILED)
            | {seed: cells[seed].missing.get(key, "") for seed in undefined},
        )


def compare(grid: Grid, digest: str, version: str, results: Sequence[CellResult]) -> Comparison:
    """Return the comparison of a grid from the results of its cells, in any order."""
    order = {(cell.arm.name, cell.seed): index for index, cell in enumerate(grid.cells())}
    results = sorted(results, key=lambda r: order[r.arm, r.seed])
    done = _collect(grid, results)
    target_of = grid.target.of or grid.baseline
    targets = _targets(grid.target, target_of, done)
    horizon_s = _horizon(grid.target, done) if targets else None
    metrics = [m for m in known_metrics() if m.key != MACHINE_TIME or grid.fleet == "run"]
    directions = {name: better for cell in done.all() for name, better in cell.named.items()}
    for cell in done.all():
        for key in named_keys(name for name in directions if name not in cell.named):
            cell.add(key, None, "evaluation.metrics of this arm lacks it")
    metrics += named_metrics(directions)
    metrics += _add_utilities(grid, done)
    if horizon_s is not None:
        metrics += _add_times(done, targets, horizon_s)
    budgets = _budgets(done)
    metrics += _add_budgets(done, budgets, grid.budget_metric)
    samples = {m.key: {arm.name: done.of(arm.name, m.key) for arm in grid.arms} for m in metrics}
    shown = [
        replace(m, quantity=on_scale(m.quantity, samples[m.key]))
        for m in metrics
        if any(sample.values for sample in samples[m.key].values())
    ]
    declared = {grid.primary, *(key for one in grid.contrasts for key in one.metrics)}
    has_training = any(metric.key == FINAL_ERROR for metric in shown) or any(
        cell.curves.accuracy for cell in done.all()
    )
    front, pareto = _front(grid, done), _pareto(grid, [metric.key for metric in shown])
    dominated = _dominated(grid, [metric for metric in shown if metric.key in pareto], samples)
    arms = [
        ArmSummary(
            name=arm.name,
            curve=arm.curve,
            front_value=arm.front_value,
            beta=arm.experiment.selection.beta,
            weights=arm.experiment.aggregation.weighting,
            weights_from=_weights_from(arm),
            step=arm.experiment.aggregation.step,
            rescaled_by=rescaling_parts(arm.experiment.aggregation, arm.experiment.training),
            cohorts_of=arm.cohorts_of,
            seeds=sorted(done.finished[arm.name]),
            is_on_front=front.get(arm.name),
            dominated_by=dominated.get(arm.name),
            reached={t.key: _reached(done.finished[arm.name], t.accuracy) for t in targets},
            missing={
                m.key: Missing(seeds=sorted(sample.missing), reason=sample.reason)
                for m in shown
                if (sample := samples[m.key][arm.name]).missing
            },
            values={
                m.key: estimate(sample, m.quantity)
                for m in shown
                if (sample := samples[m.key][arm.name]).values
            },
            differences={},
        )
        for arm in grid.arms
    ]
    arms, effects = _with_verdicts(
        arms, shown, grid, _differences(grid, shown, samples), _effects(grid, shown, samples)
    )
    return Comparison(
        name=grid.name,
        grid=digest,
        version=version,
        fleet=grid.fleet,
        baseline=grid.baseline,
        primary=grid.primary,
        report=_reported(grid, [metric.key for metric in shown]),
        pareto=pareto if dominated else [],
        utilities=_utilities(grid, [metric.key for metric in shown]),
        worst=_worst(grid),
        seeds=list(grid.seeds),
        has_training=has_training,
        targets=targets,
        budget_metric=grid.budget_metric,
        budgets=budgets,
        horizon_s=horizon_s,
        confidence=CONFIDENCE,
        comparisons=_n_tested(arms, effects),
        warnings=[
            *_warnings(grid, arms, shown, has_training=has_training),
            *(() if grid.tuned is None else grid.tuned.warnings),
            *warnings_of_runs(results),
        ],
        metrics=[
            MetricSummary(
                key=m.key,
                group=m.group,
                heading=m.heading,
                short=m.short,
                unit=m.unit,
                better=m.better,
                digits=m.digits,
                is_tested=m.is_tested or m.key in declared,
                scale=m.quantity.scale,
                lowest=m.quantity.lowest,
                highest=m.quantity.highest,
            )
            for m in shown
        ],
        arms=arms,
        effects=effects,
        tuning=grid.tuned,
        cells=[
            CellSummary(
                arm=result.arm,
                seed=result.seed,
                folder=result.folder,
                problem=result.outcome.problem,
                values=_shown(cell.values, shown) if cell else {},
                missing=_shown(cell.missing, shown) if cell else {},
            )
            for result in results
            for cell in [done.finished[result.arm].get(result.seed)]
        ],
    )


def _collect(grid: Grid, results: Sequence[CellResult]) -> _Cells:
    finished: dict[str, dict[int, _FinishedCell]] = {arm.name: {} for arm in grid.arms}
    failed: dict[str, list[int]] = {arm.name: [] for arm in grid.arms}
    for result in results:
        found = result.outcome.measured
        if found is None:
            failed[result.arm].append(result.seed)
        else:
            finished[result.arm][result.seed] = _FinishedCell(
                values=dict(found.values),
                missing=dict(found.missing),
                size=found.size,
                curves=found.curves,
                named=found.named,
                losses=found.losses,
            )
    runs = [result.outcome.measured for result in results if result.outcome.measured is not None]
    absent = keys_of("attack") if not any(run.has_attack for run in runs) else ()
    if not any(serves_personal(arm.experiment) for arm in grid.arms):
        absent += keys_of("served")  # they are those of the global model
    for seeds in finished.values():
        for cell in seeds.values():
            cell.values.update(dict.fromkeys(absent))
    return _Cells(finished, failed)


def _add_utilities(grid: Grid, done: _Cells) -> list[Metric]:
    """Add ratio sum and core margin to every cell, and give all arms the utilities of one M."""
    why, M = one_game(grid.arms), common_m(grid.arms)
    if any(arm.experiment.aggregation.M != M for arm in grid.arms):
        for cell in done.all():
            for key, value in utilities_of(cell.losses, M).items():
                cell.put(key, value)
    if not any(cell.losses for cell in done.all()) or len(grid.arms) < 2:
        return []
    for seed in grid.seeds:
        cells = {name: own[seed] for name, own in done.finished.items() if seed in own}
        losses = {
            arm.name: cells[arm.name].losses if arm.name in cells else None for arm in grid.arms
        }
        found = {} if why else pairs_of(losses, M, grid.baseline)
        for name, cell in cells.items():
            for key in (RATIO_SUM, CORE_MARGIN):
                cell.put(key, found[name][key] if found else why)
    return list(metrics_of_pairs())


def _utilities(grid: Grid, known: Sequence[str]) -> str:
    """Return how utilities of the arms are counted; empty without any."""
    if CORE_MARGIN not in known and RATIO_SUM not in known:
        return ""
    ms = {arm.experiment.aggregation.M for arm in grid.arms}
    of = "the largest aggregation.M of the arms, for all of them" if len(ms) > 1 else "that of all"
    return (
        f"Utilities are M - loss of the global model on held-out examples, M = {max(ms):g} ({of}): "
        "a ratio sum of at most the number of devices, which is that of "
        f"{grid.baseline} itself, shows that no group of devices gains by the model of "
        f"{grid.baseline}, and a core margin of at most 1 that none gains by that of another arm "
        "with the seed; other models are not tested (fairbed core)"
    )


def _shown(values: Mapping[str, T], metrics: Sequence[Metric]) -> dict[str, T]:
    return {m.key: values[m.key] for m in metrics if m.key in values}


def _targets(config: TargetConfig, of: str, done: _Cells) -> list[Target]:
    """Return the accuracies to reach; none if there are too few evaluations."""
    if config.accuracy:
        if not any(cell.curves.accuracy for cell in done.all()):
            return []
        return [
            Target(key=key, accuracy=accuracy, rule="given")
            for key, accuracy in zip(config.keys, config.accuracy, strict=True)
        ]
    finals = [final_value(np.array(c.curves.accuracy)) for c in done.finished[of].values()]
    known = [value for value in finals if value is not None]
    if not known:
        return []
    final = float(np.mean(known))
    n_seeds = len(finals) + len(done.failed[of])
    some = "" if len(known) == n_seeds else f" in {len(known)} of its {n_seeds} seeds"
    mean = f"the mean of the last {WINDOW} evaluations of {of}{some}"
    return [
        Target(
            key=key,
            accuracy=share * final,
            rule=f"{100 * share:g} % of {final:.3f}, {mean}",
        )
        for key, share in zip(config.keys, config.share, strict=True)
    ]


def _horizon(config: TargetConfig, done: _Cells) -> float | None:
    """Return the shortest duration of a run, or the configured horizon if that is shorter."""
    ends = [end for cell in done.all() if (end := cell.values[FRONT_TIME]) is not None]
    if not ends:
        return None
    return min(ends) if config.horizon_s is None else min(config.horizon_s, *ends)


def _add_times(done: _Cells, targets: Sequence[Target], horizon_s: float) -> list[Metric]:
    """Add the restricted time to each target to every cell with enough evaluations."""
    too_few = f"it has fewer than {WINDOW} evaluations, whose mean must reach the target"
    for cell in done.all():
        run = cell.curves
        is_known = len(run.accuracy) >= WINDOW
        for target in targets:
            found = time_to(target.accuracy, np.array(run.evaluated_s), np.array(run.accuracy))
            cell.add(target.key, restricted(found, horizon_s) if is_known else None, too_few)
    quantity = MetricKind(0.0, horizon_s, "linear", lambda size, value: CLOCK_S)
    words = {target.key: f"to {target.accuracy:.3f}" for target in targets}
    return [
        Metric(key, "accuracy", f"time {to}", to, "s", "less", 1, quantity)
        for key, to in words.items()
    ]


def _budgets(done: _Cells) -> list[Budget]:
    """Return the largest rounds, time and device-seconds that all finished runs reached."""
    runs = [cell.curves for cell in done.all()]
    if not runs or not all(run.rounds for run in runs):
        return []
    rounds, time, device = BUDGETS
    return [
        Budget(key=rounds, amount=min(run.rounds[-1] for run in runs), unit="rounds"),
        Budget(key=time, amount=min(run.closed_s[-1] for run in runs), unit="s"),
        Budget(key=device, amount=min(run.device_s[-1] for run in runs), unit="device-s"),
    ]


def _add_budgets(done: _Cells, budgets: Sequence[Budget], of: str) -> list[Metric]:
    """Add the metric of equal budgets to every cell, at each budget."""
    is_updates = of == UPDATES
    for cell in done.all():
        run = cell.curves
        values = np.array(run.updates if is_updates else run.scores[of], dtype=np.float64)
        axes = (
            (run.rounds, run.closed_s, run.device_s)
            if is_updates
            else (run.evaluated, run.evaluated_s, run.evaluated_device_s)
        )
        for budget, at in zip(budgets, axes, strict=bool(budgets)):
            found = value_at(budget.amount, np.array(at, dtype=np.float64), values)
            cell.add(budget.key, found, "its first value is after this budget")
    metric = metric_of_budgets(of)
    return [
        replace(
            metric,
            key=budget.key,
            heading=f"{metric.heading.removeprefix('final ')} at {budget.text}",
            short=f"{metric.short} at {budget.text}",
        )
        for budget in budgets
    ]


def _weights_from(arm: Arm) -> str:
    aggregation = arm.experiment.aggregation
    return aggregation.rule if aggregation.weights is None else ""


def _reached(cells: Mapping[int, _FinishedCell], target: float) -> str:
    runs = [cell.curves for cell in cells.values() if len(cell.curves.accuracy) >= WINDOW]
    times = [time_to(target, np.array(run.evaluated_s), np.array(run.accuracy)) for run in runs]
    return f"{sum(time is not None for time in times)}/{len(runs)}"


def _front(grid: Grid, done: _Cells) -> dict[str, bool]:
    """Return whether each arm with known means is on the Pareto front."""
    pairs = {
        arm.name: [done.of(arm.name, key) for key in (FRONT_TIME, FRONT_RATE)] for arm in grid.arms
    }
    known = [name for name, samples in pairs.items() if all(sample.values for sample in samples)]
    if not known:
        return {}
    quantities = {metric.key: metric.quantity for metric in known_metrics()}
    means: list[Floats] = []
    for axis, key in enumerate((FRONT_TIME, FRONT_RATE)):
        of_arms = {name: pairs[name][axis] for name in known}
        quantity = on_scale(quantities[key], of_arms)
        means.append(np.array([estimate(sample, quantity).mean for sample in of_arms.values()]))
    return dict(zip(known, on_front(*means).tolist(), strict=True))


def _pareto(grid: Grid, known: Sequence[str]) -> list[str]:
    """Return the keys of the mean and the worst tenth by which arms dominate others, if any.

    Of the models that devices serve where some are personal; of benign devices under an attack.
    """
    worst = _worst(grid)
    own = [(key.removesuffix(".worst10"), key) for key in (worst,) if key is not None]
    pairs = [
        *(("served_accuracy_mean", "served_accuracy_worst10"),),
        *(("served_rmse_mean", "served_rmse_worst10"),),
        *(("benign_accuracy_mean", "benign_accuracy_worst10"),),
        *own,
        *(("accuracy_mean", "accuracy_worst10"), (FINAL_ERROR, "rmse_worst10")),
    ]
    return next((list(pair) for pair in pairs if all(key in known for key in pair)), [])


def _dominated(
    grid: Grid, metrics: Sequence[Metric], samples: Mapping[str, Mapping[str, ArmValues]]
) -> dict[str, dict[str, str]]:
    """Return the arms that dominate each arm in two metrics; empty without two metrics or arms."""
    if len(metrics) != 2 or len(grid.arms) < 2:
        return {}
    seeds = {seed: at for at, seed in enumerate(grid.seeds)}
    scores: Floats = np.full((2, len(grid.arms), len(seeds)), np.nan)
    for axis, metric in enumerate(metrics):
        sign = -1.0 if metric.better == "less" else 1.0
        for at, arm in enumerate(grid.arms):
            for seed, value in samples[metric.key][arm.name].values.items():
                scores[axis, at, seeds[seed]] = sign * value
    names = [arm.name for arm in grid.arms]
    return {
        name: {names[by]: f"{wins}/{n}" for by, wins, n in dominators(scores, at)}
        for at, name in enumerate(names)
        if np.isfinite(scores[:, at]).all(axis=0).any()
    }


def _differences(
    grid: Grid, metrics: Sequence[Metric], samples: Mapping[str, Mapping[str, ArmValues]]
) -> dict[tuple[str, str], Difference]:
    """Return the differences from the baseline by arm and metric, not yet judged.

    Args:
        grid: The grid.
        metrics: Those that any cell has.
        samples: Of each metric and arm.
    """
    return {
        (arm.name, metric.key): gap
        if metric.is_tested or metric.key == grid.primary
        else without_verdict(gap, "")
        for arm in grid.arms
        for metric in metrics
        if arm.name != grid.baseline and metric.better is not None
        for own in [samples[metric.key]]
        if (gap := difference(own[arm.name], own[grid.baseline], metric.quantity)) is not None
    }


def _effects(
    grid: Grid, metrics: Sequence[Metric], samples: Mapping[str, Mapping[str, ArmValues]]
) -> list[Effect]:
    """Return the effects of the contrasts, not yet judged; of the metrics that a cell has."""
    quantities = {metric.key: metric.quantity for metric in metrics}
    return [
        effect
        for contrast in grid.contrasts
        for key in contrast.metrics
        if key in quantities
        for effect in measured_effects(contrast, key, quantities[key], samples[key])
    ]


def _n_tested(arms: Sequence[ArmSummary], effects: Sequence[Effect]) -> int:
    gaps = [gap for arm in arms for gap in arm.differences.values()]
    gaps += [effect.estimate for effect in effects]
    pairs = [effect.equivalence for effect in effects if effect.equivalence is not None]
    found = [*(gap.p_family for gap in gaps), *(pair.p_family for pair in pairs)]
    return sum(p is not None for p in found)


def _with_verdicts(
    arms: Sequence[ArmSummary],
    metrics: Sequence[Metric],
    grid: Grid,
    gaps: Mapping[tuple[str, str], Difference],
    effects: Sequence[Effect],
) -> tuple[list[ArmSummary], list[Effect]]:
    """Return the arms with their differences, and the effects, all judged together.

    An arm has no verdict by a metric that a seed of it or of the baseline lacks, and none at all if
    that metric is the primary one.
    """
    headings = {metric.key: metric.heading for metric in metrics}
    baseline = next(arm for arm in arms if arm.name == grid.baseline)
    by_name = {arm.name: arm for arm in arms}
    found = dict(gaps)
    for (name, key), gap in gaps.items():
        for needed in (key, grid.primary):
            text = undefined_in([baseline, by_name[name]], needed)
            if text and needed in headings:
                reason = f"{headings[needed]} is undefined in {text}"
                found[name, key] = without_verdict(gap, reason)
                break
    better = {metric.key: metric.better for metric in metrics if metric.better is not None}
    p: dict[Hashable, float] = {of: gap.p for of, gap in found.items() if gap.p is not None}
    claims = {
        test: value for number, effect in enumerate(effects) for test, value in effect.tests(number)
    }
    declared = set(claims) or {of for of in found if of[1] == grid.primary}
    family = corrected({**p, **claims}, declared)
    verdicts = {
        of: judged(gap, family[of], better[of[1]]) if of in family else gap
        for of, gap in found.items()
    }
    level = first_level(len(declared & set(family)), len(set(family) - declared))
    return [
        msgspec.structs.replace(
            arm, differences={key: gap for (name, key), gap in verdicts.items() if name == arm.name}
        )
        for arm in arms
    ], [
        effect.judged(family, number, better.get(effect.metric), level)
        for number, effect in enumerate(effects)
    ]


WORST_TENTHS = ("accuracy_worst10", "accuracy_worst10_shrunken", "rmse_worst10")
"""Worst tenths that `evaluation.worst` replaces in tables by that of another metric."""


def _worst(grid: Grid) -> str | None:
    """Return the key of the worst tenth of `evaluation.worst`; None: of accuracy or error.

    That is so, too, if arms name different metrics.
    """
    names = {arm.experiment.evaluation.worst for arm in grid.arms}
    return None if len(names) > 1 or ACCURACY in names else named_keys(names)[1]


def _reported(grid: Grid, known: Sequence[str]) -> list[str]:
    """Return the metrics of the table for a paper that the runs have, the primary one first."""
    worst = _worst(grid)
    quality = [worst if worst and key in WORST_TENTHS else key for key in REPORTED[:3]]
    default = (*quality, *grid.target.keys[:1], *REPORTED[3:])
    found = [k for k in dict.fromkeys((grid.primary, *(grid.report or default))) if k in known]
    return found if grid.report else found[:MAX_REPORTED]


KEYS_OF_STEP = (
    *("rule", "rule_options", "q", "lipschitz", "M", "epsilon"),
    *("pseudo_gradient", "pseudo_gradient_options"),
)
"""Keys of `[aggregation]` that change the length of a step as published."""
LEARNING_RATE = "training.learning_rate"
"""Tuned in every arm, it gives each a length of the step of its own."""


def _step_warning(arms: Sequence[Arm], summaries: Sequence[ArmSummary]) -> str:
    """Return that the arms differ in a law for the length of the step; empty if they do not."""
    laws = []
    for arm, summary in zip(arms, summaries, strict=True):
        values = [getattr(arm.experiment.aggregation, key) for key in KEYS_OF_STEP]
        law = (*summary.rescaled_by, *values, arm.experiment.training.M)
        laws.append(law if summary.rescaled_by else ())
    if all(law == laws[0] for law in laws):
        return ""
    own = [f"{arm.name} ({' and '.join(arm.rescaled_by)})" for arm in summaries if arm.rescaled_by]
    others = [arm.name for arm in summaries if not arm.rescaled_by]
    beside = f", beside {', '.join(others)}" if others else ""
    return (
        f"step: arms must have steps of the length of a mean, got other lengths in "
        f"{', '.join(own)}{beside}: a difference may come from the length alone; set "
        'aggregation.step = "normalised", or tune training.learning_rate in each arm'
    )


def _warnings(
    grid: Grid, arms: Sequence[ArmSummary], metrics: Sequence[Metric], *, has_training: bool
) -> list[str]:
    warnings = []
    if len(grid.seeds) == 1:
        warnings.append(
            f"seeds: a comparison needs at least {LEAST_SEEDS_TO_JUDGE}, got 1: there is no "
            f"interval and no verdict; {ADD_SEEDS}"
        )
    elif len(grid.seeds) < LEAST_SEEDS_TO_JUDGE:
        warnings.append(
            f"seeds: a verdict needs at least {LEAST_SEEDS_TO_JUDGE}, got {len(grid.seeds)}: "
            f"no power; {ADD_SEEDS}"
        )
    elif len(grid.seeds) < LEAST_SEEDS and not has_training:
        warnings.append(
            f"seeds: a comparison without training needs at least {LEAST_SEEDS}, got "
            f"{len(grid.seeds)}; {ADD_SEEDS}"
        )
    missing = [arm for arm in arms if len(arm.seeds) < len(grid.seeds)]
    if missing:
        names = ", ".join(f"{arm.name} {len(arm.seeds)}/{len(grid.seeds)}" for arm in missing)
        warnings.append(
            f"seeds without a result: {names}; differences use the seeds that both arms have"
        )
    has_own_rates = all(LEARNING_RATE in arm.space for arm in grid.arms) and grid.tuned is not None
    if has_training and not has_own_rates and (line := _step_warning(grid.arms, arms)):
        warnings.append(line)
    primary = next((metric for metric in metrics if metric.key == grid.primary), None)
    text = undefined_in(arms, grid.primary) if primary else ""
    if primary is not None and text:
        of_baseline = undefined_in([a for a in arms if a.name == grid.baseline], grid.primary)
        effect = "no arm has a verdict" if of_baseline else "these arms have no verdict"
        warnings.append(f"primary: {primary.heading} is undefined in {text}; {effect}")
    if metrics and not any(grid.primary in arm.values for arm in arms):
        warnings.append(
            f"primary: must be a metric of these runs, got {grid.primary!r}, which none has; "
            f"compare into another folder with one of: {', '.join(m.key for m in metrics)}"
        )
    return warnings
