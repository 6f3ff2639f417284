"""CoreFed: the worked examples, and losses near or above M."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.corefed import CoreFed, corefed_weights, utilities
from tests.coordinator.algorithms.aggregation.rounds import Reports, merged, reports, vector

LOSSES = np.array([1.0, 2.0, 0.5])
D = np.array([[0.3, 0.0], [0.0, 0.6], [-0.3, 0.3]])
SHARES = np.array([1.0, 2.0, 1.0])

losses_below_m = st.lists(st.floats(0.0, 2.8), min_size=1, max_size=6)
any_losses = st.lists(st.floats(0.0, 9.0), min_size=1, max_size=6)
any_m = st.sampled_from([0.05, 1.0, 3.0, 8.0])


def test_worked_example() -> None:
    assert (1.0 / utilities(LOSSES, 3.0)).tolist() == pytest.approx([0.5, 1.0, 0.4])
    assert (corefed_weights(LOSSES, 3.0) @ D).tolist() == pytest.approx([0.01, 0.24], abs=1e-6)


def test_worked_example_of_the_shares() -> None:
    a = corefed_weights(LOSSES, 3.0)
    a /= a.sum()
    assert a.tolist() == pytest.approx([0.263158, 0.526316, 0.210526], abs=1e-6)
    assert (a @ D).tolist() == pytest.approx([0.015789, 0.378947], abs=1e-6)


def test_worked_example_weighted() -> None:
    a = corefed_weights(LOSSES, 3.0, SHARES)
    assert (a @ D).tolist() == pytest.approx([0.0075, 0.33], abs=1e-6)


@given(losses=losses_below_m, scale=st.floats(0.1, 1000.0))
def test_equal_weights_are_the_plain_rule(losses: list[float], scale: float) -> None:
    one = np.array(losses)
    weighted = corefed_weights(one, 3.0, np.full(len(one), scale))
    np.testing.assert_allclose(weighted, corefed_weights(one, 3.0), rtol=1e-12)


@given(count=st.integers(1, 9), loss=st.floats(0.0, 7.0))
def test_equal_losses_are_the_mean_as_long_as_the_step_is(count: int, loss: float) -> None:
    a = corefed_weights(np.full(count, loss), 6.0)
    length = 1.0 / max(6.0 - loss, 0.5)
    np.testing.assert_allclose(a, length / count, rtol=1e-12)


@given(losses=losses_below_m, more=st.floats(0.0, 3.0))
def test_a_larger_loss_never_lowers_a_share(losses: list[float], more: float) -> None:
    before = corefed_weights(np.array(losses), 3.0)
    higher = np.array([losses[0] + more, *losses[1:]])
    after = corefed_weights(higher, 3.0)
    assert after[0] / after.sum() >= before[0] / before.sum() - 1e-12


def test_utilities_below_one_lengthen_the_step() -> None:
    assert corefed_weights(np.array([0.5, 0.5]), 1.0).sum() == pytest.approx(2.0)


@pytest.mark.parametrize("loss", [0.96, 1.0, 2.3, 1e9])
def test_a_loss_near_m_or_above_it_does_not_reverse_an_update(loss: float) -> None:
    """At M = 1 and the first loss of ten classes, 2.30, 1 / (M - F) reverses the update."""
    losses = np.array([loss, 0.5])
    a = corefed_weights(losses, 1.0)
    assert a.min() > 0.0
    assert a.sum() == pytest.approx(2.0, abs=1e-12)
    assert a[0] == pytest.approx(2.0 * 20.0 / 22.0)
    if loss > 1.0:
        assert (1.0 / (1.0 - losses)).min() < 0.0


@given(losses=any_losses, more=st.floats(0.0, 3.0), M=any_m)
@example(losses=[2.84, 0.5], more=0.1, M=3.0)
def test_a_larger_loss_never_lowers_its_weight_or_the_step_and_never_raises_another_weight(
    losses: list[float], more: float, M: float
) -> None:
    before = corefed_weights(np.array(losses), M)
    after = corefed_weights(np.array([losses[0] + more, *losses[1:]]), M)
    assert after[0] >= before[0] * (1.0 - 1e-12)
    assert after.sum() >= before.sum() * (1.0 - 1e-12)
    assert (after[1:] <= before[1:] * (1.0 + 1e-12)).all()


@given(losses=any_losses, M=any_m, small=st.floats(0.0, 1e-6))
@example(losses=[2.85, 0.5], M=3.0, small=1e-6)
def test_weights_are_continuous_in_each_loss(losses: list[float], M: float, small: float) -> None:
    """A utility is at least M / 20, so the slope of 1 / u is at most 400 / M^2."""
    before = corefed_weights(np.array(losses), M)
    for at in (losses[0] + small, 0.95 * M, 0.95 * M + small):
        after = corefed_weights(np.array([at, *losses[1:]]), M)
        slope = 400.0 / M**2 * max(1.0, M)
        assert np.abs(after - before).max() <= slope * abs(at - losses[0]) + 1e-9


@given(losses=any_losses, M=any_m)
def test_the_step_is_the_papers_until_it_is_twice_as_long_as_fedavgs(
    losses: list[float], M: float
) -> None:
    a = corefed_weights(np.array(losses), M)
    with np.errstate(divide="ignore"):  # a loss may be M
        printed = 1.0 / (len(losses) * (M - np.array(losses)))
    longest = 2.0 * max(1.0, 1.0 / M)
    assert a.sum() <= longest * (1.0 + 1e-12)
    if max(losses) <= 0.95 * M and printed.sum() <= longest:
        np.testing.assert_allclose(a, printed, rtol=1e-9)


def test_the_smallest_utility_is_a_twentieth_of_m() -> None:
    assert utilities(np.array([2.9, 0.0]), 3.0).tolist() == pytest.approx([0.15, 3.0])
    assert utilities(np.array([2.9, 0.0]), np.array([4.0, 2.0])).tolist() == pytest.approx([1.1, 2])


@pytest.mark.parametrize("M", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_an_m_that_is_not_positive_and_finite(M: float) -> None:
    with pytest.raises(ValueError, match="M must be finite and > 0"):
        corefed_weights(LOSSES, M)


SENT = vector(1, 1, 0)
BACK = reports(
    [[1.3, 1.0, 1.0], [1.0, 1.6, 2.0], [0.7, 1.3, 3.0]],
    losses=LOSSES.tolist(),
    n_k=[1, 2, 1],
)


def test_worked_example_as_a_rule() -> None:
    merge = merged(Aggregator(CoreFed(3.0), "equal"), SENT, 2, BACK)
    assert merge.vector.tolist() == pytest.approx([1.01, 1.24, 3.7 / 1.9], abs=1e-6)
    merge = merged(Aggregator(CoreFed(3.0), "n"), SENT, 2, BACK)
    assert merge.vector.tolist() == pytest.approx([1.0075, 1.33, 5.7 / 2.9], abs=1e-6)
    merge = merged(Aggregator(CoreFed(3.0), "equal", step="normalised"), SENT, 2, BACK)
    step = 0.3 * np.array([0.01, 0.24]) / np.hypot(0.01, 0.24)
    assert merge.vector[:2].tolist() == pytest.approx((1.0 + step).tolist(), abs=1e-6)
    assert merge.vector[2] == pytest.approx(3.7 / 1.9, abs=1e-6), "buffers are averaged"


def test_a_step_may_be_longer_than_every_update() -> None:
    """Utilities of a half give the longest step, twice the mean, which goes beyond the models."""
    pair = reports([[2, 1, 0], [2, 1, 0]], losses=[0.5, 0.5])
    merge = merged(Aggregator(CoreFed(1.0), "equal"), SENT, 2, pair)
    assert merge.vector.tolist() == pytest.approx([3.0, 1.0, 0.0], abs=1e-6)
    assert merge.weights.tolist() == pytest.approx([1.0, 1.0])


def test_a_first_loss_above_m_makes_at_most_a_double_step() -> None:
    pair = reports([[2, 1, 0], [2, 1, 0]], losses=[2.3, 2.3])
    merge = merged(Aggregator(CoreFed(1.0), "equal"), SENT, 2, pair)
    assert merge.vector.tolist() == pytest.approx([3.0, 1.0, 0.0], abs=1e-6)


def test_missing_losses_are_refused() -> None:
    silent = Reports(BACK.rows, BACK.n_k, BACK.models, None, 0.1)
    assert CoreFed.needs_loss is True
    with pytest.raises(ValueError, match="loss_before must be given"):
        merged(Aggregator(CoreFed(3.0), "equal"), SENT, 2, silent)
