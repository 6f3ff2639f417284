"""Elasticities: by hand, against textbooks, what an old rate is worth, and what the fleet lends."""

import math

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.estimation.elasticity import (
    FLEET_LIMIT,
    SLOPE_WEIGHT,
    TOLERANCE,
    Elasticities,
    _device_slopes,
    _fit,
)
from fairbed.coordinator.algorithms.estimation.phases import Proportions

RHO = 0.3
"""Correlation of the logarithm of a link's rate from one transfer to the next."""


def slopes(model: Elasticities) -> tuple[float, float]:
    """Return b and d of all devices."""
    fit = _fit(model._totals)
    return fit.b, fit.d


def of(n: int, row: int = 0) -> Ints:
    return np.full(n, row, dtype=np.int64)


def link(rng: np.random.Generator, n: int, spread: float = 0.5) -> tuple[Floats, Floats]:
    """Return nominal and true times of transfers, each measured at the one before."""
    logs = np.zeros(n + 1)
    for i in range(1, n + 1):
        shock = math.sqrt(1.0 - RHO**2) * rng.standard_normal()
        logs[i] = RHO * logs[i - 1] + shock
    times_s = np.exp(spread * logs)
    return times_s[:-1], times_s[1:]


def rounds(rng: np.random.Generator, devices: int, n: int) -> Floats:
    """Return `link` of some devices round by round, shape (n, 2, devices)."""
    by_round: Floats = np.array([link(rng, n) for _ in range(devices)]).transpose(2, 1, 0)
    return by_round


def test_one_exchange_by_hand() -> None:
    """One observation does not change the slope, so times stay proportional."""
    model = Elasticities(1.0)
    model.observe(of(1), np.array([2.0]), np.array([3.0]))
    assert slopes(model) == (1.0, 0.0)
    predicted, width = model.predict(np.array([4.0]))
    assert predicted == pytest.approx([6.0])
    assert width == pytest.approx([4.0 / math.sqrt(2.0)])


def test_what_is_far_off_pulls_no_harder_than_what_is_a_little_off() -> None:
    """After e^0 a time of e^1 is 1 off, and weighs as much as the tolerance is of that."""
    model = Elasticities(1e-9)
    model.observe(of(2), np.ones(2), np.exp([0.0, 1.0]))
    assert model.predict(np.ones(1))[0] == pytest.approx([math.exp(TOLERANCE / (1 + TOLERANCE))])


def test_the_slope_is_that_of_least_squares_within_devices() -> None:
    """Of times that are too close to each other for any to weigh less."""
    rng = np.random.default_rng(4)
    model, spread, common = Elasticities(), 0.0, 0.0
    for row in range(3):
        c, y = rng.uniform(0.95, 1.05, 8), rng.uniform(0.98, 1.02, 8)
        y *= c**0.4 * (1.0 + 0.02 * row)
        model.observe(of(8, row), c, y)
        x, z = np.log(c) - np.log(c).mean(), np.log(y) - np.log(y).mean()
        spread, common = spread + float(x @ x), common + float(x @ z)
    assert slopes(model)[0] == pytest.approx((0.1 + common) / (0.1 + spread))


def random_effects(z: Floats) -> tuple[float, float]:
    """Return the level of a fleet and F, of observations with c = 1, one row a device."""
    n, k = z.shape
    inner = z.var(axis=1, ddof=1).mean() * n * (k - 1) / (n * k - n - 2)
    q = k * ((z.mean(axis=1) - z.mean()) ** 2).sum()
    outer = max(0.0, (q - (n - 1) * inner) / (n * k - k))
    return float(z.mean()), FLEET_LIMIT if inner >= FLEET_LIMIT * outer else float(inner / outer)


@pytest.mark.parametrize("apart", [0.0, 0.02, 0.04])
def test_a_device_borrows_from_the_fleet_as_random_effects_have_it(apart: float) -> None:
    """By DerSimonian and Laird's formula, of times too close for any to weigh less."""
    rng = np.random.default_rng(11)
    z = apart * rng.standard_normal((6, 1)) + 0.02 * rng.standard_normal((6, 4))
    model = Elasticities(1e-12)
    for column in z.T:
        model.observe(np.arange(6), np.ones(6), np.exp(column))
    level, fleet_weight = random_effects(z)
    assert 0.0 < fleet_weight <= FLEET_LIMIT
    expected = (4.0 * z.mean(axis=1) + fleet_weight * level) / (4.0 + fleet_weight)
    assert np.log(model.predict(np.ones(6))[0]) == pytest.approx(expected, abs=1e-9)


