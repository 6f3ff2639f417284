"""Coverage of the effects of a factorial grid, and verdicts where no factor has an effect.

    fairbed bench contrasts [--draws 2000] [--tuned GRID.toml [--runs N] [--grids N]] [--json]

Drawn grids of two factors, 2 x 3 arms of which two are averaged, with an effect of the seed that
all arms share. Two tables:

1. The share of 95 % intervals of a main effect and of the interaction that contain the true one,
   for normal noise and for noise that is skewed: a lognormal and an exponential distribution, of
   which one arm has more.
2. The share of grids without any effect in which an effect of two metrics, their equivalence or a
   difference of an arm has a verdict, corrected as `fairbed compare` does. `from` and `to` are the
   95 % interval of the share.
3. With `--tuned`, the same for a grid that trains and is tuned: every arm is its baseline, with the
   points of it, and searches and compares with seeds of its own, which are drawn from replays of
   all points. Arms that are the same may so get other constants, as two arms of a study do whose
   search is too small. `constants` is the share of grids in which they did.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from scipy import stats

from benchmarks.intervals import Row, replay_arms
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.report.measures.scales import MetricKind, RunSize
from fairbed.testbed.compare.cell import CellOutcome, CellResult
from fairbed.testbed.compare.comparison import compare
from fairbed.testbed.compare.contrasts import Contrast, Effect, Factor, measured_effects
from fairbed.testbed.compare.differences import (
    FAMILY_LEVEL,
    ArmValues,
    corrected,
    difference,
)
from fairbed.testbed.compare.grid import Grid, load_grid
from fairbed.testbed.compare.tuning.halving import Better, Choice, Rung, search
from fairbed.testbed.compare.tuning_runs import better_side, rungs_of, tuning_grid
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.replay.cohort.ordered import free_cores

SIZES = (6, 10, 20)
ARMS = ("a0-b0", "a0-b1", "a0-b2", "a1-b0", "a1-b1", "a1-b2")
METRICS = ("worst", "mean")
CONTRAST = Contrast(
    name="fair",
    factors=(Factor("a", ("a0", "a1")), Factor("b", ("b0", "b1 or b2"))),
    cells={
        (0, 0): ARMS[:1],
        (0, 1): ARMS[1:3],
        (1, 0): ARMS[3:4],
        (1, 1): ARMS[4:],
    },
    metrics=METRICS,
    tested=("main", "interaction"),
    margins={"mean": 0.5},
)
SIZE = RunSize(rounds=100, devices=100, selections=1000, test_examples=5000)
QUANTITY = MetricKind(None, None, "linear", lambda size, value: 0.0)
NOISES = ("normal", "lognormal", "exponential")


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the shares; return the exit code.

    Raises:
        UsageError: An option is out of range.
    """
    parser = argparse.ArgumentParser(
        prog="fairbed bench contrasts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--draws", type=int, default=2_000, help="grids (default 2000)")
    parser.add_argument("--tuned", type=Path, metavar="GRID.toml", help="a grid with [tune]")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of it")
    parser.add_argument("--runs", type=int, default=200, help="seeds of each point (default 200)")
    parser.add_argument("--grids", type=int, default=200, help="tuned grids (default 200)")
    parser.add_argument("--jobs", type=int, default=free_cores(), help="replays at once")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    if options.draws < 1:
        raise UsageError(f"--draws: must be at least 1, got {options.draws}; leave it out")
    found = {"coverage": list(_coverage(options.draws)), "verdicts": list(_verdicts(options.draws))}
    if options.tuned is not None:
        try:
            grid = load_grid(options.tuned, options.set)
        except ExperimentError as exc:
            raise UsageError(str(exc)) from exc
        found["tuned"] = list(tuned_families(grid, options.runs, options.grids, options.jobs))
    if options.json:
        print(msgspec.json.encode(found).decode())
        return 0
    for rows in found.values():
        print("| " + " | ".join(rows[0]) + " |")
        print("|" + "---|" * len(rows[0]))
        for row in rows:
            cells = (f"{x:.3f}" if isinstance(x, float) else str(x) for x in row.values())
            print("| " + " | ".join(cells) + " |")
        print()
    return 0


