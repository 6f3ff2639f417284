"""Compare the arms of a grid with its baseline: the content of `compare.json`, tables and figures.

After the first release, new versions only add keys to the JSON; an unknown number is null.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.grid import BUDGETS, Arm, Grid, TargetConfig
from fairbed.testbed.compare.measures import (
    FINAL_ERROR,
    MACHINE_TIME,
    METRICS,
    UNDER_ATTACK,
    UPDATES,
    Metric,
    RunCurves,
)
from fairbed.testbed.compare.run_warnings import warnings_of_runs
from fairbed.testbed.compare.statistics import (
    CONFIDENCE,
    LEAST_SEEDS_TO_JUDGE,
    WINDOW,
    final_value,
    holm,
    mean_interval,
    on_front,
    p_value,
    restricted,
    time_to,
    value_at,
)

FAMILY_LEVEL = 1.0 - CONFIDENCE
"""Largest probability of a false verdict in a grid of equal arms."""
PRIMARY_SHARE = 0.8
"""Share of the level that the primary metric begins with; the other metrics share the rest."""
ROUNDING = 1e-9
"""Relative difference that counts as zero: sums of equal numbers can differ by rounding."""
LEAST_SEEDS, LEAST_SEEDS_TRAINED = 10, 5
"""Fewer seeds give a warning, without training (where seeds are cheap) and with training."""
ADD_SEEDS = "add seeds, finished cells are kept"
"""What to do about too few seeds."""
FRONT_TIME, FRONT_RATE = "virtual_s", "min_rate_selected"
METRIC_OF_BUDGETS = {metric.key: metric for metric in METRICS} | {
    UPDATES: Metric(UPDATES, "selection", "updates", "updates", "", "more", 0)
}
"""Metrics that can be compared at equal budgets."""

Judgement: TypeAlias = Literal["better", "worse", "unclear"]
Values: TypeAlias = Mapping[int, float]
"""Values of one arm and metric, by seed."""


class Estimate(Struct, frozen=True, kw_only=True):
    """A mean over seeds and its interval; the ends are null for fewer than two seeds."""

    mean: float
    low: float | None
    high: float | None
    n: int


class Difference(Struct, frozen=True, kw_only=True):
    """Mean difference between an arm and the baseline, paired by seed."""

    mean: float
    low: float | None
    high: float | None
    n: int
    p: float | None
    """p-value of Student's test of this difference alone; null for too few seeds."""
    p_family: float | None
    """The same, corrected for all comparisons of the grid."""
    judgement: Judgement
    """Unclear if `p_family` is above the level of the family, or unknown."""


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
    seeds: list[int]
    """Seeds of its finished cells."""
    is_on_front: bool | None
    """Whether no other arm has a shorter mean total time and a higher mean least rate (Pareto
    front); None if these are unknown."""
    reached: dict[str, str]
    """Share of runs that reached each target before their end: `7/10`."""
    values: dict[str, Estimate]
    differences: dict[str, Difference]
    """Differences from the baseline; empty for the baseline itself."""


class Target(Struct, frozen=True, kw_only=True):
    """An accuracy to reach."""

    key: str
    """Key of its metric."""
    accuracy: float
    rule: str
    """Origin of the number."""


class Budget(Struct, frozen=True, kw_only=True):
    """The largest budget that every run reached."""

    key: str
    """Key of its metric."""
    amount: float
    unit: Literal["rounds", "s", "device-s"]

    @property
    def text(self) -> str:
        """The budget with its unit."""
        return f"{self.amount:,.{0 if self.unit == 'rounds' else 1}f} {self.unit}"


class CellSummary(Struct, frozen=True, kw_only=True):
    """One run."""

    arm: str
    seed: int
    folder: str
    problem: str
    """One line if the run failed; otherwise empty."""
    values: dict[str, float | None]


class MetricSummary(Struct, frozen=True, kw_only=True):
    """Description of a key of `values`."""

    key: str
    group: str
    heading: str
    short: str
    unit: str
    better: Literal["less", "more"] | None
    digits: int


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
    cells: list[CellSummary]

    @property
    def problems(self) -> list[CellSummary]:
        """Cells that failed."""
        return [cell for cell in self.cells if cell.problem]

    @property
    def budget_heading(self) -> str:
        """Heading of the metric that is compared at equal budgets."""
        return METRIC_OF_BUDGETS[self.budget_metric].heading.removeprefix("final ")

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


