"""Phases: each regression against least squares, and what the sum gains over one regression."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.estimation import Measured
from fairbed.coordinator.algorithms.estimation.base import PHASES
from fairbed.coordinator.algorithms.estimation.phases import PhaseEstimator, Proportions
from fairbed.coordinator.algorithms.estimation.ridge import LinearModels, RidgeEstimator
from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.coordinator.policy.factories import make_estimator

THETA = np.array([1.1, 0.4, 2.0, 1.3, 0.05])
"""Of one device, in the order of `PHASES`."""


def rows(*of: int) -> Ints:
    return np.array(of, dtype=np.int64)


def world(rng: np.random.Generator, n: int, noise: float) -> tuple[Floats, Measured]:
    """Return contexts and what a device with THETA does in them."""
    context = np.stack(
        [
            1.0 / rng.uniform(0.5, 2.0, n),
            rng.integers(0, 2, n).astype(np.float64),
            rng.uniform(0.5, 4.0, n),
            rng.uniform(0.1, 1.0, n),
        ],
        axis=1,
    )
    drivers = np.stack(
        [context[:, 2], context[:, 1], context[:, 0], context[:, 3], np.ones(n)], axis=1
    )
    phases_s = drivers * THETA * (1.0 + rng.uniform(-noise, noise, (n, len(PHASES))))
    return context, Measured(phases_s.sum(axis=1), phases_s)


def learn(estimator: RidgeEstimator | PhaseEstimator, context: Floats, measured: Measured) -> None:
    """Learn from a device's exchanges one after the other, as in rounds."""
    for at in range(len(context)):
        one = slice(at, at + 1)
        one_exchange = Measured(measured.tau_s[one], measured.phases_s[one])
        estimator.observe(rows(0), context[one], one_exchange)


def test_worked_example() -> None:
    """One exchange is the prediction of the next, in proportion to c; lambda sets the width."""
    estimator = PhaseEstimator(1.0)
    context = np.array([[0.5, 1.0, 2.0, 1.0]])
    measured = Measured(np.array([8.0]), np.array([[4.0, 0.5, 1.0, 2.0, 0.5]]))
    estimator.observe(rows(0), context, measured)
    predicted = estimator.predict(context)
    assert predicted.tau_hat_s[0] == pytest.approx(8.0)
    assert predicted.transfer_hat_s[0] == pytest.approx(4.0 + 2.0)
    assert predicted.width_s[0] == pytest.approx(np.sqrt((4.0 + 1.0 + 0.25 + 1.0 + 1.0) / 2))
    twice = estimator.predict(np.array([[1.0, 1.0, 4.0, 1.0]]))
    assert twice.tau_hat_s[0] == pytest.approx(2 * 4.0 + 0.5 + 2 * 1.0 + 2.0 + 0.5)


def test_a_proportion_is_the_mean_of_the_ratios_with_the_width_of_ridge_regression() -> None:
    rng = np.random.default_rng(8)
    c, y = rng.uniform(0.01, 5.0, 9), rng.uniform(1.0, 2.0, 9)
    one, of = Proportions(0.5), np.zeros(9, dtype=np.int64)
    one.observe(of, c, y)
    ridge = LinearModels(1, 0.5)
    ridge.observe(of, np.ones((9, 1)), y / c)
    (predicted, width), (_, raw) = one.predict(c[:1]), ridge.predict(np.ones((1, 1)))
    assert predicted == pytest.approx([(y / c).mean() * c[0]])
    assert width == pytest.approx(raw * c[0])


def test_a_wrong_number_affects_one_exchange_only() -> None:
    one, of = Proportions(0.1), np.zeros(10, dtype=np.int64)
    numbers = np.array([20.0] + [1.0] * 9)  # a link measured as 20 times slower
    one.observe(of, numbers, np.ones(10))
    assert one.predict(np.ones(1))[0] == pytest.approx([0.9], abs=0.02)


def test_a_warm_device_neither_has_nor_trains_the_load_phase() -> None:
    estimator = PhaseEstimator(1e-9)
    rng = np.random.default_rng(1)
    context, measured = world(rng, 20, noise=0.0)
    warm = context[:, 1] == 0.0
    estimator.observe(np.zeros(20, dtype=np.int64), context, measured)
    assert estimator.to_state()["load"]["sums"][0][0] == int((~warm).sum())
    predicted = estimator.predict(np.array([[1.0, 0.0, 0.0, 0.0]]))
    assert predicted.tau_hat_s[0] == pytest.approx(2.0 + 0.05, rel=1e-6)


def test_a_device_never_measured_is_predicted_at_0_s_with_a_large_width() -> None:
    predicted = PhaseEstimator(4.0).predict(np.array([[1.0, 0.0, 2.0, 2.0]]))
    assert predicted.tau_hat_s.tolist() == [0.0]
    assert predicted.width_s[0] == pytest.approx(np.sqrt(1 + 4 + 4 + 1) / 2.0)


