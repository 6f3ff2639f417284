"""Means of arms and their differences from the baseline, with intervals, tests and verdicts. Pure.

Metrics on the linear scale have arithmetic means, and differences in their unit. Metrics on the log
scale are positive: they have geometric means, and relative differences, the ratio of two geometric
means minus 1. Intervals and tests are those of the logarithms.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.coordinator.report.measures.scales import MetricKind, RunSize
from fairbed.testbed.compare.statistics import (
    CONFIDENCE,
    LEAST_SEEDS_TO_JUDGE,
    holm,
    mean_interval,
    p_value,
)

FAMILY_LEVEL = 1.0 - CONFIDENCE
"""Largest probability of a false verdict in a grid of equal arms."""
PRIMARY_SHARE = 0.8
"""Share of the level that the primary metric begins with; the other metrics share the rest."""
ROUNDING = 1e-9
"""Relative difference that counts as zero: sums of equal numbers can differ by rounding."""

LEAST_POSITIVE = 1e-12
"""Smaller values are 0 but for rounding, and have no logarithm."""

Judgement: TypeAlias = Literal["better", "worse", "unclear", "no verdict", "no power"]


class Estimate(Struct, frozen=True, kw_only=True):
    """A mean over seeds and its interval; the ends are null for fewer than two seeds."""

    mean: float
    """Arithmetic, or geometric if the metric is on the log scale."""
    low: float | None
    high: float | None
    is_clipped: bool
    """An end was outside the range of the metric."""
    n: int
    """Seeds that have the metric."""


class Difference(Struct, frozen=True, kw_only=True):
    """Mean difference between an arm and the baseline, paired by seed."""

    mean: float
    """In the unit of the metric; on the log scale relative to the baseline: -0.1 is 10 % less."""
    low: float | None
    high: float | None
    is_clipped: bool
    """An end was outside the range of such differences."""
    n: int
    """Seeds in which both have the metric."""
    resolution: float
    """Smallest difference that these runs can show; the standard deviation counts as at least it,
    unless all differences are 0. On the log scale relative."""
    p: float | None
    """p-value of Student's test of this difference alone; null if it was not tested."""
    p_family: float | None
    """The same, corrected for all comparisons of the grid."""
    judgement: Judgement
    """Unclear if `p_family` is above the level of the family; no power if seeds are too few."""
    reason: str
    """Why there is no verdict, however many seeds there are; empty otherwise."""


@dataclass(frozen=True, slots=True)
class ArmValues:
    """A metric of one arm: its value in every seed, or the reason for its absence."""

    values: Mapping[int, float]
    """By seed; all positive if the metric is on the log scale."""
    sizes: Mapping[int, RunSize]
    """Of the runs of these seeds."""
    missing: Mapping[int, str]
    """Why the metric is undefined, by seed."""

    @property
    def n_seeds(self) -> int:
        """Seeds of the arm, with and without the metric."""
        return len(self.values) + len(self.missing)

    @property
    def reason(self) -> str:
        """The distinct reasons for its absence, in one line."""
        known = dict.fromkeys(self.missing[seed] for seed in sorted(self.missing))
        return "; ".join(reason for reason in known if reason)


def on_scale(quantity: MetricKind, samples: Mapping[str, ArmValues]) -> MetricKind:
    """Return the quantity on the scale that all values allow: 0 has no logarithm."""
    if quantity.scale == "log" and any(
        value < LEAST_POSITIVE for sample in samples.values() for value in sample.values.values()
    ):
        return replace(quantity, scale="linear")
    return quantity


def estimate(sample: ArmValues, quantity: MetricKind) -> Estimate:
    """Return the mean of an arm over its seeds, of which one at least has the metric."""
    values = np.array([sample.values[seed] for seed in sorted(sample.values)], dtype=np.float64)
    is_log = quantity.scale == "log"
    found = mean_interval(np.log(values) if is_log else values)
    mean, low, high = (
        math.exp(end) if is_log and end is not None else end
        for end in (found.mean, found.low, found.high)
    )
    assert mean is not None
    ends, is_clipped = _clipped(low, high, quantity.lowest, quantity.highest)
    return Estimate(mean=mean, low=ends[0], high=ends[1], is_clipped=is_clipped, n=found.n)


