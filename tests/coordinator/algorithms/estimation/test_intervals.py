"""Prediction intervals: by hand, what they cover, and what they adapt to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.coordinator.algorithms.estimation.intervals import ConformalIntervals
from tests.tiers import examples


def covered(
    intervals: ConformalIntervals, errors: Floats, tau_hat_s: float = 2.0
) -> tuple[Bools, Floats]:
    """Return which times are within their interval, and the width of each, shape (T, N).

    Args:
        intervals: Learns from all of them.
        errors: ln(tau / tau_hat) by round and device, shape (T, N).
        tau_hat_s: Every prediction.
    """
    inside, width = np.zeros(errors.shape, dtype=np.bool_), np.full(errors.shape, np.inf)
    n = errors.shape[1]
    for at, error in enumerate(errors):
        predicted_s = np.full(n, tau_hat_s)
        low_s, high_s = intervals.bounds(predicted_s)
        tau_s = predicted_s * np.exp(error)
        inside[at] = (low_s <= tau_s) & (tau_s <= high_s)
        with np.errstate(divide="ignore"):
            width[at] = np.log(high_s / low_s)
        intervals.observe(np.arange(n), predicted_s, tau_s)
    return inside, width


def test_nine_errors_by_hand() -> None:
    """With 9 scores and 10 % at each end, the ends are the least and the largest of them."""
    intervals, errors = ConformalIntervals(), 0.01 * np.array([[1, -2, 3, -4, 5, -6, 7, -8, 9.0]])
    low_s, high_s = intervals.bounds(np.full(9, 2.0))
    assert low_s.tolist() == [0.0] * 9
    assert np.isinf(high_s).all()
    covered(intervals, errors)
    low_s, high_s = intervals.bounds(np.full(10, 2.0))
    # the first round has scale 1: the scores are the errors themselves; the mean of |e| is 0.05
    scale = (np.append(np.abs(errors[0]), 0.0) + 0.05) / np.array([2.0] * 9 + [1.0])
    assert low_s == pytest.approx(2.0 * np.exp(scale * -0.08))
    assert high_s == pytest.approx(2.0 * np.exp(scale * 0.09))


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("kind", ["normal", "skewed", "heavy tails"])
def test_intervals_cover_what_they_state(coverage: float, kind: str) -> None:
    rng, shape = np.random.default_rng(3), (400, 4)
    errors = {
        "normal": 0.2 * rng.standard_normal(shape),
        "skewed": rng.exponential(0.3, shape) - 0.1,
        "heavy tails": 0.1 * rng.standard_t(2, shape),
    }[kind]
    inside, _ = covered(ConformalIntervals(coverage), errors)
    assert inside[50:].mean() == pytest.approx(coverage, abs=0.02)


def test_each_device_has_an_interval_of_its_own_scale() -> None:
    rng = np.random.default_rng(4)
    spreads = np.array([0.02, 0.1, 0.5])
    inside, width = covered(ConformalIntervals(), spreads * rng.standard_normal((500, 3)))
    assert inside[50:].mean(axis=0) == pytest.approx([0.8] * 3, abs=0.1)
    medians = np.median(width[50:], axis=0)
    assert (medians[1:] > 3.0 * medians[:-1]).all()


def test_intervals_widen_when_links_become_worse() -> None:
    rng = np.random.default_rng(5)
    errors = rng.standard_normal((400, 4)) * np.repeat([0.1, 0.4], 200)[:, None]
    inside, width = covered(ConformalIntervals(), errors)
    assert inside[220:].mean() == pytest.approx(0.8, abs=0.04)
    assert np.median(width[220:]) > 3.0 * np.median(width[100:200])


@given(seed=st.integers(0, 2**32 - 1))
def test_the_order_of_arrival_changes_no_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = ConformalIntervals(), ConformalIntervals()
    for _ in range(examples(20)):
        n = int(rng.integers(1, 7))
        rows, (tau_hat_s, tau_s) = (
            rng.permutation(7)[:n].astype(np.int64),
            rng.uniform(1, 9, (2, n)),
        )
        way = rng.permutation(n)
        one.observe(rows, tau_hat_s, tau_s)
        other.observe(rows[way], tau_hat_s[way], tau_s[way])
        for mine, theirs in zip(one.bounds(np.ones(7)), other.bounds(np.ones(7)), strict=True):
            assert mine.tolist() == theirs.tolist()


def test_what_was_not_predicted_or_not_measured_teaches_nothing() -> None:
    intervals = ConformalIntervals(0.5)
    covered(intervals, 0.1 * np.random.default_rng(6).standard_normal((9, 2)))
    before = intervals.bounds(np.ones(2))
    nothing = np.array([0.0, np.nan, np.inf, 2.0, 2.0])
    intervals.observe(np.arange(5), nothing, np.array([1.0, 1.0, 1.0, 0.0, np.nan]))
    for mine, theirs in zip(before, intervals.bounds(np.ones(2)), strict=True):
        assert mine.tolist() == theirs.tolist()
    low_s, high_s = intervals.bounds(np.array([0.0, -1.0, 1.0]))
    assert np.isinf(high_s).tolist() == [True, True, False]
    assert (low_s > 0.0).tolist() == [False, False, True]


@pytest.mark.parametrize("coverage", [0.0, 1.0, float("nan")])
def test_refuses_a_coverage_that_no_interval_has(coverage: float) -> None:
    with pytest.raises(ValueError, match="must be within"):
        ConformalIntervals(coverage)
