"""q-FedAvg: the worked examples, its limits, and extreme losses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.fedavg import FedAvg
from fairbed.coordinator.algorithms.aggregation.q_ffl import QFedAvg, q_ffl_weights
from fairbed.coordinator.algorithms.arrays import Floats
from tests.coordinator.algorithms.aggregation.rounds import Reports, merged, reports, vector
from tests.strategies import client_models

SENT = vector(1, 1)
BACK = reports([[0.8, 1.0], [1.0, 0.9]], losses=[2.0, 0.5], learning_rate=0.1)


@pytest.mark.parametrize(
    ("q", "expected"),
    [(0.0, [0.9, 0.95]), (1.0, [0.866667, 0.983333]), (2.0, [0.865546, 0.995798])],
)
def test_worked_examples(q: float, expected: list[float]) -> None:
    merge = merged(Aggregator(QFedAvg(q), "equal"), SENT, 2, BACK)
    assert merge.vector.tolist() == pytest.approx(expected, abs=1e-6)


@given(given_=client_models(), q=st.sampled_from([0.0, 0.001, 0.1, 1.0, 2.0, 5.0]))
def test_agrees_with_the_printed_formula(given_: Reports, q: float) -> None:
    """Term by term as the paper prints it: w' = w - sum Delta / sum h."""
    assert given_.loss_before is not None
    sent, lipschitz = np.zeros(5), 1.0 / given_.learning_rate
    losses = np.maximum(given_.loss_before, 1e-10)
    if not given_.loss_before.any() or (q > 1.0 and losses.min() ** q < 1e-30):
        return
    if 0.0 < q < 1.0 and losses.min() < 0.01 * losses.max():
        return
    delta, h = np.zeros(5), 0.0
    for model, loss in zip(given_.models, losses, strict=True):
        g = lipschitz * (sent - model.astype(np.float64))
        delta += loss**q * g
        h += q * loss ** (q - 1) * (g @ g) + lipschitz * loss**q
    merge = merged(Aggregator(QFedAvg(q), "equal"), vector(0, 0, 0, 0, 0), 5, given_)
    np.testing.assert_allclose(merge.vector, sent - delta / h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("q", [0.0, 1.0, 2.0])
def test_q_fedsgd_with_its_own_lipschitz_constant(q: float) -> None:
    """Term by term: one step of eta_l on all examples gives the gradient."""
    sent, L, eta = np.array([1.0, 1.0]), 4.0, 0.1
    gradients, F = np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([2.0, 0.5])
    delta = (F**q)[:, np.newaxis] * gradients
    h = q * F ** (q - 1) * np.square(gradients).sum(axis=1) + L * F**q
    expected = sent - delta.sum(axis=0) / h.sum()
    back = reports((sent - eta * gradients).tolist(), losses=F.tolist(), learning_rate=eta)
    merge = merged(Aggregator(QFedAvg(q, L), "equal"), SENT, 2, back)
    assert merge.vector.tolist() == pytest.approx(expected.tolist(), abs=1e-6)


@given(given_=client_models())
def test_q_zero_is_the_unweighted_mean(given_: Reports) -> None:
    merge = merged(Aggregator(QFedAvg(0.0), "equal"), vector(3, 3, 3, 3, 3), 5, given_)
    np.testing.assert_allclose(
        merge.vector, np.mean(given_.models, axis=0, dtype=float), rtol=1e-5, atol=1e-5
    )


@given(given_=client_models())
def test_q_zero_after_uniform_sampling_is_fedavg(given_: Reports) -> None:
    sent = vector(3, 3, 3, 3, 3)
    mine, theirs = (
        merged(Aggregator(QFedAvg(0.0)), sent, 3, given_),
        merged(Aggregator(FedAvg()), sent, 3, given_),
    )
    np.testing.assert_allclose(mine.vector, theirs.vector, rtol=1e-5, atol=1e-5)


@given(given_=client_models(), q=st.sampled_from([0.1, 1.0, 5.0]))
def test_buffers_are_averaged_with_the_weights_of_the_parameters(given_: Reports, q: float) -> None:
    merge = merged(Aggregator(QFedAvg(q)), vector(0, 0, 0, 0, 0), 3, given_)
    if given_.loss_before is None or not given_.loss_before.any():
        return
    buffers = np.array([model[3:] for model in given_.models], dtype=float)
    expected = np.average(buffers, axis=0, weights=merge.weights)
    np.testing.assert_allclose(merge.vector[3:], expected, rtol=1e-5, atol=1e-6)


@given(
    losses=st.lists(st.floats(0.0, 20.0), min_size=2, max_size=5),
    q=st.sampled_from([0.1, 1.0, 5.0]),
    factor=st.floats(1.0, 50.0),
)
def test_a_larger_loss_never_lowers_a_share(losses: list[float], q: float, factor: float) -> None:
    norms, p, higher = np.ones(len(losses)), np.ones(len(losses)), list(losses)
    higher[0] = max(losses[0] * factor, losses[0])
    before = q_ffl_weights(norms, np.array(losses), p, q, 10.0)
    after = q_ffl_weights(norms, np.array(higher), p, q, 10.0)
    assert after[0] / after.sum() >= before[0] / before.sum() - 1e-12


@given(
    losses=st.lists(st.floats(0.0, 1e300), min_size=1, max_size=5),
    q=st.sampled_from([0.0, 0.5, 1.0, 15.0, 1000.0]),
    norm=st.sampled_from([0.0, 1e-30, 1.0, 1e30]),
)
def test_extreme_losses_and_powers_never_overflow(
    losses: list[float], q: float, norm: float
) -> None:
    count = len(losses)
    a = q_ffl_weights(np.full(count, norm), np.array(losses), np.ones(count), q, 10.0)
    assert np.isfinite(a).all()
    assert a.min() >= 0.0
    assert a.sum() <= 1.0 + 1e-9


@given(
    others=st.lists(st.floats(0.0, 20.0), min_size=1, max_size=9),
    q=st.floats(0.001, 0.999),
    norm=st.sampled_from([1e-6, 0.01, 1.0, 100.0]),
)
def test_a_device_without_loss_does_not_stop_the_model(
    others: list[float], q: float, norm: float
) -> None:
    """Alone, the device with the largest loss has a_max; with others at least 100^(q-1) a_max / K.

    As printed, F^(q-1) of a loss of 0 is infinite, and a loss of 1e-10 stops the model for good.
    """
    losses = np.array([20.0, *others, 0.0])
    count = len(losses)
    a = q_ffl_weights(np.full(count, norm), losses, np.ones(count), q, 10.0)
    (alone,) = q_ffl_weights(np.array([norm]), losses[:1], np.ones(1), q, 10.0)
    assert a[0] >= 100.0 ** (q - 1.0) * alone / count * (1.0 - 1e-9)


@given(
    losses=st.lists(st.floats(0.02, 1.0), min_size=1, max_size=6),
    q=st.sampled_from([0.001, 0.1, 0.5, 1.0, 3.0]),
)
def test_losses_above_a_hundredth_of_the_largest_follow_the_printed_formula(
    losses: list[float], q: float
) -> None:
    F, norms = np.array([*losses, 1.0]), np.arange(len(losses) + 1.0)
    h = q * F ** (q - 1.0) * 100.0 * norms + 10.0 * F**q
    a = q_ffl_weights(norms, F, np.ones(len(F)), q, 10.0)
    np.testing.assert_allclose(a, 10.0 * F**q / h.sum(), rtol=1e-12)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_weights_are_continuous_where_the_bound_begins(q: float) -> None:
    def weights(loss: float) -> Floats:
        return q_ffl_weights(np.ones(3), np.array([loss, 1.0, 0.5]), np.ones(3), q, 10.0)

    np.testing.assert_allclose(weights(0.01 - 1e-12), weights(0.01 + 1e-12), rtol=1e-9)


def test_weights_sum_to_less_than_one_and_the_rest_stays() -> None:
    merge = merged(Aggregator(QFedAvg(1.0), "equal"), SENT, 2, BACK)
    assert merge.weights.tolist() == pytest.approx([2 / 3, 1 / 6])


def test_a_large_q_follows_the_worst_device() -> None:
    weights = merged(Aggregator(QFedAvg(15.0)), SENT, 2, BACK).weights
    assert weights[0] > 1e6 * weights[1]


def test_with_losses_of_zero_the_model_does_not_change() -> None:
    perfect = reports([[0.8, 1.0], [1.0, 0.9]], losses=[0.0, 0.0])
    merge = merged(Aggregator(QFedAvg(2.0)), SENT, 2, perfect)
    assert merge.vector.tolist() == [1.0, 1.0]
    assert merge.weights.tolist() == [0.0, 0.0]


def test_uniform_sampling_multiplies_both_sums_by_the_share_of_examples() -> None:
    """With p = [.75, .25]: Delta = [3, 0], [0, .125]; h = 18 + 1.5."""
    uneven = reports([[0.8, 1.0], [1.0, 0.9]], losses=[2.0, 0.5], n_k=[3, 1])
    merge = merged(Aggregator(QFedAvg(1.0)), SENT, 2, uneven)
    assert merge.vector.tolist() == pytest.approx([1 - 3 / 19.5, 1 - 0.125 / 19.5], abs=1e-6)


def test_n_over_pi_corrects_a_biased_selection() -> None:
    rule = Aggregator(QFedAvg(0.0), "n_over_pi")
    pair = reports([[0.8, 1.0], [1.0, 0.9]], registered=2)
    merged(rule, SENT, 2, pair)
    for _ in range(2):
        merged(rule, SENT, 2, reports([[0.8, 1.0]]))
    assert merged(rule, SENT, 2, pair).weights.tolist() == pytest.approx([1 / 3, 2 / 3])


def test_missing_losses_are_refused() -> None:
    silent = Reports(BACK.rows, BACK.n_k, BACK.models, None, 0.1)
    assert QFedAvg.needs_loss is True
    with pytest.raises(ValueError, match="loss_before must be given"):
        merged(Aggregator(QFedAvg(1.0)), SENT, 2, silent)


@pytest.mark.parametrize("q", [-1.0, float("nan"), float("inf")])
def test_refuses_a_negative_or_infinite_exponent(q: float) -> None:
    with pytest.raises(ValueError, match="q must be finite and >= 0"):
        QFedAvg(q)
