"""AFL, TERM, PropFair, FedMGDA+ and the cap: worked examples, limits, monotonicity, extremes."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.afl import nearest_on_simplex
from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.fedmgda import common_descent
from fairbed.coordinator.algorithms.aggregation.max_weight import capped
from fairbed.coordinator.algorithms.aggregation.propfair import PropFair
from fairbed.coordinator.algorithms.aggregation.server_step import Plain
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import make_aggregator
from tests.coordinator.algorithms.aggregation.rounds import Reports, merged, reports, vector
from tests.coordinator.algorithms.aggregation.test_quadratic import by_slsqp
from tests.strategies import client_models

SENT = vector(0, 0, 0)
SHARES = [5, 3, 2]


def aggregator(rule: str, **options: Any) -> Aggregator:
    return make_aggregator(AggregationConfig(rule=rule, **options))


def weights(rule: Aggregator, losses: list[float], **others: Any) -> list[float]:
    """Return a_k of devices whose changes are unit vectors."""
    round_ = reports(np.eye(3)[: len(losses)].tolist(), losses=losses, **others)
    a: list[float] = merged(rule, SENT, 3, round_).weights.tolist()
    return a


# AFL


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [
        (0.1, [[0.233333, 0.333333, 0.433333], [0.133333, 0.333333, 0.533333]]),
        (1.0, [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]),
        (0.0, [[1 / 3, 1 / 3, 1 / 3]]),
    ],
)
def test_afl_worked_example(gamma: float, expected: list[list[float]]) -> None:
    rule = aggregator("afl", gamma=gamma)
    for each in expected:
        assert weights(rule, [1.0, 2.0, 3.0]) == pytest.approx(each, abs=1e-6)


def by_sorting(v: Floats) -> Floats:
    """Return the projection as the specification prints it."""
    u = np.sort(v)[::-1]
    excess = np.cumsum(u) - 1.0
    rho = np.flatnonzero(u * np.arange(1, len(u) + 1) > excess)[-1]
    p: Floats = np.maximum(v - excess[rho] / (rho + 1), 0.0)
    return p


@given(st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=12))
def test_the_nearest_point_of_the_simplex_is_that_of_the_sorted_form(v: list[float]) -> None:
    p = nearest_on_simplex(np.array(v))
    np.testing.assert_allclose(p, by_sorting(np.array(v)), atol=1e-12)
    assert p.sum() == pytest.approx(1.0, abs=1e-12)


def test_afl_estimates_the_losses_of_devices_that_were_not_drawn() -> None:
    """Two of four report: their step is twice gamma F, and the weights of the round are theirs."""
    rule = aggregator("afl", gamma=0.1)
    a = weights(rule, [1.0, 2.0], rows=[1, 3], registered=4)
    assert rule.rule.to_state()["lambda"] == pytest.approx([0.1, 0.3, 0.1, 0.5], abs=1e-12)
    assert a == pytest.approx([0.3 / 0.8, 0.5 / 0.8])


def test_afl_counts_reports_without_weight_equally() -> None:
    rule = aggregator("afl", gamma=1.0)
    weights(rule, [0.0, 9.0, 0.0])
    assert weights(rule, [0.0, 0.0], rows=[0, 2], registered=3) == [0.5, 0.5]


def test_afl_gives_a_new_device_its_share_and_keeps_that_of_one_that_left() -> None:
    rule = aggregator("afl", gamma=0.1)
    weights(rule, [1.0, 2.0, 3.0])
    a = weights(rule, [0.0, 0.0], rows=[0, 3], registered=4)
    kept = [0.233333 * 0.75, 0.25, 0.25, 0.25]
    kept[1:3] = [0.25, 0.433333 * 0.75]
    assert rule.rule.to_state()["lambda"] == pytest.approx(kept, abs=1e-6)
    assert a == pytest.approx([0.175 / 0.425, 0.25 / 0.425], abs=1e-6)


def test_afl_of_a_million_devices_keeps_a_number_for_each() -> None:
    rule = aggregator("afl", gamma=1e-7)
    a = weights(rule, [1.0, 2.0, 0.5], rows=[5, 999_999, 77], registered=1_000_000)
    assert a[1] > a[0] > a[2] > 0.0
    state = msgspec.msgpack.encode(rule.to_state())
    assert len(state) < 10_000_000
    resumed = aggregator("afl", gamma=1e-7)
    resumed.load_state(msgspec.msgpack.decode(state))
    again = {"rows": [5, 8, 77], "registered": 1_000_000}
    assert weights(resumed, [1.0, 0.0, 1.0], **again) == weights(rule, [1.0, 0.0, 1.0], **again)


# TERM


def test_term_worked_example() -> None:
    rule = aggregator("term", tilt=1.0)
    assert weights(rule, [1.0, 2.0, 3.0], n_k=SHARES) == pytest.approx(
        [0.179000, 0.291944, 0.529056], abs=1e-6
    )
    rule = aggregator("term", tilt=1.0, weights="equal")
    assert weights(rule, [1.0, 2.0, 3.0]) == pytest.approx([0.090031, 0.244728, 0.665241], abs=1e-6)


@given(given_=client_models(), tilt=st.sampled_from([0.0, 1e-9, -1e-9]))
def test_term_without_a_tilt_is_fedavg(given_: Reports, tilt: float) -> None:
    mine = merged(aggregator("term", tilt=tilt), vector(*range(5)), 5, given_)
    theirs = merged(aggregator("fedavg"), vector(*range(5)), 5, given_)
    np.testing.assert_allclose(mine.weights, theirs.weights, rtol=1e-6)
    if tilt == 0.0:
        np.testing.assert_array_equal(mine.vector, theirs.vector)


@pytest.mark.parametrize(("tilt", "last"), [(1e3, 2), (-1e3, 0)])
def test_a_large_tilt_follows_the_worst_or_the_best_device(tilt: float, last: int) -> None:
    a = weights(aggregator("term", tilt=tilt), [1.0, 2.0, 3.0], n_k=SHARES)
    assert a == pytest.approx(np.eye(3)[last].tolist())


# PropFair


def test_propfair_worked_example() -> None:
    assert weights(aggregator("propfair", M=5.0), [1.0, 2.0, 4.0], n_k=SHARES) == pytest.approx(
        [0.294118, 0.235294, 0.470588], abs=1e-6
    )


def test_losses_near_m_and_above_it_count_alike_without_a_jump() -> None:
    def share(loss: float) -> float:
        return weights(aggregator("propfair", M=3.0), [loss, 1.0])[0]

    assert share(2.8) == pytest.approx(0.5 / 0.2 / (0.5 / 0.2 + 0.25), abs=1e-9)
    assert share(2.8 - 1e-9) == pytest.approx(share(2.8 + 1e-9), abs=1e-6)
    assert share(2.8) == pytest.approx(share(3.0)) == pytest.approx(share(1e9))


@given(given_=client_models())
def test_a_large_m_is_fedavg(given_: Reports) -> None:
    mine = merged(aggregator("propfair", M=1e12), vector(*range(5)), 5, given_)
    theirs = merged(aggregator("fedavg"), vector(*range(5)), 5, given_)
    np.testing.assert_allclose(mine.weights, theirs.weights, rtol=1e-9)


@pytest.mark.parametrize("M", [0.2, 0.0, float("nan")])
def test_propfair_refuses_an_m_that_all_losses_exceed(M: float) -> None:
    with pytest.raises(ValueError, match=r"propfair: M must be above 0\.2, got .*; take one above"):
        PropFair(M)


@pytest.mark.parametrize(("rule", "limit"), [("propfair", "4.8"), ("corefed", "4.75")])
@pytest.mark.parametrize("max_weight", [None, 0.5])
def test_losses_that_count_alike_are_noted_largest_first(
    rule: str, limit: str, max_weight: float | None
) -> None:
    losses = [9.0, 4.7, 4.9, 6.0, 7.0]
    round_ = reports(np.eye(5).tolist(), losses=losses, rows=[8, 3, 1, 5, 2])
    made = aggregator(rule, M=5.0, max_weight=max_weight)
    (note,) = merged(made, vector(*range(5)), 5, round_).notes
    assert (note.kind, note.rows) == ("losses", (8, 2, 5, 1))
    assert note.about([f"pi-{row}" for row in range(9)]) == (
        f"{rule}: losses must be at most {limit} with aggregation.M = 5, got 4 of 5 above it, up "
        "to 9; they count alike: repeat the run with a larger M (pi-8, pi-2, pi-5 and 1 more)"
    )
    assert merged(aggregator(rule, M=10.0), vector(*range(5)), 5, round_).notes == ()


# FedMGDA+

RAW = [[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("epsilon", "expected", "length"),
    [
        (0.0, [1 / 3, 1 / 3, 1 / 3], 0.577350),
        (0.1, [0.431658, 0.233333, 0.335008], 0.508963),
        (0.5, [0.5, 0.0, 0.5], 0.382683),
        (1.0, [0.5, 0.0, 0.5], 0.382683),
    ],
)
def test_fedmgda_worked_example(epsilon: float, expected: list[float], length: float) -> None:
    merge = merged(aggregator("fedmgda+", epsilon=epsilon), SENT, 3, reports(RAW))
    norms = np.linalg.norm(RAW, axis=1)
    assert (merge.weights * norms).tolist() == pytest.approx(expected, abs=1e-6)
    assert np.linalg.norm(merge.vector) == pytest.approx(length, abs=1e-6)
    if epsilon >= 0.5:
        assert merge.vector.tolist() == pytest.approx([0.146447, 0.353553, 0.0], abs=1e-6)


def test_the_server_learning_rate_is_the_length_of_a_step() -> None:
    one = reports([[0.3, 0.4, 0.0]])
    rule = aggregator("fedmgda+")
    rule.server = Plain(2.0)
    assert merged(rule, SENT, 3, one).vector.tolist() == pytest.approx([1.2, 1.6, 0.0])


def test_updates_without_length_are_left_out() -> None:
    round_ = reports([[0, 0, 0], *RAW, [0, 0, 0]])
    with_them = merged(aggregator("fedmgda+", epsilon=0.1), SENT, 3, round_)
    alone = merged(aggregator("fedmgda+", epsilon=0.1), SENT, 3, reports(RAW))
    assert with_them.weights.tolist() == [0.0, *alone.weights, 0.0]
    still = merged(aggregator("fedmgda+"), SENT, 3, reports([[0, 0, 0], [0, 0, 0]]))
    assert still.weights.tolist() == [0.0, 0.0]
    assert still.vector.tolist() == SENT.tolist()


@given(given_=client_models())
def test_epsilon_zero_is_the_mean_of_unit_updates(given_: Reports) -> None:
    models = np.array(given_.models, dtype=np.float64)
    norms = np.linalg.norm(models, axis=1)
    if norms.min() < 1e-6:
        return
    mean = (models / norms[:, np.newaxis]).mean(axis=0)
    after = merged(aggregator("fedmgda+", epsilon=0.0), vector(*[0.0] * 5), 5, given_)
    np.testing.assert_allclose(after.vector, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.02, 0.1, 1.0])
@pytest.mark.parametrize("dimensions", [3, 50])
def test_slsqp_finds_the_same_direction(epsilon: float, dimensions: int) -> None:
    """With more updates than dimensions the weights are not unique, but their sum is."""
    rng, n = np.random.default_rng(dimensions), 12
    u = rng.normal(0.1, 1.0, (n, dimensions))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    mine = common_descent(u @ u.T, epsilon)
    assert np.abs(mine - 1.0 / n).max() <= epsilon + 1e-12
    lower, upper = max(0.0, 1.0 / n - epsilon), min(1.0, 1.0 / n + epsilon)
    found = by_slsqp(u @ u.T, np.zeros(n), lower, upper)
    assert np.linalg.norm(mine @ u) <= np.linalg.norm(found @ u) + 1e-9
    assert np.linalg.norm(mine @ u) == pytest.approx(np.linalg.norm(found @ u), abs=1e-6)


def test_no_device_loses_by_a_step_along_the_common_descent() -> None:
    """Without bounds, every update has an inner product with the step of at least its square."""
    rng = np.random.default_rng(4)
    u = rng.normal(size=(8, 100))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    d = common_descent(u @ u.T, 1.0) @ u
    assert (u @ d).min() >= d @ d - 1e-9


# The cap


@pytest.mark.parametrize(
    ("p", "cap", "expected"),
    [
        ([0.7, 0.2, 0.1], 0.5, [0.5, 1 / 3, 1 / 6]),
        ([0.6, 0.3, 0.1], 0.4, [0.4, 0.4, 0.2]),
        ([0.5, 0.3, 0.2], 0.5, [0.5, 0.3, 0.2]),
        ([1.0, 0.0, 0.0], 0.5, [0.5, 0.25, 0.25]),
        ([0.9, 0.1], 0.3, [0.5, 0.5]),
        ([1.0], 0.2, [1.0]),
        ([0.7, 0.2, 0.1], 1 / 3, [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_capped_weights(p: list[float], cap: float, expected: list[float]) -> None:
    assert capped(np.array(p), cap).tolist() == pytest.approx(expected, abs=1e-12)


@given(
    raw=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8).filter(lambda raw: sum(raw) > 1e-3),
    cap=st.floats(0.05, 1.0),
)
@example(raw=[0.0, 1.0, 2e-311], cap=0.5)
@example(raw=[1.0] * 7, cap=1.0 / 7 + 1e-17)
def test_capped_weights_have_sum_1_and_keep_their_order(raw: list[float], cap: float) -> None:
    p = np.array(raw) / sum(raw)
    q = capped(p, cap)
    assert q.sum() == pytest.approx(1.0, abs=1e-9)
    assert q.max() <= max(cap, 1.0 / len(q)) * (1.0 + 1e-9)
    order = np.argsort(p, kind="stable")
    assert (np.diff(q[order]) >= -1e-12).all()


def test_the_cap_bounds_a_false_loss_and_keeps_the_length_of_the_step() -> None:
    false = weights(aggregator("term", tilt=1.0, max_weight=0.5), [1.0, 1.0, 1e6])
    assert false == pytest.approx([0.25, 0.25, 0.5])
    plain = weights(aggregator("q-fedavg", q=5.0), [0.1, 0.2, 3.0])
    bounded = weights(aggregator("q-fedavg", q=5.0, max_weight=0.5), [0.1, 0.2, 3.0])
    assert max(plain) / sum(plain) > 0.9
    assert max(bounded) == pytest.approx(0.5 * sum(plain))
    assert sum(bounded) == pytest.approx(sum(plain))


# All rules that have losses

MONOTONE: dict[str, dict[str, Any]] = {
    "afl": {"gamma": 0.05},
    "term": {"tilt": 0.7},
    "propfair": {"M": 9.0},
    "q-fedavg": {"q": 2.0},
}
EXTREME = [0.0, 5e-324, 1e-9, 1.0, 1e9, 1e308, 1.7e308]


@pytest.mark.parametrize("cap", [None, 0.5])
@pytest.mark.parametrize("rule", MONOTONE)
@given(losses=st.lists(st.floats(0.0, 12.0), min_size=3, max_size=3), more=st.floats(0.0, 12.0))
def test_a_larger_loss_never_lowers_a_share(
    rule: str, cap: float | None, losses: list[float], more: float
) -> None:
    options = MONOTONE[rule] | {"max_weight": cap}
    before = np.array(weights(aggregator(rule, **options), losses))
    higher = [losses[0] + more, *losses[1:]]
    after = np.array(weights(aggregator(rule, **options), higher))
    if before.sum() > 0.0:
        assert after[0] / after.sum() >= before[0] / before.sum() - 1e-9


def test_a_negative_tilt_lowers_the_share_of_a_larger_loss() -> None:
    a = weights(aggregator("term", tilt=-0.5), [1.0, 2.0, 3.0])
    assert a[0] > a[1] > a[2] > 0.0


@pytest.mark.parametrize("rule", ["afl", "term", "propfair", "aaggff-s", "aaggff-d"])
@given(losses=st.lists(st.sampled_from(EXTREME), min_size=3, max_size=3))
def test_losses_of_any_size_give_weights_with_sum_1(rule: str, losses: list[float]) -> None:
    a = weights(aggregator(rule), losses)
    assert min(a) >= 0.0
    assert sum(a) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("rule", ["afl", "term", "propfair", "fedmgda+"])
def test_one_device_alone_decides(rule: str) -> None:
    one = replace(reports([[0.0, 1.0, 0.0]], losses=[0.0]), n_k=np.array([7]))
    merge = merged(aggregator(rule), SENT, 3, one)
    assert merge.weights.tolist() == pytest.approx([1.0])
    assert merge.vector.tolist() == pytest.approx([0.0, 1.0, 0.0])
