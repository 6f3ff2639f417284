"""Artificial results of a small grid, with numbers that can be checked by hand."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fairbed.coordinator.report.measures.scales import RunSize
from fairbed.testbed.compare.cell import CellOutcome, CellResult
from fairbed.testbed.compare.comparison import Comparison, compare
from fairbed.testbed.compare.grid import Grid, load_grid
from fairbed.testbed.compare.measures import RunCurves, RunMeasures, known_metrics, scores

GRID = """
name = "front_1"
seeds = {seeds}
{target}
[[arm]]
name = "uniform"
set = {{ "selection.policy" = "uniform" }}
[[arm]]
name = "rbcs_f"
axes = {{ "selection.V" = [5, 50] }}
[experiment]
[experiment.selection]
per_round = 1
beta = 0.15
[[experiment.fleet]]
model = "linear"
theta = [1.0, 1.0, 0.2]
count = 3
"""
TRAINING = 'set = { "replay.training" = true }'
FAST, FASTER = "rbcs_f_V-5", "rbcs_f_V-50"

EVALUATIONS = 10
SIZE = RunSize(rounds=EVALUATIONS, devices=10, selections=30, test_examples=500)


def result(
    arm: str,
    seed: int,
    *,
    slope: float | None = None,
    round_s: float = 10.0,
    problem: str = "",
    missing: str = "a reason",
    **values: float | None,
) -> CellResult:
    """Return a cell; metrics without an argument are undefined, `slope` is accuracy per round."""
    if problem:
        return CellResult(
            arm=arm, seed=seed, folder=f"runs/{arm}/{seed}", outcome=CellOutcome(problem=problem)
        )
    rounds = range(1, EVALUATIONS + 1)
    evaluated = rounds if slope is not None else range(0)
    run = RunCurves(
        rounds=tuple(rounds),
        closed_s=tuple(round_s * at for at in rounds),
        device_s=tuple(2.0 * round_s * at for at in rounds),
        updates=tuple(3 * at for at in rounds),
        queue_total=tuple(1.0 * at for at in rounds),
        evaluated=tuple(evaluated),
        evaluated_s=tuple(round_s * at for at in evaluated),
        evaluated_device_s=tuple(2.0 * round_s * at for at in evaluated),
        scores={key: tuple((slope or 0.0) * at for at in evaluated) for key in scores()},
    )
    known: dict[str, float | None] = {metric.key: None for metric in known_metrics()}
    known["virtual_s"] = round_s * EVALUATIONS
    known |= values
    reasons = {key: missing for key, value in known.items() if value is None}
    measured = RunMeasures(values=known, missing=reasons, size=SIZE, curves=run, has_attack=True)
    return CellResult(
        arm=arm, seed=seed, folder=f"runs/{arm}/{seed}", outcome=CellOutcome(measured=measured)
    )


def results(grid: Grid, make: Callable[[str, int], CellResult]) -> list[CellResult]:
    """Return one result per cell."""
    return [make(cell.arm.name, cell.seed) for cell in grid.cells()]


def grid_of(tmp_path: Path, seeds: int = 10, target: str = "") -> Grid:
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(seeds=seeds, target=target), encoding="utf-8")
    return load_grid(path)


def compared(grid: Grid, found: list[CellResult]) -> Comparison:
    return compare(grid, "hash", "1.0", found)


def cell(arm: str, seed: int) -> CellResult:
    """Return a cell in which the effect of the seed is the same for every arm."""
    seed_effect = float(np.random.default_rng(seed).normal())
    base = {"uniform": 300.0, FAST: 200.0, FASTER: 150.0}[arm]
    rate = {"uniform": 0.19, FAST: 0.16, FASTER: 0.16}[arm]
    noise = 0.0 if arm == "uniform" else 0.01 * (-1) ** seed
    return result(
        arm,
        seed,
        round_s=(base + 40.0 * seed_effect) / 10.0,
        min_rate_selected=rate,
        jain=0.9 + noise,
        queue_mean_total=base / 10.0,
    )
