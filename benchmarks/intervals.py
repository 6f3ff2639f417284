"""Coverage of bootstrap intervals of a mean over few seeds.

    fairbed bench intervals [--draws 4000] [--json]

Draws samples of known distributions with mean 1 and counts the 95 % intervals that contain it: the
expanded percentile interval of `fairbed compare`, the plain percentile interval and BCa (of
scipy), and Student's t.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec
import numpy as np
from scipy import stats

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.testbed.compare.statistics import CONFIDENCE, expanded_level

SIZES = (5, 10, 20)
RESAMPLES = 2_000
BATCH = 100
"""Samples that are resampled at once; it limits the memory."""

Draw: TypeAlias = Callable[[np.random.Generator, tuple[int, int]], Floats]

DISTRIBUTIONS: Mapping[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(1.0, 1.0, shape),
    "uniform": lambda rng, shape: rng.uniform(0.0, 2.0, shape),
    "exponential": lambda rng, shape: rng.exponential(1.0, shape),
}


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the shares; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench intervals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--draws", type=int, default=4_000, help="samples of each kind")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = [
        {"distribution": name, "n": n, **coverage(draw, n, options.draws)}
        for name, draw in DISTRIBUTIONS.items()
        for n in SIZES
    ]
    if options.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    heads = list(rows[0])
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for row in rows:
        cells = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()]
        print("| " + " | ".join(cells) + " |")
    return 0


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
        return _contains_one(low, high)

    found = stats.bootstrap(
        (samples,),
        np.mean,
        axis=1,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=rng,
    ).confidence_interval
    spread = samples.std(axis=1, ddof=1) / np.sqrt(n) * -stats.t.ppf(edge, n - 1)
    centre = samples.mean(axis=1)
    return {
        "expanded": percentile(expanded_level(n)),
        "percentile": percentile(edge),
        "BCa": _contains_one(np.asarray(found.low), np.asarray(found.high)),
        "Student": _contains_one(centre - spread, centre + spread),
    }


def _contains_one(low: Floats, high: Floats) -> Bools:
    held: Bools = (low <= 1.0) & (high >= 1.0)
    return held