def test_few_exchanges_give_better_predictions_by_phase() -> None:
    errors: dict[str, list[float]] = {"ridge": [], "phases": []}
    for seed in range(100):
        rng = np.random.default_rng(seed)
        context, measured = world(rng, 4, noise=0.1)
        later, truth = world(rng, 1, noise=0.0)
        for name, estimator in (("ridge", RidgeEstimator(0.1)), ("phases", PhaseEstimator(0.1))):
            learn(estimator, context, measured)
            predicted = estimator.predict(later).tau_hat_s[0]
            errors[name].append(abs(predicted / truth.tau_s[0] - 1.0))
    assert np.median(errors["phases"]) < np.median(errors["ridge"])


def test_control_messages_that_waited_in_an_outage_do_not_set_the_rest() -> None:
    """One exchange in ten waits for 4 s, including the first one."""
    estimator = PhaseEstimator(1e-9)
    context = np.array([[1.0, 0.0, 0.2, 0.6]])
    for index in range(20):
        rest_s = 4.0 if index % 10 == 0 else 0.07
        phases_s = np.array([[0.2, 0.0, 1.2, 0.6, rest_s]])
        estimator.observe(rows(0), context, Measured(phases_s.sum(axis=1), phases_s))
    assert estimator.predict(context).tau_hat_s == pytest.approx([2.07], abs=0.02)


def test_a_rest_slightly_below_zero_is_rounding_and_teaches_nothing() -> None:
    """The clocks of device and coordinator differ by milliseconds."""
    estimator, context = PhaseEstimator(), np.ones((1, 4))
    estimator.observe(rows(0), context, Measured.of([4.0], [(1.0, 1.0, 1.0, 1.004, -0.004)]))
    assert estimator.predict(context).tau_hat_s == pytest.approx([4.0], abs=0.01)


UNSEEN = float("nan")


def test_an_exchange_without_phases_is_a_lower_bound_until_a_complete_one() -> None:
    estimator, context = PhaseEstimator(), np.ones((2, 4))
    estimator.observe(rows(1), context[:1], Measured.of([60.0], [None]))
    predicted = estimator.predict(context)
    assert predicted.tau_hat_s.tolist() == [0.0, 60.0]
    assert predicted.width_s.tolist() == PhaseEstimator().predict(context).width_s.tolist()
    complete = Measured(np.array([10.0]), np.array([[2.0, 2.0, 2.0, 2.0, 2.0]]))
    estimator.observe(rows(1), context[:1], complete)
    assert estimator.predict(context).tau_hat_s == pytest.approx([0.0, 10.0])


def test_the_phases_that_were_seen_teach_and_the_rest_is_bounded() -> None:
    """Each seen phase as it was, and at least 12 - 6 s of upload and rest."""
    estimator = PhaseEstimator(1.0)
    context = np.array([[0.5, 1.0, 2.0, 1.0]])
    phases_s = np.array([[3.0, 1.0, 2.0, UNSEEN, UNSEEN]])
    estimator.observe(rows(0), context, Measured(np.array([12.0]), phases_s))
    assert estimator.predict(context).tau_hat_s == pytest.approx([6.0 + 6.0])
    warm = np.array([[0.5, 0.0, 2.0, 1.0]])
    assert estimator.predict(warm).tau_hat_s == pytest.approx([5.0 + 6.0])


def test_a_bound_below_the_prediction_changes_nothing() -> None:
    estimator = PhaseEstimator(0.01)
    context, measured = world(np.random.default_rng(3), 30, noise=0.0)
    learn(estimator, context, measured)
    before = estimator.predict(context[:1]).tau_hat_s
    estimator.observe(rows(0), context[:1], Measured.of([0.5 * before[0]], [None]))
    assert estimator.predict(context[:1]).tau_hat_s.tolist() == before.tolist()


def test_bounds_survive_a_checkpoint() -> None:
    original, resumed = PhaseEstimator(), PhaseEstimator()
    phases_s = [None, (1.0, 2.0, 3.0, UNSEEN, UNSEEN), (1.0, 1.0, 1.0, 1.0, 1.0)]
    original.observe(rows(1, 4, 2), np.ones((3, 4)), Measured.of([9.0, 8.0, 5.0], phases_s))
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(original.to_state())))
    context = np.ones((6, 4))
    mine, restored = original.predict(context), resumed.predict(context)
    assert mine.tau_hat_s.tolist() == restored.tau_hat_s.tolist()
    assert resumed.to_state() == original.to_state()