def difference(sample: ArmValues, baseline: ArmValues, quantity: MetricKind) -> Difference | None:
    """Return the mean difference over the common seeds, not yet judged; None without such a seed.

    Unless all differences are 0, their standard deviation counts as at least the resolution. There
    is no p-value if a seed of either arm lacks the metric: the seeds that have it may be those in
    which the arm is good.
    """
    paired = _paired(sample.values, baseline.values, is_log=quantity.scale == "log")
    if not paired.size:
        return None
    resolution = max(resolution_of(sample, quantity), resolution_of(baseline, quantity))
    is_whole = not sample.missing and not baseline.missing
    return difference_of(paired, quantity, resolution, is_tested=is_whole)


def difference_of(
    paired: Floats, quantity: MetricKind, resolution: float, *, is_tested: bool
) -> Difference:
    """Return a mean of differences, not yet judged.

    Args:
        paired: One per seed, shape (n,), n at least 1, on the scale of the tests.
        quantity: The metric.
        resolution: Smallest change that the runs can show, on that scale.
        is_tested: Without it there is no p-value.
    """
    floor = resolution if paired.any() else 0.0
    found = mean_interval(paired, floor=floor)
    mean, low, high, step = (
        math.expm1(end) if quantity.scale == "log" and end is not None else end
        for end in (found.mean, found.low, found.high, resolution)
    )
    assert mean is not None
    assert step is not None
    widest = None
    if quantity.scale == "linear" and quantity.lowest is not None and quantity.highest is not None:
        widest = quantity.highest - quantity.lowest
    ends, is_clipped = _clipped(low, high, None if widest is None else -widest, widest)
    return Difference(
        mean=mean,
        low=ends[0],
        high=ends[1],
        is_clipped=is_clipped,
        n=found.n,
        resolution=step,
        p=p_value(paired, floor=floor) if is_tested else None,
        p_family=None,
        judgement="unclear" if found.n >= LEAST_SEEDS_TO_JUDGE else "no power",
        reason="",
    )


def without_verdict(gap: Difference, reason: str) -> Difference:
    """Return a difference that is not tested, for a reason."""
    return msgspec.structs.replace(gap, p=None, judgement="no verdict", reason=reason)


K = TypeVar("K")


def corrected(p: Mapping[K, float], declared: Collection[K]) -> dict[K, float]:
    """Return p-values corrected for all tests of a grid, its family.

    Args:
        p: By test.
        declared: The tests that the grid is about; they begin with `PRIMARY_SHARE` of the level.
    """
    if not p:
        return {}
    weights = _weights(np.array([test in declared for test in p]))
    found = holm(np.array(list(p.values()), dtype=np.float64), weights)
    return dict(zip(p, found.tolist(), strict=True))


def first_level(n_declared: int, n_other: int) -> float:
    """Return the level at which the first declared test of a family is shown."""
    share = PRIMARY_SHARE if n_other else 1.0
    return FAMILY_LEVEL * share / max(n_declared, 1)


def judged(gap: Difference, p_family: float, better: Literal["less", "more"]) -> Difference:
    """Return a difference with its corrected p-value and verdict."""
    judgement: Judgement = "unclear"
    if p_family <= FAMILY_LEVEL:
        judgement = "better" if (gap.mean < 0.0) == (better == "less") else "worse"
    return msgspec.structs.replace(gap, p_family=p_family, judgement=judgement)


def _clipped(
    low: float | None, high: float | None, lowest: float | None, highest: float | None
) -> tuple[tuple[float | None, float | None], bool]:
    """Return the ends of an interval within a range, and whether one was outside."""
    if low is None or high is None:
        return (low, high), False
    ends = (
        low if lowest is None else max(low, lowest),
        high if highest is None else min(high, highest),
    )
    beyond = ROUNDING * max(1.0, abs(low), abs(high))
    return ends, ends[0] - low > beyond or high - ends[1] > beyond


def resolution_of(sample: ArmValues, quantity: MetricKind) -> float:
    """Return the smallest change that the runs of a sample can show, on the scale of the tests."""
    steps = [
        math.log1p(step / value) if quantity.scale == "log" else step
        for step, value in (
            (quantity.resolution(sample.sizes[seed], value), value)
            for seed, value in sample.values.items()
        )
    ]
    return max(steps, default=0.0)


def _paired(values: Mapping[int, float], reference: Mapping[int, float], *, is_log: bool) -> Floats:
    """Return the differences of the seeds that both have, in the order of the seeds."""
    pairs = [(values[seed], reference[seed]) for seed in sorted(values.keys() & reference.keys())]
    differences: Floats = np.array(
        [
            0.0
            if math.isclose(own, other, rel_tol=ROUNDING)
            else math.log(own / other)
            if is_log
            else own - other
            for own, other in pairs
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
