"""The tuning runs of a grid, as a grid of its own, and the comparison with the chosen constants.

A point of an arm is an arm of the tuning grid, so that its cells are those of any grid: they
resume, run on hosts, and have their inputs checked. Their models are evaluated on validation
examples; test examples leave the data of such a run when it divides them (`FleetData`).
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import msgspec

from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.contrasts import power_in_units
from fairbed.testbed.compare.differences import ArmValues
from fairbed.testbed.compare.folder import TUNING
from fairbed.testbed.compare.grid import (
    MAX_ARM_NAME,
    Arm,
    Grid,
    GridCell,
    TargetConfig,
    arm_name,
    short_keys,
    with_fixed_cohorts,
)
from fairbed.testbed.compare.measures import RunMeasures, known_metrics, named_metrics
from fairbed.testbed.compare.tuning.halving import (
    Better,
    Choice,
    Rung,
    Trial,
    Values,
    plan,
    runs_in,
    search,
)
from fairbed.testbed.compare.tuning.result import TuningSummary, arm_tuning
from fairbed.testbed.compare.tuning.space import Point, Tuning
from fairbed.testbed.errors import RunError
from fairbed.testbed.experiment.file import Experiment

RunCells: TypeAlias = Callable[[Sequence[GridCell]], "list[CellResult] | None"]
"""Runs the unfinished ones of some cells, and returns all results; None after an interruption."""


def folder_of(out: Path) -> Path:
    """Return the folder of the tuning runs of a grid."""
    return out / TUNING


def rungs_of(grid: Grid) -> list[Rung]:
    """Return the rungs of each arm of a grid with a search."""
    assert grid.tuning is not None, "the grid has a search"
    n_points = len(grid.arms[0].points)
    return plan(n_points, len(grid.tuning.seeds), is_halved=grid.tuning.is_halved)


def runs_of(grid: Grid) -> int:
    """Return the number of tuning runs."""
    return len(grid.arms) * runs_in(rungs_of(grid))


def tuning_grid(grid: Grid) -> Grid:
    """Return the grid of the tuning runs: an arm for each point of each arm, arm by arm."""
    tuning = grid.tuning
    assert tuning is not None, "the grid has a search"
    arms = [
        Arm(name, name, point.setting, _validated(point.experiment))
        for arm in grid.arms
        for name, point in zip(_names(arm), arm.points, strict=True)
    ]
    return Grid(
        name=f"{grid.name}-tuning",
        fleet=grid.fleet,
        seeds=tuning.seeds,
        arms=tuple(arms),
        baseline=arms[0].name,
        primary=tuning.criterion,
        budget_metric=grid.budget_metric,
        target=TargetConfig(),
    )


def _validated(experiment: Experiment) -> Experiment:
    """Return an experiment whose last model is evaluated on validation examples."""
    return msgspec.structs.replace(
        experiment,
        data=msgspec.structs.replace(experiment.data, evaluated="validation"),
        evaluation=msgspec.structs.replace(experiment.evaluation, every=0),
    )


def _names(arm: Arm) -> list[str]:
    """Return distinct names of the points of an arm, which are folders: `ARM_KEY-VALUE`."""
    words = short_keys(arm.space)
    names = [arm_name(arm.name, words, point.setting) for point in arm.points]
    if len({name.casefold() for name in names}) == len(names) and all(
        len(name) <= MAX_ARM_NAME for name in names
    ):
        return names
    stem = arm.name[: MAX_ARM_NAME // 2]
    return [f"{stem}_point-{number}" for number in range(1, len(names) + 1)]


def tuned(grid: Grid, trials: Grid, run: RunCells) -> Grid | None:
    """Return a grid whose arms have the constants that their searches chose.

    Args:
        grid: The grid with a search.
        trials: Its tuning runs, from `tuning_grid`.
        run: Runs cells of `trials`; called once for each rung.

    Returns:
        None after an interruption.

    Raises:
        RunError: A tuning run failed, or no point of an arm has the criterion.
    """
    tuning = grid.tuning
    assert tuning is not None, "the grid has a search"
    rungs = rungs_of(grid)
    first = next(search(rungs, tuning.seeds, "more"))  # the same for either side
    wanted, choices = [first for _ in grid.arms], list[Choice]()
    searches = list[Generator[list[Trial], Values, Choice]]()
    n_points, runs = rungs[0].points, dict[tuple[int, int, int], RunMeasures]()
    while not choices:
        keys = [(number, *trial) for number, trials_ in enumerate(wanted) for trial in trials_]
        keys.sort(key=lambda key: key[2])  # seed by seed, as the cells of a grid
        cells = [GridCell(trials.arms[n_points * arm + point], seed) for arm, point, seed in keys]
        found = run(cells)
        if found is None:
            return None
        runs |= _measured(cells, keys, found)
        if not searches:
            side = better_side(tuning, runs.values())
            searches = [search(rungs, tuning.seeds, side) for _ in grid.arms]
            for one in searches:
                next(one)
        wanted = []
        for number, one in enumerate(searches):
            values = {
                (point, seed): measured.values.get(tuning.criterion)
                for (arm, point, seed), measured in runs.items()
                if arm == number
            }
            try:
                wanted.append(one.send(values))
            except StopIteration as stop:
                choices.append(stop.value)
    return _chosen(grid, rungs, choices, runs)


def better_side(tuning: Tuning, runs: Iterable[RunMeasures]) -> Better:
    """Return the good side of the criterion; that of a metric by name is in the runs.

    Raises:
        RunError: The runs have both sides.
    """
    if tuning.better is not None:
        return tuning.better
    sides = {
        metric.better
        for run in runs
        for metric in named_metrics(run.named)
        if metric.key == tuning.criterion
    }
    if len(sides) > 1:
        raise RunError(
            f"tune.criterion: {tuning.criterion} must have one better side in all arms, got more "
            "in some and less in others; choose another criterion"
        )
    return "less" if sides == {"less"} else "more"  # without a value no point is chosen


def _measured(
    cells: Sequence[GridCell],
    keys: Sequence[tuple[int, int, int]],
    found: Sequence[CellResult],
) -> dict[tuple[int, int, int], RunMeasures]:
    """Return the measures of tuning runs, by number of arm and point, and seed.

    Raises:
        RunError: A run failed: the choice would depend on it.
    """
    failed = [result for result in found if result.outcome.measured is None]
    if failed:
        first = min(failed, key=lambda result: (result.seed, result.arm))
        raise RunError(
            f"tune: all tuning runs must end, got {len(failed)} of {len(cells)} that failed, such "
            f"as {first.arm} with seed {first.seed}: {first.outcome.problem}; run the same command "
            "again, or remove the value from tune.space"
        )
    by_cell = {(result.arm, result.seed): result.outcome.measured for result in found}
    runs = dict[tuple[int, int, int], RunMeasures]()
    for cell, key in zip(cells, keys, strict=True):
        measured = by_cell[cell.arm.name, cell.seed]
        assert measured is not None, "failed runs are refused"
        runs[key] = measured
    return runs


def _chosen(
    grid: Grid,
    rungs: Sequence[Rung],
    choices: Sequence[Choice],
    runs: dict[tuple[int, int, int], RunMeasures],
) -> Grid:
    """Return the grid with the chosen constants, and how they were chosen."""
    tuning = grid.tuning
    assert tuning is not None, "the grid has a search"
    chosen = list[Point]()
    for number, (arm, choice) in enumerate(zip(grid.arms, choices, strict=True)):
        if choice.point is None:
            why = next(
                reason
                for (own, *_), run in runs.items()
                if own == number
                for reason in [run.missing.get(tuning.criterion, "the run lacks it")]
            )
            raise RunError(
                f"tune: a point of arm {arm.name!r} must have {tuning.criterion} in every seed, "
                f"got none ({why}); set other values, or tune.criterion"
            )
        chosen.append(arm.points[choice.point])
    arms = [
        replace(arm, experiment=point.experiment, cohorts_of=None)
        for arm, point in zip(grid.arms, chosen, strict=True)
    ]
    if grid.cohorts == "fixed":
        arms = with_fixed_cohorts(arms, grid.baseline, grid.fleet)
    first = next(iter(runs.values()))
    devices = first.size.devices
    summary = TuningSummary(
        criterion=tuning.criterion,
        better=better_side(tuning, runs.values()),
        seeds=list(tuning.seeds),
        runs=len(grid.arms) * runs_in(rungs),
        of_runs=len(grid.arms) * rungs[0].points * len(tuning.seeds),
        devices=devices,
        without=devices - first.evaluated,
        folded=first.few,
        arms=[
            arm_tuning(arm.name, arm.points, arm.space, choice)
            for arm, choice in zip(grid.arms, choices, strict=True)
        ],
        power=_power(grid, choices, runs),
    )
    return replace(grid, arms=tuple(arms), tuned=summary, tuning=None)


def _power(
    grid: Grid, choices: Sequence[Choice], runs: dict[tuple[int, int, int], RunMeasures]
) -> list[str]:
    """Return the smallest effects that the comparison can show, in units of their metrics."""
    chosen = {number: choice.point for number, choice in enumerate(choices)}
    samples: dict[str, dict[str, ArmValues]] = {}
    directions = {name: side for run in runs.values() for name, side in run.named.items()}
    metrics = [*known_metrics(), *named_metrics(directions)]
    for metric in metrics:
        own: dict[str, dict[int, float]] = {arm.name: {} for arm in grid.arms}
        for (arm, point, seed), run in runs.items():
            value = run.values.get(metric.key)
            if chosen[arm] == point and value is not None:
                own[grid.arms[arm].name][seed] = value
        samples[metric.key] = {
            name: ArmValues(values, sizes={}, missing={}) for name, values in own.items()
        }
    quantities = {metric.key: metric.quantity for metric in metrics}
    return power_in_units(
        grid.contrasts,
        [(arm.name, grid.baseline) for arm in grid.arms if arm.name != grid.baseline],
        grid.primary,
        samples,
        quantities,
        len(grid.seeds),
    )