def _coverage(draws: int) -> Iterator[dict[str, str | int | float]]:
    for noise in NOISES:
        for n in SIZES:
            rng = np.random.default_rng([n, NOISES.index(noise)])
            held = np.zeros(2)
            for _ in range(draws):
                values = _values(rng, n, noise)
                effects = measured_effects(CONTRAST, "worst", QUANTITY, values)
                held += [_holds(effects[at], _truth(noise, at)) for at in (1, 2)]
            main_effect, interaction = (held / draws).tolist()
            yield {
                "noise": noise,
                "seeds": n,
                "main effect": main_effect,
                "interaction": interaction,
            }


def _verdicts(draws: int) -> Iterator[dict[str, str | int | float]]:
    for n in SIZES:
        rng, found, alone = np.random.default_rng([n, 9]), 0, 0
        for _ in range(draws):
            p: dict[object, float] = {}
            declared: set[object] = set()
            for metric in METRICS:
                values = _values(rng, n, "normal")
                for number, effect in enumerate(
                    measured_effects(CONTRAST, metric, QUANTITY, values)
                ):
                    if effect.is_tested:  # equivalence is true here, and no error
                        p[metric, number] = effect.estimate.p or 0.0
                        declared.add((metric, number))
                for arm in ARMS[1:]:
                    gap = difference(values[arm], values[ARMS[0]], QUANTITY)
                    if gap is not None and gap.p is not None:
                        p[metric, arm] = gap.p
            found += min(corrected(p, declared).values()) <= FAMILY_LEVEL
            alone += min(p.values()) <= FAMILY_LEVEL
        low, high = stats.binomtest(found, draws).proportion_ci(method="exact")
        yield {
            **{"seeds": n, "grids": draws, "tests": len(p), "any verdict": found / draws},
            **{"from": float(low), "to": float(high), "without correction": alone / draws},
        }


def tuned_families(grid: Grid, runs: int, grids: int, jobs: int) -> Iterator[Row]:
    """Yield the shares of tuned A/A grids with a verdict, by number of seeds.

    Args:
        grid: Has a search and a contrast.
        runs: Seeds with which each point of the baseline is replayed, for validation and for tests.
        grids: How many are drawn from these.
        jobs: Replays at once.

    Raises:
        UsageError: The grid has no search, or a drawn grid needs more runs.
        RunError: A replay failed.
    """
    tuning, n_arms = grid.tuning, len(grid.arms)
    if tuning is None:
        raise UsageError(f"--tuned: must be a grid with [tune], got {grid.name}; name another one")
    sizes = [n for n in SIZES if n_arms * (n + len(tuning.seeds)) <= runs]
    if not sizes or grids < 1:
        least = n_arms * (SIZES[0] + len(tuning.seeds))
        raise UsageError(
            f"--runs, --grids: must be at least {least} and 1, got {runs} and {grids}; raise them"
        )
    (number,) = (at for at, arm in enumerate(grid.arms) if arm.name == grid.baseline)
    points = grid.arms[number].points
    trials = tuning_grid(grid)
    own = trials.arms[number * len(points) : (number + 1) * len(points)]
    tried = replay_arms(replace(trials, arms=own, baseline=own[0].name), runs, jobs)
    final = tuple(
        replace(arm, experiment=point.experiment) for arm, point in zip(own, points, strict=True)
    )
    ended = replay_arms(replace(trials, arms=final, baseline=own[0].name), runs, jobs)
    rungs, better = rungs_of(grid), better_side(tuning, tried[0])
    criterion = [[run.values.get(tuning.criterion) for run in one] for one in tried]
    for n in sizes:
        rng, shown, alone, other = np.random.default_rng([n, 5]), 0, 0, 0
        for _ in range(grids):
            picks = rng.choice(runs, (n_arms, n + len(tuning.seeds)), replace=False)
            chosen = [_searched(rungs, criterion, seeds[n:].tolist(), better) for seeds in picks]
            results = [
                CellResult(
                    arm=arm.name,
                    seed=seed,
                    folder="",
                    outcome=CellOutcome(measured=ended[point][pick]),
                )
                for arm, point, seeds in zip(grid.arms, chosen, picks, strict=True)
                for seed, pick in enumerate(seeds[:n].tolist())
            ]
            drawn = replace(
                grid,
                arms=tuple(
                    replace(arm, experiment=points[point].experiment, cohorts_of=None)
                    for arm, point in zip(grid.arms, chosen, strict=True)
                ),
                seeds=tuple(range(n)),
                tuning=None,
            )
            found = compare(drawn, "", "", results)
            gaps = [gap for arm in found.arms for gap in arm.differences.values()]
            gaps += [effect.estimate for effect in found.effects if effect.is_tested]
            shown += any(gap.judgement in ("better", "worse") for gap in gaps)
            alone += any(gap.p is not None and gap.p <= FAMILY_LEVEL for gap in gaps)
            other += len(set(chosen)) > 1
        low, high = stats.binomtest(shown, grids).proportion_ci(method="exact")
        yield {
            **{"seeds": n, "grids": grids, "tests": found.comparisons, "constants": other / grids},
            **{"any verdict": shown / grids, "from": float(low), "to": float(high)},
            "without correction": alone / grids,
        }


