"""Intervals and tests are checked against scipy and by their coverage, times and fronts by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.testbed.compare.statistics import (
    ConfidenceInterval,
    final_value,
    holm,
    mean_interval,
    on_front,
    p_value,
    restricted,
    running_mean,
    time_to,
    value_at,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def floats(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20).filter(lambda v: np.std(v) > 1e-3))
def test_the_interval_and_the_p_value_are_those_of_scipy(listed: list[float]) -> None:
    values = floats(*listed)
    found, n = mean_interval(values), values.size
    ends = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx(ends, rel=1e-9, abs=1e-9)
    assert (found.mean, found.n) == (values.mean(), n)
    assert (p_value(values) is None) == (n < 6)
    if n >= 6:
        assert p_value(values) == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue, rel=1e-6)


@pytest.mark.parametrize("n", [5, 10, 20])
@pytest.mark.parametrize("kind", ["normal", "difference of skewed values", "skewed"])
def test_ninety_five_percent_of_intervals_cover_the_mean(n: int, kind: str) -> None:
    """Arms that are equal have symmetric differences, even of skewed values."""
    dice = rng(n)
    samples = {
        "normal": lambda: dice.normal(size=(4_000, n)),
        "skewed": lambda: dice.exponential(size=(4_000, n)) - 1.0,
        "difference of skewed values": lambda: (
            dice.exponential(size=(4_000, n)) - dice.exponential(size=(4_000, n))
        ),
    }[kind]()
    found = [mean_interval(values) for values in samples]
    share = np.mean([(i.low or 0.0) <= 0.0 <= (i.high or 0.0) for i in found])
    if kind == "skewed":
        assert 0.86 < share < 0.93, "too narrow, as docs/many-runs.md states"
    else:
        assert 0.93 <= share <= 0.97


def test_equal_values_have_no_width_and_one_value_has_no_interval() -> None:
    assert mean_interval(np.full(6, 4.0)) == ConfidenceInterval(4.0, 4.0, 4.0, 6)
    assert mean_interval(floats(4.0)) == ConfidenceInterval(4.0, None, None, 1)
    tenths = mean_interval(np.full(7, 0.1))
    assert tenths.low == tenths.mean == tenths.high
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval(floats())


def test_equal_differences_are_certain_and_few_are_not_tested() -> None:
    assert [p_value(np.full(6, value)) for value in (0.0, 0.1)] == [1.0, 0.0]
    assert p_value(floats(1.0, 2.0, 3.0, 4.0)) is None


def test_holm_is_that_of_p_adjust_in_r() -> None:
    # p.adjust(c(0.01, 0.02, 0.03, 0.005), "holm") is 0.03 0.04 0.04 0.02
    found = holm(floats(0.01, 0.02, 0.03, 0.005), np.ones(4))
    assert found.tolist() == pytest.approx([0.03, 0.04, 0.04, 0.02])


p_and_weight = st.tuples(st.floats(0.0, 1.0), st.sampled_from([0.1, 0.5, 1.0, 4.0]))


@given(st.lists(p_and_weight, min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_all_intersections(tests: list[tuple[float, float]]) -> None:
    """p~ of a test is the largest weighted Bonferroni p of the sets of hypotheses that it is in."""
    p, weights = (np.array(column) for column in zip(*tests, strict=True))
    members = range(len(tests))
    wanted = np.zeros(len(tests))
    for size in range(1, len(tests) + 1):
        for some in itertools.combinations(members, size):
            rows = list(some)
            of_set = min(1.0, float((p[rows] / weights[rows]).min() * weights[rows].sum()))
            wanted[rows] = np.maximum(wanted[rows], of_set)
    assert holm(p, weights).tolist() == pytest.approx(wanted.tolist())


def test_a_test_begins_with_its_share_and_passes_it_on() -> None:
    weights = floats(0.8, 0.1, 0.1)
    assert holm(floats(0.04, 0.9, 0.9), weights)[0] == pytest.approx(0.05)
    passed_on = holm(floats(0.001, 0.025, 0.9), weights)
    assert passed_on.tolist() == pytest.approx([0.00125, 0.05, 0.9])


def test_the_value_at_a_budget_is_the_last_that_it_pays_for() -> None:
    at, values = floats(10.0, 20.0, 30.0), floats(0.1, 0.2, 0.3)
    found = [value_at(budget, at, values) for budget in (9.9, 10.0, 29.9, 30.0, 99.0)]
    assert found == [None, 0.1, 0.2, 0.3, 0.3]
    assert value_at(5.0, floats(), floats()) is None


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
