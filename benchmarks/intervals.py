"""Coverage of intervals, and verdicts on grids of equal arms.

    fairbed bench intervals [--draws 4000] [--runs 4000] [--grid GRID.toml] [--set KEY=VALUE]
                            [--jobs N] [--json]

Three tables:

1. Samples of known distributions with mean 1: the share of 95 % intervals that contain it. Those
   of logarithms are about the geometric mean, as for metrics on the log scale. Student's is that of
   `fairbed compare`; the others are bootstrap intervals: expanded percentile (Hesterberg, The
   American Statistician 69(4), 2015, section 4.3), percentile, and BCa of scipy.
2. A/A differences: the baseline of a grid is replayed with `--runs` seeds. Two of these runs differ
   by their seeds only, so the mean of their differences is 0. The share of intervals of `fairbed
   compare` that contain 0, by metric and on its scale, for pairs that are drawn from the runs.
3. A/A grids: all arms are the same baseline, with other seeds. The share of grids in which
   `fairbed compare` finds any arm better or worse, with and without its correction. The first row
   uses each run once, so its grids are independent; the others draw their runs. `from` and `to`
   are the 95 % interval of the share, for independent grids.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import anyio
import msgspec
import numpy as np
from scipy import stats

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.report.measures.scales import MetricKind, RunSize
from fairbed.testbed.compare.cell import CellOutcome, CellResult
from fairbed.testbed.compare.comparison import Comparison, compare
from fairbed.testbed.compare.differences import FAMILY_LEVEL, ArmValues, difference, on_scale
from fairbed.testbed.compare.grid import Arm, Grid, load_grid
from fairbed.testbed.compare.measures import (
    MACHINE_TIME,
    RunMeasures,
    known_metrics,
)
from fairbed.testbed.compare.pool import run_cells
from fairbed.testbed.compare.statistics import CONFIDENCE, mean_interval
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.progress import progress, tracked
from fairbed.testbed.replay.cohort.ordered import free_cores

SIZES = (6, 10, 20)
RESAMPLES = 2_000
BATCH = 100
"""Samples that are resampled at once; it limits the memory."""
GRID = Path(__file__).parents[1] / "examples" / "grids" / "rbcs-f-front.toml"
SETTINGS = ("rounds=40",)
"""Changes of the default grid: short runs."""
GRID_SEEDS = 6
"""Of the grids of two arms that share no run."""
DRAWN_GRIDS, ARMS = 1_000, (2, 4)
LEAST_RUNS = max(ARMS) * max(SIZES)

Draw: TypeAlias = Callable[[np.random.Generator, tuple[int, int]], Floats]
Row: TypeAlias = dict[str, str | int | float]

DISTRIBUTIONS: Mapping[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(1.0, 1.0, shape),
    "uniform": lambda rng, shape: rng.uniform(0.0, 2.0, shape),
    "exponential (skewed)": lambda rng, shape: rng.exponential(1.0, shape),
    "lognormal (more skewed)": lambda rng, shape: rng.lognormal(-0.5, 1.0, shape),
    "logarithms of exponential": lambda rng, shape: (
        1.0 + np.euler_gamma + np.log(rng.exponential(1.0, shape))
    ),
    "logarithms of lognormal": lambda rng, shape: 1.0 + np.log(rng.lognormal(0.0, 1.0, shape)),
}


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the shares; return the exit code.

    Raises:
        UsageError: The grid cannot be replayed, or an option is out of range.
        RunError: A replay failed.
    """
    parser = argparse.ArgumentParser(
        prog="fairbed bench intervals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--draws", type=int, default=4_000, help="samples of each kind (default 4000)")
    add("--runs", type=int, default=4_000, help="replays of the baseline (default 4000)")
    add("--grid", type=Path, help="its baseline is replayed (default rbcs-f-front.toml)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="as for `fairbed compare`")
    add("--jobs", type=int, default=free_cores(), help="replays at once (default: all cores)")
    add("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    if options.draws < 1 or options.jobs < 1 or options.runs < LEAST_RUNS:
        raise UsageError(
            f"bench intervals: --draws and --jobs must be at least 1 and --runs at least "
            f"{LEAST_RUNS}, got {options.draws}, {options.jobs} and {options.runs}; raise them"
        )
    settings = options.set if options.grid else [*SETTINGS, *options.set]
    try:
        grid = load_grid(options.grid or GRID, settings, seeds=1)
    except ExperimentError as exc:
        raise UsageError(str(exc)) from exc
    known: list[Row] = [
        {"distribution": name, "seeds": n, **coverage(draw, n, options.draws)}
        for name, draw in DISTRIBUTIONS.items()
        for n in SIZES
    ]
    pool = replay_baseline(grid, options.runs, options.jobs)
    found = {
        "known": known,
        "differences": list(aa_coverage(pool, options.draws)),
        "grids": list(aa_grids(grid, pool)),
    }
    if options.json:
        print(msgspec.json.encode(found).decode())
        return 0
    baseline = f"{grid.name}, {grid.baseline}, {len(pool):,} runs"
    print(f"Coverage of 95 % intervals of a mean:\n\n{_table(found['known'])}")
    print(f"Coverage for A/A differences ({baseline}):\n\n{_table(found['differences'])}")
    print(f"Share of A/A grids with a verdict (the same runs):\n\n{_table(found['grids'])}")
    return 0


def _table(rows: Sequence[Row]) -> str:
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [f"{v:.3f}" if isinstance(v, float) else f"{v}" for v in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def coverage(draw: Draw, n: int, draws: int) -> dict[str, float]:
    """Return the share of intervals that contain the mean 1, by kind of interval."""
    rng, hits = np.random.default_rng(n), dict[str, int]()
    for start in range(0, draws, BATCH):
        samples = draw(rng, (min(BATCH, draws - start), n))
        for kind, held in _contains_mean(samples, rng).items():
            hits[kind] = hits.get(kind, 0) + int(held.sum())
    return {kind: count / draws for kind, count in hits.items()}


def _contains_mean(samples: Floats, rng: np.random.Generator) -> dict[str, Bools]:
    """Return whether the interval of each sample contains 1; samples (K, n), result (K,) each."""
    k, n = samples.shape
    picks = rng.integers(n, size=(k, RESAMPLES, n))
    means = np.take_along_axis(samples[:, None, :], picks, axis=2).mean(axis=2)
    edge = (1.0 - CONFIDENCE) / 2.0

    def percentile(level: float) -> Bools:
        low, high = np.quantile(means, (level, 1.0 - level), axis=1)
        return _contains(1.0, low, high)

    found = stats.bootstrap(
        (samples,),
        np.mean,
        axis=1,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=rng,
    ).confidence_interval
    return {
        "Student (ours)": np.array([_covers(values, 1.0) for values in samples]),
        "expanded": percentile(
            float(stats.norm.cdf(np.sqrt(n / (n - 1)) * stats.t.ppf(edge, n - 1)))
        ),
        "percentile": percentile(edge),
        "BCa": _contains(1.0, np.asarray(found.low), np.asarray(found.high)),
    }


def _contains(mean: float, low: Floats, high: Floats) -> Bools:
    held: Bools = (low <= mean) & (high >= mean)
    return held


def _covers(values: Floats, mean: float) -> bool:
    found = mean_interval(values)
    assert found.low is not None
    assert found.high is not None
    return found.low <= mean <= found.high


def replay_baseline(grid: Grid, runs: int, jobs: int) -> list[RunMeasures]:
    """Replay the baseline of a grid with the seeds 0 to runs - 1; keep the measures only.

    Raises:
        RunError: A replay failed, or the command was interrupted.
    """
    (arm,) = (arm for arm in grid.arms if arm.name == grid.baseline)
    (found,) = replay_arms(replace(grid, arms=(arm,)), runs, jobs)
    return found


def replay_arms(grid: Grid, runs: int, jobs: int) -> list[list[RunMeasures]]:
    """Replay all arms of a grid with the seeds 0 to runs - 1; return the measures of each arm.

    Raises:
        RunError: A replay failed, or the command was interrupted.
    """
    grid = replace(grid, seeds=tuple(range(runs)))
    found = dict[tuple[str, int], RunMeasures]()
    cells = len(grid.arms) * runs
    with tempfile.TemporaryDirectory() as folder, progress(cells, "replays", "intervals") as bar:
        out = Path(folder)

        def keep(result: CellResult) -> None:
            if result.outcome.measured is None:
                raise RunError(f"{result.arm}, seed {result.seed}: {result.outcome.problem}")
            found[result.arm, result.seed] = result.outcome.measured
            shutil.rmtree(out / result.folder)
            bar.advance()

        is_whole = anyio.run(run_cells, grid, out, jobs, keep)
    if not is_whole:
        raise RunError("interrupted; the same command starts again")
    return [[found[arm.name, seed] for seed in grid.seeds] for arm in grid.arms]


def aa_coverage(pool: Sequence[RunMeasures], draws: int) -> list[Row]:
    """Return the share of intervals of A/A differences that contain 0, by metric and seeds."""
    keys = [
        metric.key
        for metric in known_metrics()
        if metric.better
        and metric.key != MACHINE_TIME
        and all(run.values[metric.key] is not None for run in pool)
    ]
    quantities = {metric.key: metric.quantity for metric in known_metrics()}
    everything = {
        key: _sample([run.values[key] for run in pool], [run.size for run in pool]) for key in keys
    }
    scaled = {key: on_scale(quantities[key], {"": everything[key]}) for key in keys}
    rng, shares = np.random.default_rng(0), dict[int, Floats]()
    for n in SIZES:
        picks = _picks(rng, len(pool), 2 * n, draws)
        hits = [
            [_holds_zero(pool, key, scaled[key], row) for key in keys] for row in picks.tolist()
        ]
        shares[n] = np.mean(hits, axis=0)
    return [
        {
            "metric": key,
            "scale": scaled[key].scale,
            "distinct values": len(set(everything[key].values.values())),
            **{f"{n} seeds": float(shares[n][at]) for n in SIZES},
        }
        for at, key in enumerate(keys)
    ]


def _sample(values: Sequence[float | None], sizes: Sequence[RunSize]) -> ArmValues:
    known = {seed: value for seed, value in enumerate(values) if value is not None}
    return ArmValues(values=known, sizes=dict(enumerate(sizes)), missing={})


def _holds_zero(
    pool: Sequence[RunMeasures], key: str, quantity: MetricKind, picked: Sequence[int]
) -> bool:
    """Return whether the interval of the difference of two halves of some runs contains 0."""
    runs = [pool[at] for at in picked]
    half = len(runs) // 2
    one, other = (
        _sample([run.values[key] for run in part], [run.size for run in part])
        for part in (runs[:half], runs[half:])
    )
    found = difference(one, other, quantity)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    return found.low <= 0.0 <= found.high


def aa_grids(grid: Grid, pool: Sequence[RunMeasures]) -> list[Row]:
    """Return the shares of A/A grids with a verdict: of independent grids, and of drawn ones."""
    rng = np.random.default_rng(1)
    cells = 2 * GRID_SEEDS
    once = np.arange(len(pool) // cells * cells).reshape(-1, cells)
    rows = [_shares(grid, pool, once, 2, "each once")]
    for arms, n in tracked([(arms, n) for arms in ARMS for n in SIZES], "grids", "intervals"):
        picks = _picks(rng, len(pool), arms * n, DRAWN_GRIDS)
        rows.append(_shares(grid, pool, picks, arms, "drawn"))
    return rows


def _picks(rng: np.random.Generator, n: int, k: int, draws: int) -> Ints:
    """Return k distinct numbers below n for each draw, shape (draws, k)."""
    return np.array([rng.choice(n, k, replace=False) for _ in range(draws)], dtype=np.int64)


def _shares(grid: Grid, pool: Sequence[RunMeasures], picks: Ints, arms: int, runs: str) -> Row:
    """Return the shares of grids with a verdict; picks are their runs, shape (grids, runs)."""
    found = [_compared(grid, [pool[at] for at in row], arms) for row in picks.tolist()]
    gaps = [[gap for arm in one.arms for gap in arm.differences.items()] for one in found]
    shown = [{key for key, gap in one if gap.judgement in ("better", "worse")} for one in gaps]
    alone = [any(gap.p is not None and gap.p <= FAMILY_LEVEL for _, gap in one) for one in gaps]
    n_shown = sum(bool(keys) for keys in shown)
    low, high = stats.binomtest(n_shown, len(shown)).proportion_ci()
    return {
        "arms": arms,
        "seeds": picks.shape[1] // arms,
        "grids": len(picks),
        "runs": runs,
        "comparisons": found[0].comparisons,
        "any verdict": n_shown / len(shown),
        "from": float(low),
        "to": float(high),
        "primary metric": float(np.mean([grid.primary in keys for keys in shown])),
        "without correction": float(np.mean(alone)),
    }


def _compared(grid: Grid, runs: Sequence[RunMeasures], arms: int) -> Comparison:
    """Return the comparison of arms that all are the baseline, each with its share of the runs."""
    (arm,) = (arm for arm in grid.arms if arm.name == grid.baseline)
    names, n = [f"a{number}" for number in range(arms)], len(runs) // arms
    equal = replace(
        grid,
        arms=tuple(Arm(name, name, (), arm.experiment) for name in names),
        seeds=tuple(range(n)),
        baseline=names[0],
        target=msgspec.structs.replace(grid.target, of=None),
    )
    results = [
        CellResult(arm=name, seed=seed, folder="", outcome=CellOutcome(measured=run))
        for name, part in zip(names, np.arange(len(runs)).reshape(arms, n).tolist(), strict=True)
        for seed, run in enumerate(runs[at] for at in part)
    ]
    return compare(equal, "", "", results)