@dataclass(frozen=True, slots=True)
class _FinishedCells:
    """Numbers of the finished cells, by arm and seed."""

    values: Mapping[str, Mapping[int, dict[str, float | None]]]
    curves: Mapping[str, Mapping[int, RunCurves]]

    def of(self, arm: str, key: str) -> dict[int, float]:
        """Return the known values of a metric, by seed."""
        known = {seed: values.get(key) for seed, values in self.values[arm].items()}
        return {seed: value for seed, value in known.items() if value is not None}


def compare(grid: Grid, digest: str, version: str, results: Sequence[CellResult]) -> Comparison:
    """Return the comparison of a grid from the results of its cells, in any order."""
    done = _collect(grid, results)
    target_of = grid.target.of or grid.baseline
    targets = _targets(grid.target, target_of, done)
    horizon_s = _horizon(grid.target, done) if targets else None
    metrics = [m for m in METRICS if m.key != MACHINE_TIME or grid.fleet == "run"]
    if horizon_s is not None:
        metrics += _add_times(done, targets, horizon_s)
    budgets = _budgets(done)
    metrics += _add_budgets(done, budgets, grid.budget_metric)
    shown = [m for m in metrics if any(done.of(arm.name, m.key) for arm in grid.arms)]
    tested = [metric for metric in shown if metric.better is not None]
    has_training = any(metric.key == FINAL_ERROR for metric in shown) or any(
        run.accuracy for arm in done.curves.values() for run in arm.values()
    )
    front, differences = _front(grid, done), _differences(grid, tested, done)
    arms = [
        ArmSummary(
            name=arm.name,
            curve=arm.curve,
            front_value=arm.front_value,
            beta=arm.experiment.selection.beta,
            weights=arm.experiment.aggregation.weighting,
            weights_from=_weights_from(arm),
            seeds=sorted(done.values[arm.name]),
            is_on_front=front.get(arm.name),
            reached={t.key: _reached(done.curves[arm.name], t.accuracy) for t in targets},
            values={
                m.key: _estimate(values) for m in shown if (values := done.of(arm.name, m.key))
            },
            differences=differences[arm.name],
        )
        for arm in grid.arms
    ]
    order = {(cell.arm.name, cell.seed): index for index, cell in enumerate(grid.cells())}
    return Comparison(
        name=grid.name,
        grid=digest,
        version=version,
        fleet=grid.fleet,
        baseline=grid.baseline,
        primary=grid.primary,
        seeds=list(grid.seeds),
        has_training=has_training,
        targets=targets,
        budget_metric=grid.budget_metric,
        budgets=budgets,
        horizon_s=horizon_s,
        confidence=CONFIDENCE,
        comparisons=sum(gap.p is not None for arm in arms for gap in arm.differences.values()),
        warnings=[
            *_warnings(grid, arms, shown, has_training=has_training),
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
            )
            for m in shown
        ],
        arms=arms,
        cells=[
            CellSummary(
                arm=result.arm,
                seed=result.seed,
                folder=result.folder,
                problem=result.outcome.problem,
                values=_shown(done.values[result.arm].get(result.seed, {}), shown),
            )
            for result in sorted(results, key=lambda r: order[r.arm, r.seed])
        ],
    )


def _collect(grid: Grid, results: Sequence[CellResult]) -> _FinishedCells:
    values: dict[str, dict[int, dict[str, float | None]]] = {arm.name: {} for arm in grid.arms}
    curves: dict[str, dict[int, RunCurves]] = {arm.name: {} for arm in grid.arms}
    for result in results:
        if result.outcome.measured is not None:
            values[result.arm][result.seed] = dict(result.outcome.measured.values)
            curves[result.arm][result.seed] = result.outcome.measured.curves
    runs = [result.outcome.measured for result in results if result.outcome.measured is not None]
    if not any(run.has_attack for run in runs):
        for cell in (cell for arm in values.values() for cell in arm.values()):
            cell |= dict.fromkeys(UNDER_ATTACK)
    return _FinishedCells(values, curves)


def _shown(
    values: Mapping[str, float | None], metrics: Sequence[Metric]
) -> dict[str, float | None]:
    return {m.key: values[m.key] for m in metrics if m.key in values}