def test_devices_that_differ_are_left_alone() -> None:
    rng = np.random.default_rng(12)
    usual_s = np.array([0.1, 0.5, 2.0, 10.0])
    model = Elasticities(1e-12)
    for _ in range(8):
        model.observe(np.arange(4), np.ones(4), usual_s * np.exp(0.02 * rng.standard_normal(4)))
    assert model.predict(np.ones(4))[0] == pytest.approx(usual_s, rel=0.02)


def test_a_fleet_that_is_alike_makes_few_exchanges_worth_more() -> None:
    """Three exchanges each, on links that move as one would expect of the same operator."""
    rng = np.random.default_rng(13)
    z = 0.5 * rng.standard_normal((20, 3))
    together = Elasticities(1e-12)
    for column in z.T:
        together.observe(np.arange(20), np.ones(20), np.exp(column))
    alone = []
    for row in range(20):
        model = Elasticities(1e-12)
        for value in z[row]:
            model.observe(of(1), np.ones(1), np.exp([value]))
        alone.append(float(model.predict(np.ones(1))[0][0]))
    predicted = np.log(together.predict(np.ones(20))[0])
    assert np.std(predicted) < 0.3 * np.std(np.log(alone))


def test_what_is_kept_of_the_fleet_is_what_its_devices_add_up_to() -> None:
    rng = np.random.default_rng(14)
    model = Elasticities(0.1, 0.9)
    for _ in range(30):
        rows = rng.choice(40, 12, replace=False)
        c, y = np.exp(rng.standard_normal((2, 12)))
        model.observe(rows, c, y)
    state = model.to_state()
    w, x, q, z = np.array(state["sums"]).T[1:5]
    n, w_squared, *totals = state["totals"]
    assert (n, w_squared) == (len(state["rows"]), pytest.approx(w @ w))
    assert totals[:11] == pytest.approx(np.sum(state["sums"], axis=0))
    pairs = (x, x), (x, q), (x, z), (q, q), (q, z), (z, z)
    assert totals[11:] == pytest.approx([(one * other / w).sum() for one, other in pairs])


def test_an_informative_rate_change_is_learned() -> None:
    """Both slopes are learned from z = 0.5 x + 0.9 q plus noise."""
    rng = np.random.default_rng(15)
    model = Elasticities(1e-12)
    for _ in range(60):
        x, q = 0.3 * rng.standard_normal((2, 8))
        z = 0.5 * x + 0.9 * q + 0.02 * rng.standard_normal(8)
        model.observe(np.arange(8), np.exp(x), np.exp(z), q)
    assert slopes(model) == pytest.approx((0.5, 0.9), abs=0.03)
    predicted = model.predict(np.exp(np.full(8, 0.2)), np.full(8, -0.1))[0]
    assert np.log(predicted) == pytest.approx(np.full(8, 0.01), abs=0.02)


def test_a_rate_change_that_is_noise_is_ignored() -> None:
    rng = np.random.default_rng(16)
    model = Elasticities(1e-12)
    for _ in range(200):
        x, q = 0.3 * rng.standard_normal((2, 8))
        model.observe(np.arange(8), np.exp(x), np.exp(x + 0.02 * rng.standard_normal(8)), q)
    assert slopes(model) == pytest.approx((1.0, 0.0), abs=0.01)


def test_a_device_with_many_exchanges_has_slopes_of_its_own() -> None:
    """Five devices whose old rates say nothing, and one whose rates hold."""
    rng = np.random.default_rng(17)
    model = Elasticities(1e-12)
    for _ in range(100):
        x = 0.3 * rng.standard_normal(6)
        z = np.append(0.02 * rng.standard_normal(5), x[5])
        model.observe(np.arange(6), np.exp(x), np.exp(z))
    assert slopes(model)[0] < 0.4
    b, d = _device_slopes(model._sums, model._totals)
    assert b[:5] == pytest.approx(np.zeros(5), abs=0.1)
    assert b[5] > 0.7
    assert ((d >= 0.0) & (d <= 1.0)).all()


def test_slopes_of_a_device_by_hand() -> None:
    """Devices 0 and 1 with two exchanges each: S_n and s_n from the deviations of their means."""
    model = Elasticities(1e-12)
    x, z = np.array([[-0.1, 0.1], [-0.1, 0.1]]), np.array([[-0.05, 0.05], [0.0, 0.0]])
    for at in range(2):
        model.observe(np.arange(2), np.exp(x[:, at]), np.exp(z[:, at]))
    of_fleet = SLOPE_WEIGHT / 2.0  # four observations of two devices
    fleet_xx, fleet_xz = 0.1 + 0.04, 0.1 + 0.01
    expected = [
        (own_xz + of_fleet * fleet_xz) / (0.02 + of_fleet * fleet_xx) for own_xz in (0.01, 0.0)
    ]
    b, d = _device_slopes(model._sums, model._totals)
    assert b == pytest.approx(expected)
    assert d == pytest.approx([0.0, 0.0])


