"""FedNova: the worked examples, equal steps, and a training loop that counts its own steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.aaggff import AAggFF
from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.fedavg import FedAvg
from fairbed.coordinator.algorithms.aggregation.pseudo_gradient import FedNova, effective_steps
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.config import (
    RULES,
    AggregationConfig,
    TrainingConfig,
)
from fairbed.coordinator.policy.factories import make_aggregator, step_problem
from tests.coordinator.algorithms.aggregation.rounds import Reports, merged, reports, vector
from tests.coordinator.algorithms.aggregation.test_every_aggregator import reordered
from tests.strategies import client_models

OWN_STEP = ("q-fedavg", "q-fedsgd", "fedmgda+", "corefed")
"""Rules that set the length of the step."""


def nova(momentum: float = 0.0, proximal: float = 0.0) -> Aggregator:
    """Return FedNova with equal weights, where a device takes as many steps as it has examples."""
    pseudo_gradient = FedNova(momentum, proximal)
    return Aggregator(FedAvg(), "equal", pseudo_gradient, local_steps=lambda n_k: n_k)


def norms_by_recursion(tau: int, momentum: float, shrinkage: float) -> float:
    """Steps of SGD on a constant gradient of 1, over the learning rate."""
    x = v = 0.0
    for _ in range(tau):
        v = momentum * v + 1.0 - shrinkage * x
        x += v
    return x


def test_worked_example() -> None:
    """tau_eff = 2.5 and directions 1 and 2 give -0.375; FedAvg would give -0.45."""
    given_ = reports([[-0.1, 3.0], [-0.8, 5.0]], n_k=[1, 4])
    merge = merged(nova(), vector(0, 0), 1, given_)
    assert merge.vector.tolist() == pytest.approx([-0.375, 4.0], abs=1e-6), "buffers: average"
    assert merge.weights.tolist() == [0.5, 0.5]
    assert effective_steps(np.array([3]), 0.9, 0.0).tolist() == pytest.approx([5.61])


def test_the_count_with_momentum_is_the_closed_form() -> None:
    tau, rho = np.arange(1, 200), 0.9
    closed = (tau - rho * (1.0 - rho**tau) / (1.0 - rho)) / (1.0 - rho)
    np.testing.assert_allclose(effective_steps(tau, rho, 0.0), closed, rtol=1e-10)


@given(
    tau=st.lists(st.integers(1, 300), min_size=1, max_size=5),
    momentum=st.floats(0.0, 0.99),
    shrinkage=st.floats(0.0, 1.0),
)
def test_the_count_is_that_of_the_recursion(
    tau: list[int], momentum: float, shrinkage: float
) -> None:
    expected = [norms_by_recursion(t, momentum, shrinkage) for t in tau]
    counted = effective_steps(np.array(tau), momentum, shrinkage)
    np.testing.assert_allclose(counted, expected, rtol=1e-9)
    assert counted.min() > 0.0


def test_plain_steps_are_counted_exactly() -> None:
    tau = np.array([1, 2, 3, 1_000_003, 10**13])
    assert effective_steps(tau, 0.0, 0.0).tolist() == tau.tolist()


@pytest.mark.parametrize("rule", sorted({*RULES} - {*OWN_STEP}))
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@given(given_=client_models(), tau=st.integers(1, 1000))
def test_equal_steps_are_fedavg(rule: str, momentum: float, given_: Reports, tau: int) -> None:
    average, equal = (
        make_aggregator(
            AggregationConfig(rule=rule, pseudo_gradient=name),
            TrainingConfig(epochs=1000, batch_size=1, max_steps=1, momentum=momentum),
        )
        for name in ("average", "fednova")
    )
    equal.local_steps = lambda n_k: np.full(len(n_k), tau)
    sent = vector(0.5, -1.0, 2.0, 0.0, 1.0)
    first, second = (merged(one, sent, 3, given_) for one in (average, equal))
    np.testing.assert_array_equal(first.weights, second.weights)
    if equal.is_streaming:
        np.testing.assert_allclose(first.vector, second.vector, rtol=1e-7, atol=1e-12)
    else:
        np.testing.assert_array_equal(first.vector, second.vector)


@given(given_=client_models(), data=st.data())
def test_the_order_of_arrival_changes_no_bit(given_: Reports, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(given_.rows))))
    sent = vector(0.5, -1.0, 2.0, 0.0, 1.0)
    one = Aggregator(FedAvg(), "n", FedNova(0.9, 0.1), local_steps=lambda n_k: 1 + n_k // 7)
    first = merged(one, sent, 3, given_)
    second = merged(one, sent, 3, reordered(given_, order))
    np.testing.assert_array_equal(first.vector, second.vector)


@pytest.mark.parametrize(("momentum", "proximal"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.5), (0.5, 0.5)])
def test_directions_count_alike_whatever_the_local_steps(momentum: float, proximal: float) -> None:
    """Two devices with constant gradients (1, 0) and (0, 1), 2 and 20 steps: equal progress."""
    eta, tau = 0.1, [2, 20]
    far = [norms_by_recursion(t, momentum, eta * proximal) for t in tau]
    models = [[-eta * far[0], 0.0], [0.0, -eta * far[1]]]
    given_ = reports(models, n_k=tau)
    w = merged(nova(momentum, proximal), vector(0, 0), 2, given_).vector
    tau_eff = np.mean(tau) if proximal else np.mean(far)
    assert w.tolist() == pytest.approx([-eta * tau_eff / 2] * 2, rel=1e-6)


def test_stored_models_give_the_same_as_streamed_ones() -> None:
    """AAggFF-D with equal losses has equal weights, so it must agree with FedAvg."""
    given_ = reports([[1, 2, 3], [3, 1, 0], [0, 0, 9]], losses=[2.0, 2.0, 2.0], n_k=[1, 5, 30])
    aaggff = AAggFF("d", per_round=3)
    stored = Aggregator(aaggff, "equal", FedNova(), local_steps=lambda n_k: n_k)
    assert not stored.is_streaming
    first = merged(stored, vector(1, 1, 1), 2, given_)
    second = merged(nova(), vector(1, 1, 1), 2, given_)
    np.testing.assert_allclose(first.vector, second.vector, rtol=1e-6)


def test_the_steps_are_those_of_the_configuration() -> None:
    """20 and 50 examples in batches of 20, two epochs: 2 and 6 steps, or at most max_steps."""
    for limit, tau in ((None, [2.0, 6.0]), (4, [2.0, 4.0])):
        training = TrainingConfig(epochs=2, batch_size=20, max_steps=limit)
        config = AggregationConfig(pseudo_gradient="fednova", weights="equal")
        given_ = reports([[-0.2], [-0.6]], n_k=[20, 50])
        after = merged(make_aggregator(config, training), vector(0), 1, given_).vector
        directions: Floats = np.array([0.2, 0.6]) / tau
        assert after[0] == pytest.approx(-np.mean(tau) * directions.mean(), rel=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_it_fits_the_rules_whose_weights_sum_to_1(rule: str) -> None:
    """The others set the length of the step by their weights."""
    config = AggregationConfig(rule=rule, pseudo_gradient="fednova")
    problem = step_problem(config, TrainingConfig())
    given_ = reports([[1, 2], [3, 0], [0, 1]], losses=[0.5, 1.0, 2.0], n_k=[1, 2, 6])
    average = make_aggregator(AggregationConfig(rule=rule))
    total = merged(average, vector(0.5, 0), 2, given_).weights.sum()
    assert bool(problem) == (rule in OWN_STEP)
    assert problem or total == pytest.approx(1.0)
