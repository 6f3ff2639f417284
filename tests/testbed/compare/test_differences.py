"""Means, differences and their verdicts: scales, ranges, resolution and undefined values."""

import math

import numpy as np
import pytest
from scipy import stats

from fairbed.coordinator.report.measures.scales import SHARE, TIME, VARIANCE, RunSize
from fairbed.testbed.compare.differences import (
    ArmValues,
    corrected,
    difference,
    estimate,
    judged,
    on_scale,
    without_verdict,
)
from fairbed.testbed.compare.measures import known_metrics

SIZE = RunSize(rounds=100, devices=10, selections=400, test_examples=500)
BY_KEY = {metric.key: metric for metric in known_metrics()}


def sample(*values: float | None, reason: str = "a reason") -> ArmValues:
    """Return an arm with these values in the seeds 0, 1, ...; None is undefined."""
    return ArmValues(
        values={seed: value for seed, value in enumerate(values) if value is not None},
        sizes=dict.fromkeys(range(len(values)), SIZE),
        missing={seed: reason for seed, value in enumerate(values) if value is None},
    )


@pytest.mark.parametrize("key", [metric.key for metric in known_metrics()])
def test_equal_differences_below_the_resolution_show_nothing(key: str) -> None:
    """All seeds differ by the same millionth, so that the standard deviation is 0."""
    quantity = BY_KEY[key].quantity
    base = [0.5 + 0.01 * seed for seed in range(10)]
    gap = difference(sample(*(v + 1e-6 for v in base)), sample(*base), quantity)
    assert gap is not None
    assert gap.resolution > 1e-6
    assert gap.p is not None
    assert gap.p > 0.5
    assert gap.low is not None
    assert gap.high is not None
    assert gap.low < 0.0 < gap.high


def test_a_difference_far_above_the_resolution_is_shown() -> None:
    gap = difference(sample(*[0.9] * 6), sample(*[0.8] * 6), SHARE)
    assert gap is not None
    assert gap.resolution == 1.0 / 500
    t = 0.1 / (1.0 / 500 / math.sqrt(6))
    assert gap.p == pytest.approx(2.0 * stats.t.sf(t, 5))
    assert gap.p is not None
    assert 0.0 < gap.p < 1e-5


def test_arms_that_are_the_same_in_every_seed_have_no_difference() -> None:
    same = sample(0.8, 0.9, 0.7, 0.8, 0.9, 0.8)
    gap = difference(same, same, SHARE)
    assert gap is not None
    assert (gap.mean, gap.low, gap.high, gap.p) == (0.0, 0.0, 0.0, 1.0)


def test_without_a_number_of_test_examples_the_resolution_is_coarse() -> None:
    unknown = RunSize(rounds=100, devices=10, selections=400, test_examples=None)
    assert SHARE.resolution(unknown, 0.5) == 0.01


def test_the_resolution_of_a_variance_is_that_of_one_example() -> None:
    """One more correct answer of a device that is one standard deviation above the mean."""
    right = np.array([30, 40, 30, 40, 30, 40, 30, 40, 30, 40])
    before, after = (right / 50).var(), ((right + np.eye(10, dtype=int)[1]) / 50).var()
    assert VARIANCE.resolution(SIZE, before) == pytest.approx(after - before, rel=0.15)


def test_the_interval_of_an_accuracy_ends_at_its_range() -> None:
    """Three seeds of 0.2, 0.4 and 0.95 had the interval [-0.4, 1.5]."""
    found = estimate(sample(0.2, 0.5, 0.95), SHARE)
    assert (found.low, found.high, found.is_clipped) == (0.0, 1.0, True)
    inside = estimate(sample(0.50, 0.51, 0.52), SHARE)
    assert not inside.is_clipped
    gap = difference(sample(0.9, 0.1), sample(0.1, 0.2), SHARE)
    assert gap is not None
    assert (gap.low, gap.high, gap.is_clipped) == (-1.0, 1.0, True)


@pytest.mark.parametrize("key", ["virtual_s", "tau_median_s", "accuracy_variance", "energy_j"])
def test_the_interval_of_a_positive_metric_stays_positive(key: str) -> None:
    """The arithmetic interval of these values begins at -0.05."""
    values = (0.001, 0.02, 0.1)
    found = estimate(sample(*values), BY_KEY[key].quantity)
    ends = stats.t.interval(0.95, 2, np.log(values).mean(), stats.sem(np.log(values)))
    assert (found.low, found.high) == pytest.approx(tuple(np.exp(ends)))
    assert found.mean == pytest.approx(stats.gmean(values))
    assert found.low is not None
    assert found.low > 0.0
    assert not found.is_clipped


def test_zero_has_no_logarithm() -> None:
    """Neither has a variance of equal accuracies, which is 0 but for rounding."""
    for zero in (0.0, 1e-33):
        arms = {"a": sample(0.01, zero, 0.02), "b": sample(0.01, 0.02, 0.02)}
        quantity = on_scale(VARIANCE, arms)
        assert quantity.scale == "linear"
        found = estimate(arms["a"], quantity)
        assert found.mean == pytest.approx(0.01)
        assert (found.low, found.is_clipped) == (0.0, True)
    assert on_scale(VARIANCE, {"b": arms["b"]}).scale == "log"


def test_a_ratio_is_the_same_from_both_sides() -> None:
    rng = np.random.default_rng(1)
    one, other = (sample(*np.exp(rng.normal(size=8)).tolist()) for _ in range(2))
    gap, back = difference(one, other, TIME), difference(other, one, TIME)
    assert gap is not None
    assert back is not None
    assert (1.0 + gap.mean) * (1.0 + back.mean) == pytest.approx(1.0)
    assert gap.low is not None
    assert back.high is not None
    assert (1.0 + gap.low) * (1.0 + back.high) == pytest.approx(1.0)
    assert gap.p == pytest.approx(back.p)


def test_pairs_are_the_seeds_that_both_have_and_are_not_tested() -> None:
    whole, some = sample(*[0.8] * 8), sample(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, None, None)
    for gap in (difference(some, whole, SHARE), difference(whole, some, SHARE)):
        assert gap is not None
        assert (gap.n, gap.p) == (6, None)
    assert difference(sample(None, 0.5), sample(0.5, None), SHARE) is None
    assert some.n_seeds == 8
    assert some.reason == "a reason"


def test_a_difference_without_a_verdict_is_no_part_of_the_family() -> None:
    gap = difference(sample(0.9, 0.8, 0.9, 0.8, 0.9, 0.8), sample(*[0.5] * 6), SHARE)
    assert gap is not None
    assert gap.p is not None
    gaps = {("a", "m"): gap, ("b", "m"): without_verdict(gap, "a seed lacks it")}
    family = corrected({of: one.p for of, one in gaps.items() if one.p is not None}, set(gaps))
    assert family == {("a", "m"): gap.p}
    assert judged(gap, family["a", "m"], "more").judgement == "better"
    other = gaps["b", "m"]
    assert (other.judgement, other.p, other.reason) == ("no verdict", None, "a seed lacks it")
