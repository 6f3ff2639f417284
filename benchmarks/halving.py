"""How often successive halving chooses the point of the full grid, and at which cost.

    fairbed bench halving [--cases 1000] [--json]

A case is a search space of a learning rate and a second constant. The accuracy of a point with a
seed is that of a smooth hill, plus an effect of the seed that all points share, plus noise of its
own. The top of the hill lies anywhere in the space, in a third of the cases at or beyond its edge.
`noise` is the standard deviation of the noise relative to that of the hill over the points of the
space. Both searches see the same values: the full grid runs all points with all seeds.

`same` is the share of cases in which both choose the same point, from `from` to `to` in 95 % of
repetitions; `loss` the mean height by which the choice of halving is below that of the full grid,
relative to the standard deviation of the hill: negative where it is above.
"""

import argparse
from collections.abc import Sequence

import msgspec
import numpy as np
from scipy import stats

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.testbed.compare.tuning.halving import Choice, Rung, plan, runs_in, search
from fairbed.testbed.errors import UsageError
from fairbed.testbed.progress import tracked

SPACES = ((8, 1), (4, 4), (9, 3))
"""Values of both constants."""
SEEDS = (4, 8)
NOISES = (0.1, 0.25, 0.5, 1.0)
SEED_EFFECT = 1.0
"""Standard deviation of the effect that all points share, relative to that of the hill."""

Row = dict[str, str | int | float]


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the shares; return the exit code.

    Raises:
        UsageError: An option is out of range.
    """
    parser = argparse.ArgumentParser(
        prog="fairbed bench halving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=int, default=1_000, help="of each row (default 1000)")
    parser.add_argument("--json", action="store_true", help="one JSON array on stdout")
    options = parser.parse_args(arguments)
    if options.cases < 1:
        raise UsageError(
            f"bench halving: --cases must be at least 1, got {options.cases}; raise it"
        )
    kinds = [(space, n, noise) for space in SPACES for n in SEEDS for noise in NOISES]
    rows = [row(*kind, options.cases) for kind in tracked(kinds, "rows", "halving")]
    if options.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    print(f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
    for found in rows:
        print(f"| {' | '.join(_text(value) for value in found.values())} |")
    return 0


def row(space: tuple[int, int], n_seeds: int, noise: float, cases: int) -> Row:
    """Return the shares of one kind of cases.

    Args:
        space: Values of both constants.
        n_seeds: Seeds of the tuning runs.
        noise: Standard deviation of the noise, relative to that of the hill.
        cases: Number of cases.
    """
    dice = np.random.default_rng([*space, n_seeds, round(1_000 * noise)])
    n_points = space[0] * space[1]
    halved, full = plan(n_points, n_seeds), plan(n_points, n_seeds, is_halved=False)
    same, losses = 0, list[float]()
    for _ in range(cases):
        height = hill(dice, space)
        shared = SEED_EFFECT * dice.normal(size=n_seeds)
        values = height[:, None] + shared + noise * dice.normal(size=(n_points, n_seeds))
        own, other = choice(halved, values), choice(full, values)
        same += own == other
        losses.append(float(height[other] - height[own]))
    interval = stats.binomtest(same, cases).proportion_ci()
    return {
        "points": f"{space[0]} x {space[1]}",
        "seeds": n_seeds,
        "noise": noise,
        "same": same / cases,
        "from": float(interval.low),
        "to": float(interval.high),
        "cost": runs_in(halved) / runs_in(full),
        "loss": float(np.mean(losses)),
    }


def hill(dice: np.random.Generator, space: tuple[int, int]) -> Floats:
    """Return the heights of a paraboloid over a space, standard deviation 1, shape (points,)."""
    heights: Floats = np.zeros(space)
    for axis, count in enumerate(space):
        at = np.arange(count, dtype=np.float64)
        top, slope = dice.uniform(-0.25, 1.25) * (count - 1), dice.uniform(0.5, 2.0)
        own = -slope * ((at - top) / max(count - 1, 1)) ** 2
        heights = heights + np.expand_dims(own, 1 - axis)
    found: Floats = heights.ravel() / heights.std()
    return found


def choice(rungs: Sequence[Rung], values: Floats) -> int:
    """Return the point that a search chooses, given all values, shape (points, seeds)."""
    trials = search(rungs, range(values.shape[1]), "more")
    wanted = next(trials)
    while True:
        try:
            wanted = trials.send({trial: float(values[trial]) for trial in wanted})
        except StopIteration as stop:
            found: Choice = stop.value
            assert found.point is not None, "all values are defined"
            return found.point


def _text(value: str | int | float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
