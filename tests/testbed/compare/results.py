"""Artificial results of a small grid, with numbers that can be checked by hand."""

from collections.abc import Callable

from fairbed.testbed.compare.cell import CellOutcome, CellResult
from fairbed.testbed.compare.grid import Grid
from fairbed.testbed.compare.measures import METRICS, SCORES, RunCurves, RunMeasures

EVALUATIONS = 10


def result(
    arm: str,
    seed: int,
    *,
    slope: float | None = None,
    round_s: float = 10.0,
    problem: str = "",
    **values: float | None,
) -> CellResult:
    """Return a cell; metrics without an argument are unknown, `slope` is accuracy per round."""
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
        scores={key: tuple((slope or 0.0) * at for at in evaluated) for key in SCORES},
    )
    known: dict[str, float | None] = {metric.key: None for metric in METRICS}
    known["virtual_s"] = round_s * EVALUATIONS
    known |= values
    measured = RunMeasures(values=known, curves=run, has_attack=True)
    return CellResult(
        arm=arm, seed=seed, folder=f"runs/{arm}/{seed}", outcome=CellOutcome(measured=measured)
    )


def results(grid: Grid, make: Callable[[str, int], CellResult]) -> list[CellResult]:
    """Return one result per cell."""
    return [make(cell.arm.name, cell.seed) for cell in grid.cells()]
