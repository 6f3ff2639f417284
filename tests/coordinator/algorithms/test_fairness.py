"""Fairness metrics: worked examples, bounds, and devices without test data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.fairness import (
    gini,
    jain,
    mean_and_worst10,
    rate_slack,
    selection_rates,
    summarise,
    summarise_errors,
    summarise_utilities,
    tenths_by_examples,
)

WORKED = [0.9, 0.8, 0.6, 0.95, 0.4, 0.7, 0.85, 0.75, 0.5, 0.65]
shares = hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(0.0, 1.0))


def of(accuracy: list[float], n: int = 20) -> tuple[np.ndarray, np.ndarray, Floats]:
    correct = np.rint(np.array(accuracy) * n).astype(np.int64)
    return np.full(len(accuracy), n), correct, np.ones(len(accuracy))


def test_worked_example() -> None:
    summary = summarise(*of(WORKED))
    assert summary.devices == 10
    assert summary.accuracy_mean == pytest.approx(0.71)
    assert summary.accuracy_pooled == pytest.approx(0.71)
    assert summary.accuracy_variance * 1e4 == pytest.approx(279.0)
    assert np.sqrt(summary.accuracy_variance) == pytest.approx(0.167033, abs=1e-6)
    assert summary.accuracy_worst10 == pytest.approx(0.4)
    assert summary.accuracy_best10 == pytest.approx(0.95)
    assert summary.accuracy_gini * 100 == pytest.approx(13.380282, abs=1e-6)
    assert summary.accuracy_gap == pytest.approx(0.55)
    assert summary.accuracy_jain == pytest.approx(0.71**2 / (0.71**2 + 0.0279))
    assert (summary.accuracy_worst10_pooled, summary.accuracy_best10_pooled) == (0.4, 0.95)


def test_a_tenth_counts_devices_or_examples() -> None:
    """Twenty devices; of the two worst, the one with 0 correct has 30 times the examples."""
    n = np.array([300, 10, *[10] * 17, 40])
    correct = np.array([0, 5, *[9] * 17, 40])
    summary = summarise(n, correct, np.ones(20))
    assert summary.accuracy_worst10 == pytest.approx(0.25)
    assert summary.accuracy_worst10_pooled == pytest.approx(5 / 310)
    assert summary.accuracy_best10 == pytest.approx(0.95)
    assert summary.accuracy_best10_pooled == pytest.approx(49 / 50)


def test_the_worked_example_as_a_score_that_is_no_share_of_examples() -> None:
    equal = tenths_by_examples(np.array(WORKED), np.full(10, 20))
    assert (equal.mean, equal.worst10, equal.best10) == pytest.approx((0.71, 0.4, 0.95))
    assert equal.gini * 100 == pytest.approx(13.380282, abs=1e-6)
    scores, n = np.array([0.2, 0.6, *[0.8] * 16, 0.9, 1.0]), np.array([30, 10, *[10] * 17, 30])
    found = tenths_by_examples(scores, n)
    assert found.worst10 == pytest.approx((30 * 0.2 + 10 * 0.6) / 40)
    assert found.best10 == pytest.approx((10 * 0.9 + 30 * 1.0) / 40)
    assert found.best10_of_devices == pytest.approx(0.95)
    assert found.mean == pytest.approx((6.0 + 6.0 + 16 * 8.0 + 9.0 + 30.0) / 240)
    at = np.random.default_rng(0).permutation(20)
    assert tenths_by_examples(scores[at], n[at]) == found
    assert np.isnan(tenths_by_examples(np.zeros(3), np.ones(3, dtype=np.int64)).gini)


UTILITIES = {
    "Adult FedAvg": ([2.59, 0.77, 1.46], 1.61, 2.91),
    "Adult CoreFed": ([2.62, 0.90, 1.53], 1.683, 3.608),
    "MNIST FedAvg": ([0.34, 0.29, 0.92], 0.52, 0.091),
    "MNIST CoreFed": ([0.36, 0.41, 0.91], 0.560, 0.134),
    "CIFAR-10 FedAvg": ([0.63, 1.40, 0.51], 0.84, 0.45),
    "CIFAR-10 CoreFed": ([0.73, 1.35, 0.71], 0.930, 0.700),
    "noisy FedAvg": ([3.28, 3.30, 1.42], 2.67, 15.37),
    "noisy CoreFed": ([3.26, 3.27, 1.95], 2.827, 20.787),
    "ten agents FedAvg": (
        [2.11, 2.30, 3.04, 3.28, 1.15, 2.70, 2.00, 2.72, 2.76, 3.14],
        2.52,
        7084.0,
    ),
    "ten agents CoreFed": (
        [2.26, 2.50, 3.12, 3.32, 1.42, 2.50, 1.99, 2.80, 2.65, 2.99],
        2.55,
        9173.0,
    ),
}
"""Ray Chaudhury et al., Tables 1, 3 and 4: utilities, U(Average), U(Multi); Table 2 is rounded."""


@pytest.mark.parametrize("name", UTILITIES)
def test_utilities_of_the_paper(name: str) -> None:
    u, average, product = UTILITIES[name]
    summary = summarise_utilities(5.0 - np.array(u), 5.0)
    assert summary.average == pytest.approx(average, rel=0.01)
    assert summary.product == pytest.approx(product, rel=0.01)
    assert summary.least == pytest.approx(min(u))


@pytest.mark.parametrize(
    ("losses", "got"), [([0.5, 3.0], "got 3;"), ([0.5, np.inf], "got inf"), ([], "got no loss")]
)
def test_utilities_need_an_m_above_every_loss(losses: list[float], got: str) -> None:
    with pytest.raises(ValueError, match=f"M = 3 must be above every loss, {got}"):
        summarise_utilities(np.array(losses), 3.0)


def test_a_product_that_is_too_large_is_infinite() -> None:
    summary = summarise_utilities(np.zeros(800), 3.0)
    assert summary.product == np.inf
    assert summary.log_product == pytest.approx(800 * np.log(3.0))


@given(accuracy=shares, seed=st.integers(0, 9))
def test_no_metric_depends_on_the_order_of_devices(accuracy: Floats, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 9, accuracy.size)
    correct = np.rint(accuracy * n).astype(np.int64)
    at = rng.permutation(accuracy.size)
    loss = np.ones(accuracy.size)
    first, second = summarise(n, correct, loss), summarise(n[at], correct[at], loss)
    for name in ("mean", "variance", "gini", "jain", "worst10_pooled", "best10_pooled"):
        a, b = (getattr(one, f"accuracy_{name}") for one in (first, second))
        assert a == b or (np.isnan(a) and np.isnan(b))
    assert first.accuracy_worst10_pooled <= first.accuracy_best10_pooled + 1e-12


@pytest.mark.parametrize(
    ("devices", "tail"), [(1, 1), (9, 1), (19, 1), (20, 2), (23, 2), (100, 10)]
)
def test_a_tenth_is_rounded_down_and_never_empty(devices: int, tail: int) -> None:
    accuracy = [i / devices for i in range(devices)]
    summary = summarise(*of(accuracy, n=devices))
    assert summary.accuracy_worst10 == pytest.approx(np.mean(accuracy[:tail]))
    assert summary.accuracy_best10 == pytest.approx(np.mean(accuracy[-tail:]))


def test_a_device_counts_once_and_an_example_counts_once() -> None:
    summary = summarise(np.array([90, 10]), np.array([90, 0]), np.array([9.0, 20.0]))
    assert summary.accuracy_mean == 0.5
    assert summary.accuracy_pooled == 0.9
    assert summary.loss_mean == pytest.approx((0.1 + 2.0) / 2)
    assert summary.loss_std == pytest.approx(0.95)


def test_devices_without_test_data_are_left_out() -> None:
    some = summarise(np.array([10, 0, 10]), np.array([10, 0, 5]), np.array([1.0, 0.0, 3.0]))
    assert some == summarise(np.array([10, 10]), np.array([10, 5]), np.array([1.0, 3.0]))
    with pytest.raises(ValueError, match="at least one device must have held-out examples, got"):
        summarise(np.array([0, 0]), np.array([0, 0]), np.zeros(2))


def test_a_diverged_model_is_summarised_without_a_warning() -> None:
    summary = summarise(np.array([4, 4]), np.array([0, 0]), np.array([np.inf, 1.0]))
    assert summary.loss_mean == np.inf
    assert np.isnan(summary.loss_std)
    assert np.isnan(summary.accuracy_gini)


def test_jain_worked_example_and_limits() -> None:
    assert jain(np.array([8, 4, 4, 0])) == pytest.approx(0.666667, abs=1e-6)
    assert jain(np.array([3, 3, 3])) == pytest.approx(1.0)
    assert jain(np.array([5, 0, 0, 0])) == pytest.approx(0.25)
    assert np.isnan(jain(np.array([0, 0])))
    assert np.isnan(jain(np.zeros(0)))


def test_gini_limits() -> None:
    assert gini(np.array([0.3, 0.3, 0.3])) == pytest.approx(0.0)
    assert gini(np.array([0.0, 0.0, 0.0, 1.0])) == pytest.approx(0.75)
    assert np.isnan(gini(np.zeros(4)))
    assert np.isnan(gini(np.zeros(0)))


@given(values=shares)
def test_jain_and_gini_agree_with_their_definitions(values: Floats) -> None:
    if values.sum() < 1e-3:
        return
    differences = np.abs(values[:, None] - values[None, :]).sum()
    assert gini(values) == pytest.approx(differences / (2 * values.size * values.sum()), abs=1e-9)
    cv2 = values.var() / values.mean() ** 2
    assert jain(values) == pytest.approx(1.0 / (1.0 + cv2))


@given(values=shares, seed=st.integers(0, 9))
def test_neither_depends_on_order(values: Floats, seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(values)
    np.testing.assert_allclose(gini(shuffled), gini(values))
    np.testing.assert_allclose(jain(shuffled), jain(values))


def test_rates_over_a_run_and_over_the_rounds_of_a_device() -> None:
    counts = np.array([8, 4, 0])
    assert selection_rates(counts, 16).tolist() == [0.5, 0.25, 0.0]
    there = selection_rates(counts, np.array([16, 8, 0]))
    assert there[:2].tolist() == [0.5, 0.5]
    assert np.isnan(there[2])


def test_the_guarantee_allows_for_the_virtual_queue() -> None:
    """A rate of 0.10 satisfies beta = 0.15 after 500 rounds with a queue of 25."""
    slack = rate_slack(np.array([50, 50]), 500, 0.15, np.array([25.0, 24.0]))
    assert slack[0] == pytest.approx(0.0, abs=1e-12)
    assert slack[1] < 0.0


def test_errors_worked_example() -> None:
    # RMSE 3, 1 and 2 on 2, 8 and 2 examples: losses are half the squares.
    found = summarise_errors(np.array([2, 8, 2]), np.array([9.0, 4.0, 4.0]))
    assert (found.rmse_mean, found.rmse_worst10, found.rmse_best10) == (2.0, 3.0, 1.0)
    assert found.rmse_gap == 2.0
    assert found.rmse_std == pytest.approx(np.sqrt(2.0 / 3.0))
    assert found.rmse_pooled == pytest.approx(np.sqrt(2.0 * 17.0 / 12.0))


@given(
    hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(0.0, 1e6)),
    st.integers(0, 2**32 - 1),
)
def test_no_error_depends_on_the_order_of_devices(losses: Floats, seed: int) -> None:
    n = np.arange(1, len(losses) + 1)
    order = np.random.default_rng(seed).permutation(len(losses))
    found, other = summarise_errors(n, losses), summarise_errors(n[order], losses[order])
    assert (found.rmse_mean, found.rmse_worst10, found.rmse_std) == (
        other.rmse_mean,
        other.rmse_worst10,
        other.rmse_std,
    )
    assert found.rmse_pooled == pytest.approx(other.rmse_pooled)
    assert found.rmse_best10 <= found.rmse_mean * (1 + 1e-12)
    assert mean_and_worst10(losses) == mean_and_worst10(losses[order])


def test_a_diverged_model_of_regression_is_summarised_without_a_warning() -> None:
    found = summarise_errors(np.array([1, 1]), np.array([0.5, np.inf]))
    assert (found.rmse_best10, found.rmse_worst10) == (1.0, np.inf)
    assert found.rmse_mean == np.inf