def _targets(config: TargetConfig, of: str, done: _FinishedCells) -> list[Target]:
    """Return the accuracies to reach; none if there are too few evaluations."""
    if config.accuracy:
        if not any(run.accuracy for arm in done.curves.values() for run in arm.values()):
            return []
        return [
            Target(key=key, accuracy=accuracy, rule="given")
            for key, accuracy in zip(config.keys, config.accuracy, strict=True)
        ]
    finals = [final_value(np.array(run.accuracy)) for run in done.curves[of].values()]
    known = [value for value in finals if value is not None]
    if not known:
        return []
    final = float(np.mean(known))
    mean = f"the mean of the last {WINDOW} evaluations of {of}"
    return [
        Target(
            key=key,
            accuracy=share * final,
            rule=f"{100 * share:g} % of {final:.3f}, {mean}",
        )
        for key, share in zip(config.keys, config.share, strict=True)
    ]


def _horizon(config: TargetConfig, done: _FinishedCells) -> float | None:
    """Return the shortest duration of a run, or the configured horizon if that is shorter."""
    ends = [time for arm in done.values for time in done.of(arm, "virtual_s").values()]
    if not ends:
        return None
    return min(ends) if config.horizon_s is None else min(config.horizon_s, *ends)


def _add_times(done: _FinishedCells, targets: Sequence[Target], horizon_s: float) -> list[Metric]:
    """Add the restricted time to each target to every cell that was evaluated."""
    for arm, curves in done.curves.items():
        for seed, run in curves.items():
            for target in targets:
                found = time_to(target.accuracy, np.array(run.evaluated_s), np.array(run.accuracy))
                done.values[arm][seed][target.key] = (
                    restricted(found, horizon_s) if run.accuracy else None
                )
    words = {target.key: f"to {target.accuracy:.3f}" for target in targets}
    return [Metric(key, "accuracy", f"time {to}", to, "s", "less", 1) for key, to in words.items()]


def _budgets(done: _FinishedCells) -> list[Budget]:
    """Return the largest rounds, time and device-seconds that all finished runs reached."""
    runs = [run for arm in done.curves.values() for run in arm.values()]
    if not runs or not all(run.rounds for run in runs):
        return []
    rounds, time, device = BUDGETS
    return [
        Budget(key=rounds, amount=min(run.rounds[-1] for run in runs), unit="rounds"),
        Budget(key=time, amount=min(run.closed_s[-1] for run in runs), unit="s"),
        Budget(key=device, amount=min(run.device_s[-1] for run in runs), unit="device-s"),
    ]


def _add_budgets(done: _FinishedCells, budgets: Sequence[Budget], of: str) -> list[Metric]:
    """Add the metric of equal budgets to every cell, at each budget."""
    for arm, curves in done.curves.items():
        for seed, run in curves.items():
            is_updates = of == UPDATES
            values = np.array(run.updates if is_updates else run.scores[of], dtype=np.float64)
            axes = (
                (run.rounds, run.closed_s, run.device_s)
                if is_updates
                else (run.evaluated, run.evaluated_s, run.evaluated_device_s)
            )
            for budget, at in zip(budgets, axes, strict=bool(budgets)):
                found = value_at(budget.amount, np.array(at, dtype=np.float64), values)
                done.values[arm][seed][budget.key] = found
    metric = METRIC_OF_BUDGETS[of]
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


def _reached(curves: Mapping[int, RunCurves], target: float) -> str:
    evaluated = [run for run in curves.values() if run.accuracy]
    times = [time_to(target, np.array(c.evaluated_s), np.array(c.accuracy)) for c in evaluated]
    return f"{sum(time is not None for time in times)}/{len(evaluated)}"


def _front(grid: Grid, done: _FinishedCells) -> dict[str, bool]:
    """Return whether each arm with known means is on the Pareto front."""
    pairs = {
        arm.name: (done.of(arm.name, FRONT_TIME), done.of(arm.name, FRONT_RATE))
        for arm in grid.arms
    }
    known = [name for name, (times, rates) in pairs.items() if times and rates]
    if not known:
        return {}
    means: list[Floats] = [
        np.array([np.mean(list(pairs[name][axis].values())) for name in known]) for axis in (0, 1)
    ]
    return dict(zip(known, on_front(*means).tolist(), strict=True))


