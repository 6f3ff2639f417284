"""FedAvg: the worked example, numpy's average, and the correction of a biased selection."""

import numpy as np
import pytest
from hypothesis import given

from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.fedavg import FedAvg
from fairbed.coordinator.algorithms.aggregation.server_step import Plain
from fairbed.coordinator.algorithms.aggregation.weighting import RATIO_CAP
from tests.coordinator.algorithms.aggregation.rounds import Reports, merged, reports, vector
from tests.strategies import client_models

FEDAVG = Aggregator(FedAvg())


def test_worked_example() -> None:
    merge = merged(FEDAVG, vector(9, 9), 2, reports([[0, 0], [2, 2], [1, -1]], n_k=[1, 3, 6]))
    assert merge.vector.tolist() == pytest.approx([1.2, 0.0], abs=1e-6)
    assert merge.weights.tolist() == pytest.approx([0.1, 0.3, 0.6])


def test_equal_weights_ignore_the_number_of_examples() -> None:
    merge = merged(
        Aggregator(FedAvg(), "equal"),
        vector(9, 9),
        1,
        reports([[0, 0], [2, 2], [1, -5]], n_k=[1, 3, 6]),
    )
    assert merge.vector.tolist() == pytest.approx([1.0, -1.0], abs=1e-6), "buffers, too"
    assert merge.weights.tolist() == pytest.approx([1 / 3] * 3)


@given(given_=client_models())
def test_agrees_with_numpy_on_parameters_and_buffers(given_: Reports) -> None:
    merge = merged(FEDAVG, vector(0, 0, 0, 0, 0), 3, given_)
    expected = np.average(np.array(given_.models, dtype=float), axis=0, weights=given_.n_k)
    np.testing.assert_allclose(merge.vector, expected, rtol=1e-5, atol=1e-6)


def test_sums_in_double_precision() -> None:
    """A thousand additions of 0.1 to a large value are lost in float32."""
    large = 1e7
    models = [[large], *[[large + 1.0]] * 1000]
    merge = merged(FEDAVG, vector(0), 1, reports(models))
    assert float(merge.vector[0]) == pytest.approx(large + 1.0, abs=0.5)


def test_needs_no_loss() -> None:
    given_ = reports([[1.0], [3.0]])
    silent = Reports(given_.rows, given_.n_k, given_.models, None, 0.1)
    assert not FEDAVG.needs_loss
    assert merged(FEDAVG, vector(0), 1, silent).vector.tolist() == [2.0]


def test_a_device_aggregated_half_as_often_counts_twice() -> None:
    rule = Aggregator(FedAvg(), "n_over_pi")
    for t in range(10):
        both = t % 2 == 1
        merge = merged(
            rule,
            vector(0),
            1,
            reports([[0.0], [1.0]] if both else [[0.0]], rows=[1, 0][: 1 + both], registered=2),
        )
    assert merge.weights.tolist() == pytest.approx([1 / 3, 2 / 3])


def test_the_correction_learns_the_rates_of_a_random_selection() -> None:
    """Aggregated in 9 and in 3 of 10 rounds: in a common round the rare one has weight 3/4."""
    rng, rule = np.random.default_rng(1), Aggregator(FedAvg(), "n_over_pi")
    for _ in range(2000):
        present = [at for at in (0, 1) if rng.uniform() < (0.9, 0.3)[at]]
        merged(rule, vector(0), 1, reports([[0.0]] * len(present), rows=present))
    last = merged(rule, vector(0), 1, reports([[0.0], [1.0]]))
    assert last.weights[1] == pytest.approx(0.75, abs=0.03)


def test_the_correction_counts_from_the_registration_whatever_the_row() -> None:
    """Two devices are registered; one of them is aggregated in the last of four rounds only."""
    weights = []
    for rare, usual in ((0, 1), (1, 0)):
        rule = Aggregator(FedAvg(), "n_over_pi")
        for _ in range(3):
            merged(rule, vector(0), 1, reports([[0.0]], rows=[usual], registered=2))
        pair = reports([[0.0], [0.0]], rows=[rare, usual], registered=2)
        weights.append(merged(rule, vector(0), 1, pair).weights.tolist())
    assert weights[0] == weights[1] == pytest.approx([4 / 5, 1 / 5])


def test_a_newcomer_counts_like_an_average_device() -> None:
    rule = Aggregator(FedAvg(), "n_over_pi")
    for _ in range(100):
        merged(rule, vector(0), 1, reports([[0.0]], rows=[0], registered=1))
    pair = reports([[0.0], [0.0]], registered=2)
    assert merged(rule, vector(0), 1, pair).weights.tolist() == pytest.approx([0.5, 0.5])


def test_the_correction_is_capped() -> None:
    """Row 1 of 11 is never aggregated for 1000 rounds, row 0 in each of them."""
    rule = Aggregator(FedAvg(), "n_over_pi")
    for at in range(1000):
        rows = [0, 2 + at % 9]
        merged(rule, vector(0), 1, reports([[0.0]] * 2, rows=rows, registered=11))
    pair = reports([[0.0], [0.0]], registered=11)
    often, never = merged(rule, vector(0), 1, pair).weights.tolist()
    assert never / often == pytest.approx(RATIO_CAP**2)


def test_a_server_learning_rate_moves_the_parameters_part_of_the_way() -> None:
    rule = Aggregator(FedAvg(), server=Plain(0.5))
    merge = merged(rule, vector(2, 8, 8), 2, reports([[4, 4, 0], [8, 0, 2]]))
    assert merge.vector.tolist() == [4.0, 5.0, 1.0], "buffers are averaged"


def test_a_server_step_beyond_float32_is_infinite_without_a_warning() -> None:
    merge = merged(
        Aggregator(FedAvg(), server=Plain(1e3)), vector(2, 8, 8), 2, reports([[3e38, 4, 0]])
    )
    assert merge.vector.tolist() == [np.inf, -3992.0, 0.0]
