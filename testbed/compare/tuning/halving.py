"""Successive halving over seeds: which points of a search space run next, and the choice. Pure.

All points of a rung have the same seeds, so that the effect of a seed itself cancels, and a point
that goes on keeps its runs. Rungs have 1, 2, 4, ... seeds, the last one all. The better half of the
points of a rung goes on. The first rungs are left out where the last one would have fewer than two
points.

Source:
    K. Jamieson, A. Talwalkar, *Non-stochastic Best Arm Identification and Hyperparameter
    Optimization*, AISTATS 2016, Algorithm 1. Deviates: the budget of a point are seeds, not
    iterations, so that a constant which learns slowly at first is not at a disadvantage.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Better: TypeAlias = Literal["less", "more"]
Trial: TypeAlias = tuple[int, int]
"""Number of a point, and a seed."""
Values: TypeAlias = Mapping[Trial, float | None]
"""The criterion of each trial; None is undefined, as of a model that diverged."""


@dataclass(frozen=True, slots=True)
class Rung:
    """Some points that run with some seeds."""

    points: int
    seeds: int
    """Seeds of each point after the rung, those of the rungs before included."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A point after the search."""

    rung: int
    """Number of the last rung in which it ran, from 1."""
    values: Mapping[int, float | None]
    """The criterion, by seed."""

    def mean(self, seeds: Sequence[int]) -> float | None:
        """Return the mean over some seeds; None if one of them lacks the criterion."""
        found = [value for seed in seeds if (value := self.values[seed]) is not None]
        is_whole = len(found) == len(seeds) and all(map(math.isfinite, found))
        return math.fsum(found) / len(found) if is_whole else None


@dataclass(frozen=True, slots=True)
class Choice:
    """The end of a search."""

    point: int | None
    """Number of the chosen point; None: the criterion is undefined in all that ran to the end."""
    tried: tuple[Tried, ...]
    """Of all points, in their order."""
    ties: int = 0
    """Other points of the last rung that are as good; of equal ones the first is chosen."""


def plan(n_points: int, n_seeds: int, *, is_halved: bool = True) -> list[Rung]:
    """Return the rungs of a search.

    Args:
        n_points: At least 1.
        n_seeds: At least 1.
        is_halved: Without it all points run with all seeds.
    """
    levels = [n_seeds]
    while is_halved and levels[0] > 1:
        levels.insert(0, _below(levels[0]))
    while len(levels) > 1 and _kept(n_points, len(levels) - 1) < 2:
        del levels[0]
    return [Rung(_kept(n_points, number), seeds) for number, seeds in enumerate(levels)]


def _below(seeds: int) -> int:
    """Return the largest power of two below a number of seeds."""
    power: int = 1 << ((seeds - 1).bit_length() - 1)
    return power


def _kept(n_points: int, halvings: int) -> int:
    """Return how many points are left after some halvings, rounded down each time."""
    return n_points >> halvings


def runs_in(rungs: Sequence[Rung]) -> int:
    """Return the number of runs of a search."""
    before = [0, *(rung.seeds for rung in rungs)]
    return sum(rung.points * (rung.seeds - old) for rung, old in zip(rungs, before, strict=False))


def search(
    rungs: Sequence[Rung], seeds: Sequence[int], better: Better
) -> Generator[list[Trial], Values, Choice]:
    """Yield the trials of each rung, receive their values, and return the choice.

    The chosen point has the best mean over all seeds among those of the last rung. Of equal ones
    the first counts; a point whose criterion is undefined in a seed comes after all others.

    Args:
        rungs: From `plan`.
        seeds: In the order in which rungs take them.
        better: The good side of the criterion.
    """
    n_points = rungs[0].points
    values: list[dict[int, float | None]] = [{} for _ in range(n_points)]
    last = [0] * n_points
    left, used = list(range(n_points)), 0
    for number, rung in enumerate(rungs, 1):
        left = left[: rung.points]
        trials = [(point, seed) for seed in seeds[used : rung.seeds] for point in left]
        found = yield trials
        for point, seed in trials:
            values[point][seed] = found[point, seed]
            last[point] = number
        used = rung.seeds
        means = {point: Tried(number, values[point]).mean(seeds[:used]) for point in left}
        left.sort(key=lambda point: (_loss(means[point], better), point))
    best = means[left[0]]
    tried = tuple(Tried(rung, own) for rung, own in zip(last, values, strict=True))
    if best is None:
        return Choice(None, tried)
    ties = sum(means[point] == best for point in left[1:])
    return Choice(left[0], tried, ties)


def _loss(mean: float | None, better: Better) -> float:
    if mean is None:
        return math.inf
    return mean if better == "less" else -mean