def test_a_link_that_never_moves_is_proportional_but_for_noise() -> None:
    rng = np.random.default_rng(1)
    c = 2.0 * (1.0 + 0.01 * rng.standard_normal(30))
    model = Elasticities(1e-9)
    model.observe(of(30), c, 1.2 * c)
    assert model.predict(np.array([2.0]))[0] == pytest.approx([2.4], rel=1e-3)
    assert model.predict(np.array([4.0]))[0] == pytest.approx([4.8], rel=0.05)


def test_the_slope_is_what_an_old_rate_tells_of_a_new_one() -> None:
    rng = np.random.default_rng(2)
    model = Elasticities()
    for c, y in rounds(rng, 12, 40):
        model.observe(np.arange(12), c, y)
    assert slopes(model)[0] == pytest.approx(RHO, abs=0.1)


def test_old_rates_of_a_moving_link_mislead_a_proportion_more() -> None:
    rng = np.random.default_rng(3)
    shrunk, plain = Elasticities(0.1), Proportions(0.1)
    for c, y in rounds(rng, 12, 30):
        shrunk.observe(np.arange(12), c, y)
        plain.observe(np.arange(12), c, y)
    later = rounds(rng, 12, 50)
    errors = [
        float(np.median([np.abs(model.predict(c)[0] / y - 1.0) for c, y in later]))
        for model in (shrunk, plain)
    ]
    assert errors[0] < 0.85 * errors[1]


def test_a_hole_in_the_link_does_not_set_the_level() -> None:
    model, plain = Elasticities(1e-9), Proportions(1e-9)
    times_s = np.array([1.0] * 9 + [30.0])
    for one in (model, plain):
        one.observe(of(10), np.ones(10), times_s)
    weight = TOLERANCE / math.log(30.0)
    assert model.predict(np.ones(1))[0] == pytest.approx([math.exp(TOLERANCE / (9.0 + weight))])
    assert plain.predict(np.ones(1))[0] == pytest.approx([3.9])


def test_an_exchange_without_a_transfer_is_ignored() -> None:
    model = Elasticities()
    model.observe(of(3), np.array([0.0, 1.0, -1.0]), np.array([1.0, 0.0, 1.0]))
    assert model.to_state() == Elasticities().to_state()
    model.observe(of(1), np.ones(1), np.ones(1))
    assert model.predict(np.zeros(2))[0].tolist() == [0.0, 0.0]


def test_a_discount_follows_a_link_that_became_slower() -> None:
    steady, nimble = Elasticities(0.1), Elasticities(0.1, discount=0.5)
    for model in (steady, nimble):
        model.observe(of(20), np.ones(20), np.repeat([1.0, 3.0], 10))
    assert nimble.predict(np.ones(1))[0][0] > 2.8 > steady.predict(np.ones(1))[0][0]


def test_a_checkpoint_goes_on_with_the_same_bits_whatever_came_first() -> None:
    rng = np.random.default_rng(7)
    original, resumed = Elasticities(0.5, 0.9), Elasticities(0.5, 0.9)

    def learn(*models: Elasticities) -> None:
        rows = rng.permutation(50)[:20]
        c, y, q = np.exp(rng.standard_normal((3, 20)))
        for model in models:
            model.observe(rows, c, y, q - 1.0)

    for _ in range(5):
        learn(original)
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(original.to_state())))
    for _ in range(5):
        learn(original, resumed)
    assert original.to_state() == resumed.to_state()
    c = rng.uniform(0.1, 2.0, 60)
    for mine, theirs in zip(original.predict(c), resumed.predict(c), strict=True):
        assert mine.tolist() == theirs.tolist()
    assert original.predict(c[:5])[0].tolist() == original.predict(c)[0][:5].tolist()


def test_an_empty_checkpoint_restores_the_prior() -> None:
    model = Elasticities(1.0)
    model.observe(of(1), np.ones(1), np.full(1, 3.0))
    model.load_state(Elasticities(1.0).to_state())
    assert model.predict(np.ones(1))[0].tolist() == [0.0]


@pytest.mark.parametrize(("lambda_", "discount"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0)])
def test_refuses_bad_priors(lambda_: float, discount: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Elasticities(lambda_, discount)