def _searched(
    rungs: Sequence[Rung],
    criterion: Sequence[Sequence[float | None]],
    seeds: Sequence[int],
    better: Better,
) -> int:
    """Return the point that a search with some seeds chooses.

    Args:
        rungs: Of the search.
        criterion: Of each point and seed.
        seeds: Of the search.
        better: The good side of the criterion.
    """
    one = search(rungs, seeds, better)
    wanted = next(one)
    while True:
        try:
            wanted = one.send({(point, seed): criterion[point][seed] for point, seed in wanted})
        except StopIteration as stop:
            choice: Choice = stop.value
            if choice.point is None:
                raise RunError("a drawn search has no point with its criterion") from None
            return choice.point


def _values(rng: np.random.Generator, n: int, noise: str) -> dict[str, ArmValues]:
    """Return a metric of each arm; one arm has noise of another mean if it is skewed."""
    shared = rng.normal(0.0, 2.0, n)
    drawn = {arm: shared + _noise(rng, n, noise, is_more=arm == ARMS[-1]) for arm in ARMS}
    return {arm: _sample(values) for arm, values in drawn.items()}


def _noise(rng: np.random.Generator, n: int, noise: str, *, is_more: bool) -> Floats:
    scale = 3.0 if is_more and noise != "normal" else 1.0
    if noise == "lognormal":
        return scale * rng.lognormal(0.0, 1.0, n)
    return scale * (rng.exponential(1.0, n) if noise == "exponential" else rng.normal(0.0, 1.0, n))


def _truth(noise: str, at: int) -> float:
    """Return the true effect: main effect of b (1), or the interaction (2)."""
    if noise == "normal":
        return 0.0
    more = 2.0 * (float(np.exp(0.5)) if noise == "lognormal" else 1.0)
    return more / 4.0 if at == 1 else more / 2.0


def _holds(effect: Effect, truth: float) -> bool:
    gap = effect.estimate
    return gap.low is not None and gap.high is not None and gap.low <= truth <= gap.high


def _sample(values: Floats) -> ArmValues:
    found: Mapping[int, float] = dict(enumerate(values.tolist()))
    return ArmValues(values=found, sizes=dict.fromkeys(found, SIZE), missing={})