def _differences(
    grid: Grid, metrics: Sequence[Metric], done: _FinishedCells
) -> dict[str, dict[str, Difference]]:
    """Return the differences from the baseline by arm and metric, with verdicts over the grid."""
    found: dict[str, dict[str, Difference]] = {arm.name: {} for arm in grid.arms}
    for arm in grid.arms:
        for metric in metrics if arm.name != grid.baseline else ():
            paired = _paired(done.of(arm.name, metric.key), done.of(grid.baseline, metric.key))
            if paired.size:
                interval = mean_interval(paired)
                found[arm.name][metric.key] = Difference(
                    mean=interval.mean,
                    low=interval.low,
                    high=interval.high,
                    n=interval.n,
                    p=p_value(paired),
                    p_family=None,
                    judgement="unclear",
                )
    tested = [(arm, key) for arm, gaps in found.items() for key in gaps if gaps[key].p is not None]
    if tested:
        p = np.array([found[arm][key].p for arm, key in tested], dtype=np.float64)
        corrected = holm(p, _weights(np.array([key == grid.primary for _, key in tested])))
        better = {metric.key: metric.better for metric in metrics if metric.better is not None}
        for (arm_name, key), p_family in zip(tested, corrected.tolist(), strict=True):
            gap = found[arm_name][key]
            found[arm_name][key] = msgspec.structs.replace(
                gap, p_family=p_family, judgement=_judge(gap.mean, p_family, better[key])
            )
    return found


def _paired(values: Values, reference: Values) -> Floats:
    """Return the differences of the seeds that both have, in the order of the seeds."""
    differences: Floats = np.array(
        [
            0.0
            if math.isclose(values[seed], reference[seed], rel_tol=ROUNDING)
            else values[seed] - reference[seed]
            for seed in sorted(values.keys() & reference.keys())
        ],
        dtype=np.float64,
    )
    return differences


def _weights(is_primary: Bools) -> Floats:
    """Return the weight of each comparison: those of the primary metric sum to PRIMARY_SHARE."""
    n_primary, n_other = int(is_primary.sum()), int((~is_primary).sum())
    if n_primary == 0 or n_other == 0:
        return np.ones(is_primary.shape)
    weights: Floats = np.where(
        is_primary, PRIMARY_SHARE / n_primary, (1.0 - PRIMARY_SHARE) / n_other
    )
    return weights


def _judge(mean: float, p_family: float, better: Literal["less", "more"]) -> Judgement:
    if p_family > FAMILY_LEVEL:
        return "unclear"
    return "better" if (mean < 0.0) == (better == "less") else "worse"


def _estimate(values: Values) -> Estimate:
    interval = mean_interval(np.array([values[seed] for seed in sorted(values)], dtype=np.float64))
    return Estimate(mean=interval.mean, low=interval.low, high=interval.high, n=interval.n)


def _warnings(
    grid: Grid, arms: Sequence[ArmSummary], metrics: Sequence[Metric], *, has_training: bool
) -> list[str]:
    least = LEAST_SEEDS_TRAINED if has_training else LEAST_SEEDS
    kind = "with training" if has_training else "without training"
    warnings = []
    if len(grid.seeds) == 1:
        warnings.append(
            f"seeds: a comparison needs at least {LEAST_SEEDS_TO_JUDGE}, got 1: there is no "
            f"interval and no verdict; {ADD_SEEDS}"
        )
    elif len(grid.seeds) < least:
        warnings.append(
            f"seeds: a comparison {kind} needs at least {least}, got {len(grid.seeds)}; {ADD_SEEDS}"
        )
    missing = [arm for arm in arms if len(arm.seeds) < len(grid.seeds)]
    if missing:
        names = ", ".join(f"{arm.name} {len(arm.seeds)}/{len(grid.seeds)}" for arm in missing)
        warnings.append(
            f"seeds without a result: {names}; differences use the seeds that both arms have"
        )
    if metrics and not any(grid.primary in arm.values for arm in arms):
        warnings.append(
            f"primary: must be a metric of these runs, got {grid.primary!r}, which none has; "
            f"compare into another folder with one of: {', '.join(m.key for m in metrics)}"
        )
    return warnings
