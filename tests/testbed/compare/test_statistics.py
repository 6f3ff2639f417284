"""Intervals are checked against scipy and by their coverage, times and fronts by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.testbed.compare.statistics import (
    ConfidenceInterval,
    expanded_level,
    final_value,
    mean_interval,
    on_front,
    restricted,
    running_mean,
    time_to,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def floats(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


@pytest.mark.parametrize("n", [2, 5, 10, 30])
def test_the_level_is_that_of_students_t(n: int) -> None:
    wanted = stats.norm.cdf(np.sqrt(n / (n - 1)) * stats.t.ppf(0.025, n - 1))
    assert expanded_level(n) == pytest.approx(wanted, rel=1e-9)


def test_with_many_values_the_level_is_the_plain_one() -> None:
    assert expanded_level(10_000) == pytest.approx(0.025, abs=1e-4)


def test_the_interval_is_scipys_percentile_interval_at_that_level() -> None:
    values = rng(3).exponential(size=12)
    ours = mean_interval(values, rng(), resamples=100_000)
    theirs = stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=1.0 - 2.0 * expanded_level(12),
        n_resamples=100_000,
        method="percentile",
        rng=rng(1),
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=0.01)
    assert ours.mean == values.mean()


def test_for_many_normal_values_the_interval_is_students() -> None:
    values = rng(5).normal(3.0, 2.0, size=200)
    found = mean_interval(values, rng())
    low, high = stats.t.interval(0.95, 199, values.mean(), values.std(ddof=1) / np.sqrt(200))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.02)


def coverage(n: int, *, is_skewed: bool) -> float:
    dice, hits = rng(11), 0
    for _ in range(1_500):
        values = dice.exponential(size=n) if is_skewed else dice.normal(1.0, 1.0, size=n)
        found = mean_interval(values, dice, resamples=1_500)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 1.0 <= found.high
    return hits / 1_500


@pytest.mark.parametrize(
    ("n", "is_skewed", "least"), [(5, False, 0.91), (10, False, 0.93), (10, True, 0.88)]
)
def test_ninety_five_percent_of_intervals_cover_the_mean(
    n: int, is_skewed: bool, least: float
) -> None:
    assert least <= coverage(n, is_skewed=is_skewed) <= 0.97


def test_an_interval_does_not_depend_on_how_much_is_drawn_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = rng(2).normal(size=10)
    whole = mean_interval(values, rng())
    monkeypatch.setattr("fairbed.testbed.compare.statistics._BLOCK", 70)
    assert mean_interval(values, rng()) == whole


def test_equal_values_have_no_width_and_one_value_has_no_interval() -> None:
    assert mean_interval(np.full(6, 4.0), rng()) == ConfidenceInterval(4.0, 4.0, 4.0, 6)
    assert mean_interval(floats(4.0), rng()) == ConfidenceInterval(4.0, None, None, 1)
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval(floats(), rng())


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (ConfidenceInterval(-2.0, -3.0, -1.0, 10), "less"),
        (ConfidenceInterval(2.0, 1.0, 3.0, 10), "more"),
        (ConfidenceInterval(2.0, -1.0, 5.0, 10), "unclear"),
        (ConfidenceInterval(2.0, 0.0, 5.0, 10), "unclear"),
        (ConfidenceInterval(0.0, 0.0, 0.0, 10), "unclear"),
        (ConfidenceInterval(2.0, 1.0, 3.0, 4), "unclear"),
        (ConfidenceInterval(2.0, None, None, 1), "unclear"),
    ],
)
def test_the_verdict_is_unclear_if_zero_is_inside_or_seeds_are_few(
    interval: ConfidenceInterval, verdict: str
) -> None:
    assert interval.verdict == verdict


def test_the_running_mean_is_a_convolution() -> None:
    values = rng(1).normal(size=40)
    means = running_mean(values)
    assert np.isnan(means[:4]).all()
    np.testing.assert_allclose(means[4:], np.convolve(values, np.full(5, 0.2), mode="valid"))
    assert np.isnan(running_mean(values[:4])).all()


def test_a_target_is_reached_by_a_running_mean_not_by_one_evaluation() -> None:
    at_s = np.arange(1.0, 11.0) * 10.0
    lucky = floats(0.1, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)
    assert time_to(0.8, at_s, lucky) is None
    steady = floats(0.1, 0.5, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8)
    assert time_to(0.8, at_s, np.round(steady, 3) + 1e-12) == 70.0
    assert time_to(0.599, at_s, steady) == 50.0, "(0.1 + 0.5 + 3 x 0.8) / 5 is 0.6"
    assert time_to(0.1, at_s[:4], steady[:4]) is None, "four evaluations have no mean of five"


def test_the_final_value_is_the_last_mean_of_five() -> None:
    assert final_value(np.arange(1.0, 8.0)) == 5.0
    assert final_value(np.arange(1.0, 5.0)) is None


def test_a_time_is_restricted_to_the_horizon() -> None:
    assert [restricted(t, 50.0) for t in (None, 20.0, 80.0)] == [50.0, 20.0, 50.0]


def test_a_front_has_the_points_that_are_not_dominated() -> None:
    times, rates = floats(1.0, 2.0, 3.0, 2.5, 1.0), floats(0.0, 0.1, 0.2, 0.1, 0.0)
    assert on_front(times, rates).tolist() == [True, True, True, False, True]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_a_front_equals_that_of_a_comparison_of_all_pairs(points: list[tuple[int, int]]) -> None:
    times, rates = (np.array(axis, dtype=np.float64) for axis in zip(*points, strict=True))
    looked = [not any(u <= t and s >= r and (u < t or s > r) for u, s in points) for t, r in points]
    assert on_front(times, rates).tolist() == looked
