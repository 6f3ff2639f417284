"""Ridge: the worked example, the normal equations, and its use in a round."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.estimation import Measured
from fairbed.coordinator.algorithms.estimation.ridge import LinearModels, RidgeEstimator
from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.coordinator.policy.factories import make_estimator


def rows(*of: int) -> Ints:
    return np.array(of, dtype=np.int64)


def floats(*of: float) -> Floats:
    return np.array(of, dtype=np.float64)


def contexts(*of: tuple[float, float, float]) -> Floats:
    """Return contexts (N, 4); a quarter of the transfer is the upload."""
    paper = np.array(of, dtype=np.float64)
    return both_ways(paper)


def both_ways(paper: Floats) -> Floats:
    transfer_s = paper[:, 2:]
    return np.concatenate([paper[:, :2], 0.75 * transfer_s, 0.25 * transfer_s], axis=1)


def times(*of: float) -> Measured:
    return Measured.whole(floats(*of))


def test_worked_example() -> None:
    ridge = RidgeEstimator(1.0)
    ridge.observe(rows(0), contexts((1.0, 1.0, 0.5)), times(3.0))
    assert ridge.theta(1)[0] == pytest.approx([0.923077, 0.923077, 0.461538], abs=1e-6)
    seen = ridge.predict(contexts((0.5, 0.0, 0.5)))
    assert seen.tau_hat_s[0] == pytest.approx(0.692308, abs=1e-6)
    assert seen.width_s[0] == pytest.approx(0.571772, abs=1e-6)
    assert seen.tau_hat_s[0] - 0.1 * seen.width_s[0] == pytest.approx(0.635131, abs=1e-6)
    assert seen.transfer_hat_s[0] == pytest.approx(0.461538 * 0.5, abs=1e-6)
    ridge.observe(rows(0), contexts((2.0, 0.0, 1.0)), times(4.0))
    assert ridge.theta(1)[0] == pytest.approx([1.433962, 0.603774, 0.716981], abs=1e-6)


TIMES = st.floats(0.0, 5.0)


@given(
    x=hnp.arrays(np.float64, (6, 3), elements=TIMES),
    tau=hnp.arrays(np.float64, 6, elements=TIMES),
    at=hnp.arrays(np.float64, (1, 3), elements=TIMES),
    lambda_=st.sampled_from([0.1, 1.0, 10.0]),
)
def test_agrees_with_the_normal_equations(
    x: Floats, tau: Floats, at: Floats, lambda_: float
) -> None:
    ridge = RidgeEstimator(lambda_)
    for c, t in zip(x, tau, strict=True):
        ridge.observe(rows(0), both_ways(c[None]), times(float(t)))
    h = lambda_ * np.eye(3) + x.T @ x
    predicted = ridge.predict(both_ways(at))
    assert ridge.theta(1)[0] == pytest.approx(np.linalg.solve(h, x.T @ tau), abs=1e-8)
    assert predicted.tau_hat_s[0] == pytest.approx((at @ ridge.theta(1)[0])[0])
    width = np.sqrt(at[0] @ np.linalg.solve(h, at[0]))
    assert predicted.width_s[0] == pytest.approx(width, abs=1e-8)


def test_a_device_never_measured_is_predicted_at_0_s_with_a_large_width() -> None:
    predicted = RidgeEstimator(4.0).predict(contexts((3.0, 0.0, 4.0)))
    assert predicted.tau_hat_s.tolist() == [0.0]
    assert predicted.transfer_hat_s.tolist() == [0.0]
    assert predicted.width_s.tolist() == [5.0 / 2.0]


def test_a_bound_raises_a_lower_prediction_and_changes_no_higher_one() -> None:
    ridge, c = RidgeEstimator(), contexts((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
    ridge.observe(rows(0, 1), c, times(6.0, 6.0))
    before = ridge.predict(c).tau_hat_s
    assert before.tolist() == pytest.approx([4.5, 4.5])
    bounds = Measured(floats(4.4, 12.0), np.full((2, 5), np.nan), np.array([True, True]))
    ridge.observe(rows(0, 1), c, bounds)
    after = ridge.predict(c).tau_hat_s
    assert after[0] == before[0]
    assert ridge.seen(2).tolist() == [1, 2]
    assert 4.5 < after[1] < 12.0
    for _ in range(50):
        ridge.observe(rows(0, 1), c, bounds)
    assert ridge.predict(c).tau_hat_s.tolist() == pytest.approx([4.5, 12.0], abs=0.2)


@given(
    tau=st.lists(st.floats(0.0, 9.0), min_size=0, max_size=5),
    bound=st.floats(0.0, 20.0),
)
def test_a_bound_never_lowers_the_prediction_of_its_context(tau: list[float], bound: float) -> None:
    ridge = RidgeEstimator()
    for at, one in enumerate(tau):
        ridge.observe(rows(0), contexts((1.0, float(at % 2), 0.5 + at)), times(one))
    c = contexts((0.5, 1.0, 1.0))
    before = ridge.predict(c).tau_hat_s[0]
    ridge.observe(rows(0), c, Measured(floats(bound), np.full((1, 5), np.nan), np.array([True])))
    after = ridge.predict(c).tau_hat_s[0]
    assert after >= before - 1e-9 * (1.0 + abs(before))
    assert after <= max(before, bound) + 1e-9


def test_devices_are_learned_separately() -> None:
    ridge, c = RidgeEstimator(), contexts((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
    ridge.observe(rows(1), c[:1], times(6.0))
    predicted = ridge.predict(c)
    assert predicted.tau_hat_s[0] == 0.0
    assert predicted.tau_hat_s[1] == pytest.approx(4.5)
    assert predicted.width_s[1] < predicted.width_s[0]


def test_many_rows_at_once_equal_one_at_a_time() -> None:
    rng = np.random.default_rng(2)
    c, tau = rng.uniform(0.0, 2.0, (5, 4)), rng.uniform(1.0, 9.0, 5)
    at_once, in_turn, of = RidgeEstimator(), RidgeEstimator(), rows(4, 0, 7, 4, 2)
    at_once.observe(of, c, Measured.whole(tau))
    for i in range(5):
        in_turn.observe(of[i : i + 1], c[i : i + 1], Measured.whole(tau[i : i + 1]))
    assert at_once.theta(8) == pytest.approx(in_turn.theta(8))
    assert at_once.seen(9).tolist() == [1, 0, 1, 0, 2, 0, 0, 1, 0]


def test_learns_a_linear_world() -> None:
    rng, theta = np.random.default_rng(4), floats(3.0, 1.0, 0.4)
    ridge = RidgeEstimator()
    for _ in range(300):
        c = floats(rng.uniform(0.5, 2.0), float(rng.integers(2)), rng.uniform(0.5, 1.0))[None]
        ridge.observe(rows(0), both_ways(c), Measured.whole(c @ theta * rng.uniform(0.9, 1.1)))
    assert ridge.theta(1)[0] == pytest.approx(theta, rel=0.15)


def test_the_transfer_part_is_never_negative() -> None:
    ridge = RidgeEstimator(0.01)
    ridge.observe(rows(0, 0), contexts((1.0, 0.0, 0.0), (1.0, 0.0, 2.0)), times(3.0, 1.0))
    assert ridge.theta(1)[0, 2] < 0.0
    assert ridge.predict(contexts((1.0, 0.0, 1.0))).transfer_hat_s.tolist() == [0.0]


def test_predicting_changes_no_state() -> None:
    ridge = RidgeEstimator()
    ridge.observe(rows(1), contexts((1.0, 1.0, 0.5)), times(3.0))
    state, c = ridge.to_state(), contexts(*[(1.0, 0.0, 1.0)] * 5)
    first, again = ridge.predict(c), ridge.predict(c)
    assert first.tau_hat_s.tolist() == again.tau_hat_s.tolist()
    assert ridge.to_state() == state
    assert ridge.predict(np.zeros((0, 4))).tau_hat_s.shape == (0,)
    np.testing.assert_array_equal(c, contexts(*[(1.0, 0.0, 1.0)] * 5))


def test_a_checkpoint_predicts_the_same_bits() -> None:
    rng, original = np.random.default_rng(9), RidgeEstimator(0.7)
    for _ in range(20):
        of = rng.choice(12, 4, replace=False).astype(np.int64)
        original.observe(
            of, rng.uniform(0.1, 2.0, (4, 4)), Measured.whole(rng.uniform(0.5, 9.0, 4))
        )
    resumed = RidgeEstimator(0.7)
    resumed.observe(rows(30), contexts((1.0, 1.0, 1.0)), times(1.0))
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(original.to_state())))
    c = rng.uniform(0.1, 2.0, (14, 4))
    for a, b in ((original, resumed), (resumed, original)):
        a.observe(rows(3), c[:1], times(2.0))
        b.observe(rows(3), c[:1], times(2.0))
    for name in ("tau_hat_s", "width_s", "transfer_hat_s"):
        mine, theirs = getattr(original.predict(c), name), getattr(resumed.predict(c), name)
        assert mine.tolist() == theirs.tolist()
    assert original.to_state() == resumed.to_state()


def test_an_empty_checkpoint_has_no_device() -> None:
    ridge = RidgeEstimator()
    ridge.observe(rows(2), contexts((1.0, 1.0, 1.0)), times(1.0))
    ridge.load_state(RidgeEstimator().to_state())
    assert ridge.seen(3).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("of", "c", "tau", "message"),
    [
        (rows(0), contexts((1.0, 1.0, 1.0)), floats(1.0, 2.0), "need rows"),
        (rows(0, 1), contexts((1.0, 1.0, 1.0)), floats(1.0, 2.0), "need rows"),
        (rows(0), np.zeros((1, 3)), floats(1.0), r"context must have shape \(N, 4\), got \(1, 3\)"),
        (rows(0), contexts((np.nan, 1.0, 1.0)), floats(1.0), "must be finite"),
        (rows(0), contexts((1.0, 1.0, 1.0)), floats(np.inf), "must be finite"),
        (
            rows(0),
            contexts((1.0, 1.0, -1.0)),
            floats(1.0),
            "ridge: contexts must be >= 0, got -0.75",
        ),
        (rows(0), contexts((1.0, 1.0, 1.0)), floats(-1.0), "times must be >= 0 s, got -1.0"),
    ],
)
def test_refuses_a_wrong_observation_and_learns_nothing_of_it(
    of: Ints, c: Floats, tau: Floats, message: str
) -> None:
    ridge = RidgeEstimator()
    with pytest.raises(ValueError, match=message):
        ridge.observe(of, c, Measured.whole(tau))
    assert ridge.to_state() == RidgeEstimator().to_state()


@pytest.mark.parametrize("lambda_", [1e-300, 1e-6])
def test_a_penalty_lost_in_the_rounding_of_large_contexts_is_kept(lambda_: float) -> None:
    ridge, c = RidgeEstimator(lambda_), contexts((1e3, 1.0, 1e6), (1.0, 0.0, 2.0))
    for _ in range(3):
        ridge.observe(rows(0, 1), c, times(50.0, 3.0))
    predicted = ridge.predict(c)
    assert predicted.tau_hat_s == pytest.approx([50.0, 3.0], rel=1e-3)
    assert predicted.width_s == pytest.approx([3**-0.5] * 2, rel=1e-3)


@pytest.mark.parametrize("lambda_", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_penalty_that_is_not_positive(lambda_: float) -> None:
    with pytest.raises(ValueError, match="lambda must be > 0"):
        RidgeEstimator(lambda_)


def test_the_configuration_names_the_penalty() -> None:
    made = make_estimator(SelectionConfig(estimator="ridge", ridge_lambda=4.0))
    assert made.predict(contexts((2.0, 0.0, 0.0))).width_s.tolist() == [1.0]


def test_a_linear_model_learns_nothing_from_no_rows() -> None:
    models = LinearModels(2)
    models.observe(rows(), np.zeros((0, 2)), floats())
    assert models.to_state() == LinearModels(2).to_state()


def test_a_linear_model_refuses_contexts_of_another_length() -> None:
    with pytest.raises(ValueError, match=r"context must have shape \(N, 2\), got \(1, 3\)"):
        LinearModels(2).predict(np.ones((1, 3)))