def test_a_checkpoint_predicts_the_same_bits() -> None:
    original, resumed = PhaseEstimator(0.5, 0.9), PhaseEstimator(0.5, 0.9)
    context, measured = world(np.random.default_rng(3), 30, noise=0.2)
    of = np.arange(30, dtype=np.int64) % 7
    original.observe(of, context, measured)
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(original.to_state())))
    for name in ("tau_hat_s", "width_s", "transfer_hat_s"):
        mine = getattr(original.predict(context), name)
        assert mine.tolist() == getattr(resumed.predict(context), name).tolist()


def test_an_empty_checkpoint_restores_the_prior() -> None:
    estimator = PhaseEstimator()
    context, measured = world(np.random.default_rng(3), 3, noise=0.0)
    estimator.observe(rows(0, 1, 2), context, measured)
    estimator.load_state(PhaseEstimator().to_state())
    assert estimator.predict(context).tau_hat_s.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", [RidgeEstimator, PhaseEstimator])
def test_a_discount_follows_a_device_that_becomes_slower(
    kind: type[RidgeEstimator] | type[PhaseEstimator],
) -> None:
    steady, nimble = kind(0.1), kind(0.1, discount=0.7)
    rng = np.random.default_rng(5)
    for slower in (1.0, 3.0):
        context, measured = world(rng, 25, noise=0.05)
        one_exchange = Measured(slower * measured.tau_s, slower * measured.phases_s)
        for estimator in (steady, nimble):
            learn(estimator, context, one_exchange)
    context, measured = world(rng, 1, noise=0.0)
    true_s = 3.0 * measured.tau_s[0]
    errors = [abs(e.predict(context).tau_hat_s[0] / true_s - 1.0) for e in (nimble, steady)]
    assert errors[0] < 0.1 < errors[1]
    widths = [float(e.predict(context).width_s[0]) for e in (nimble, steady)]
    assert widths[0] > widths[1], "a discount makes the width larger"


@pytest.mark.parametrize(
    ("of", "context", "phases_s", "message"),
    [
        (rows(0), np.ones((1, 3)), np.ones((1, 5)), "need rows"),
        (rows(0), np.ones((1, 4)), np.ones((1, 4)), "need rows"),
        (rows(0), np.full((1, 4), np.inf), np.ones((1, 5)), "must be finite"),
        (rows(0), np.ones((1, 4)), np.full((1, 5), np.inf), "must be finite"),
        (rows(0), np.full((1, 4), -1.0), np.ones((1, 5)), "phases: contexts must be >= 0, got -1"),
        (rows(0), np.ones((1, 4)), np.array([[1, -1, 1, 1, 0.0]]), "load must be >= 0 s, got -1"),
    ],
)
def test_refuses_a_wrong_observation_and_learns_nothing_of_it(
    of: Ints, context: Floats, phases_s: Floats, message: str
) -> None:
    estimator = PhaseEstimator()
    with pytest.raises(ValueError, match=message):
        estimator.observe(of, context, Measured(np.ones(len(of)), phases_s))
    assert estimator.to_state() == PhaseEstimator().to_state()


@pytest.mark.parametrize("discount", [0.0, -0.5, 1.1, float("nan")])
def test_refuses_a_discount_outside_its_range(discount: float) -> None:
    with pytest.raises(ValueError, match=r"discount must be in \(0, 1\]"):
        PhaseEstimator(discount=discount)


def test_the_configuration_names_the_estimator() -> None:
    assert isinstance(make_estimator(SelectionConfig(estimator="phases")), PhaseEstimator)
    assert isinstance(make_estimator(SelectionConfig(estimator="ridge")), RidgeEstimator)


@given(seed=st.integers(0, 2**32 - 1))
def test_the_order_of_arrival_changes_no_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = PhaseEstimator(0.1), PhaseEstimator(0.1)
    for _ in range(4):
        n = int(rng.integers(1, 9))
        who, (context, measured) = rng.permutation(9)[:n].astype(np.int64), world(rng, n, noise=0.5)
        other_way = rng.permutation(n)
        one.observe(who, context, measured)
        other.observe(
            who[other_way],
            context[other_way],
            Measured(measured.tau_s[other_way], measured.phases_s[other_way]),
        )
        context, _ = world(rng, 9, noise=0.0)
        assert one.predict(context).tau_hat_s.tolist() == other.predict(context).tau_hat_s.tolist()
    assert one.to_state() == other.to_state()


def test_the_usual_time_of_a_transfer_is_that_of_the_last_ten() -> None:
    """A device that moved to a link three times as slow: each rate is right when it is used."""
    estimator, context = PhaseEstimator(1.0), np.array([[1.0, 0.0, 0.0, 1.0]])
    for at in range(60):
        upload_s = 1.0 if at < 40 else 3.0
        phases_s = np.array([[0.0, 0.0, 0.5, upload_s, 0.1]])
        estimator.observe(rows(0), context, Measured(phases_s.sum(axis=1), phases_s))
    assert estimator.predict(context).tau_hat_s == pytest.approx([3.6], rel=0.1)
