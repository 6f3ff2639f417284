"""Compare the arms of a grid with its baseline: the content of `compare.json`, tables and figures.

New versions only add keys to the JSON; an unknown number is null.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.grid import Grid, TargetConfig
from fairbed.testbed.compare.measures import METRICS, Metric, RunCurves
from fairbed.testbed.compare.statistics import (
    CONFIDENCE,
    RESAMPLES,
    ConfidenceInterval,
    final_value,
    mean_interval,
    on_front,
    restricted,
    time_to,
)

BOOTSTRAP_SEED = 20210601
"""Seed of the resampling: equal cells give equal intervals."""
ROUNDING = 1e-9
"""Relative difference that counts as zero: sums of equal numbers can differ by rounding."""
LEAST_SEEDS, LEAST_SEEDS_TRAINED = 10, 5
"""Fewer seeds give a warning, without training (where seeds are cheap) and with training."""
MACHINE_TIME = "wall_s"
"""Left out for a replay, where it only shows how busy the machine was."""
FRONT_TIME, FRONT_RATE = "virtual_s", "min_rate_selected"

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
    judgement: Judgement
    """Unclear if 0 is inside the interval, or there are too few seeds."""


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
    better: Literal["less", "more"]
    digits: int


class Comparison(Struct, frozen=True, kw_only=True):
    """The results of a grid."""

    name: str
    grid: str
    """Hash of the cells, the baseline and the target."""
    version: str
    fleet: str
    baseline: str
    seeds: list[int]
    has_training: bool
    targets: list[Target]
    horizon_s: float | None
    """Limit of the times to a target in their mean; None without targets."""
    confidence: float
    resamples: int
    warnings: list[str]
    metrics: list[MetricSummary]
    arms: list[ArmSummary]
    cells: list[CellSummary]

    @property
    def problems(self) -> list[CellSummary]:
        """Cells that failed."""
        return [cell for cell in self.cells if cell.problem]

    @property
    def weightings(self) -> str:
        """One line with the weights of each arm; empty if they do not differ."""
        arms_by_weights: dict[str, list[str]] = {}
        for arm in self.arms:
            arms_by_weights.setdefault(arm.weights, []).append(arm.name)
        if not self.has_training or len(arms_by_weights) == 1:
            return ""
        return "aggregation.weights differ: " + "; ".join(
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
    shown = [m for m in metrics if any(done.of(arm.name, m.key) for arm in grid.arms)]
    has_training = any(run.accuracy for arm in done.curves.values() for run in arm.values())
    front = _front(grid, done)
    arms = [
        ArmSummary(
            name=arm.name,
            curve=arm.curve,
            front_value=arm.front_value,
            beta=arm.experiment.selection.beta,
            weights=arm.experiment.aggregation.weighting,
            seeds=sorted(done.values[arm.name]),
            is_on_front=front.get(arm.name),
            reached={t.key: _reached(done.curves[arm.name], t.accuracy) for t in targets},
            values={
                m.key: _estimate(values) for m in shown if (values := done.of(arm.name, m.key))
            },
            differences=_differences(arm.name, grid.baseline, shown, done),
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
        seeds=list(grid.seeds),
        has_training=has_training,
        targets=targets,
        horizon_s=horizon_s,
        confidence=CONFIDENCE,
        resamples=RESAMPLES,
        warnings=_warnings(grid, arms, has_training=has_training),
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
        return [Target(key=f"time_to_{a:g}", accuracy=a, rule="given") for a in config.accuracy]
    finals = [final_value(np.array(run.accuracy)) for run in done.curves[of].values()]
    known = [value for value in finals if value is not None]
    if not known:
        return []
    final = float(np.mean(known))
    return [
        Target(
            key=f"time_to_{100 * share:g}_percent",
            accuracy=share * final,
            rule=f"{100 * share:g} % of the final {final:.3f} of {of}",
        )
        for share in config.share
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
    arm: str, baseline: str, metrics: Sequence[Metric], done: _FinishedCells
) -> dict[str, Difference]:
    if arm == baseline:
        return {}
    found = {}
    for metric in metrics:
        values, reference = done.of(arm, metric.key), done.of(baseline, metric.key)
        paired = {
            seed: 0.0
            if math.isclose(values[seed], reference[seed], rel_tol=ROUNDING)
            else values[seed] - reference[seed]
            for seed in sorted(values.keys() & reference.keys())
        }
        if paired:
            interval = _interval(paired)
            found[metric.key] = Difference(
                mean=interval.mean,
                low=interval.low,
                high=interval.high,
                n=interval.n,
                judgement=_judge(interval, metric),
            )
    return found


def _judge(interval: ConfidenceInterval, metric: Metric) -> Judgement:
    verdict = interval.verdict
    if verdict == "unclear":
        return "unclear"
    return "better" if verdict == metric.better else "worse"


def _estimate(values: Values) -> Estimate:
    interval = _interval(values)
    return Estimate(mean=interval.mean, low=interval.low, high=interval.high, n=interval.n)


def _interval(values: Values) -> ConfidenceInterval:
    """Return the interval of values in the order of their seeds, so that it is reproducible."""
    ordered = np.array([values[seed] for seed in sorted(values)], dtype=np.float64)
    return mean_interval(ordered, np.random.default_rng(BOOTSTRAP_SEED))


def _warnings(grid: Grid, arms: Sequence[ArmSummary], *, has_training: bool) -> list[str]:
    least = LEAST_SEEDS_TRAINED if has_training else LEAST_SEEDS
    kind = "with training" if has_training else "without training"
    warnings = []
    if len(grid.seeds) < least:
        warnings.append(
            f"seeds: a comparison {kind} needs at least {least}, got {len(grid.seeds)}; add "
            "seeds, finished cells are kept"
        )
    missing = [arm for arm in arms if len(arm.seeds) < len(grid.seeds)]
    if missing:
        names = ", ".join(f"{arm.name} {len(arm.seeds)}/{len(grid.seeds)}" for arm in missing)
        warnings.append(f"cells failed: {names}; differences use the seeds that both arms have")
    return warnings
