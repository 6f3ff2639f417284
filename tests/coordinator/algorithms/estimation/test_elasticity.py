"""Elasticities: by hand, against least squares, and what an old rate is worth."""

import math

import msgspec
import numpy as np
import pytest

from coordinator.algorithms.arrays import Floats, Ints
from coordinator.algorithms.estimation.elasticity import Elasticities
from coordinator.algorithms.estimation.proportion import Proportions

RHO = 0.3
"""Correlation of the logarithm of a link's rate from one transfer to the next."""


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


def test_one_exchange_by_hand() -> None:
    """One observation says nothing of the slope, so times stay proportional."""
    model = Elasticities(1.0)
    model.observe(of(1), np.array([2.0]), np.array([3.0]))
    assert model.slope == 1.0
    said, width = model.predict(np.array([4.0]))
    assert said == pytest.approx([6.0 / 2.0])
    assert width == pytest.approx([4.0 / math.sqrt(2.0)])


def test_the_slope_is_that_of_least_squares_within_devices() -> None:
    rng = np.random.default_rng(4)
    model, spread, common = Elasticities(), 0.0, 0.0
    for row in range(3):
        c, y = rng.uniform(0.1, 3.0, 8), rng.uniform(0.5, 2.0, 8)
        y *= c**0.4 * (1.0 + row)
        model.observe(of(8, row), c, y)
        x, z = np.log(c) - np.log(c).mean(), np.log(y) - np.log(y).mean()
        spread, common = spread + float(x @ x), common + float(x @ z)
    assert model.slope == pytest.approx((0.1 + common) / (0.1 + spread))


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
    for row in range(12):
        model.observe(of(40, row), *link(rng, 40))
    assert model.slope == pytest.approx(RHO, abs=0.1)


def test_old_rates_of_a_moving_link_mislead_a_proportion_more() -> None:
    rng = np.random.default_rng(3)
    shrunk, plain = Elasticities(0.1), Proportions(0.1)
    for row in range(12):
        c, y = link(rng, 30)
        shrunk.observe(of(30, row), c, y)
        plain.observe(of(30, row), c, y)
    rounds = np.array([link(rng, 50) for _ in range(12)]).transpose(2, 1, 0)
    errors = [
        float(np.median([np.abs(model.predict(c)[0] / y - 1.0) for c, y in rounds]))
        for model in (shrunk, plain)
    ]
    assert errors[0] < 0.85 * errors[1]


def test_a_hole_in_the_link_does_not_set_the_level() -> None:
    model, plain = Elasticities(1e-9), Proportions(1e-9)
    times_s = np.array([1.0] * 9 + [30.0])
    for one in (model, plain):
        one.observe(of(10), np.ones(10), times_s)
    assert model.predict(np.ones(1))[0] == pytest.approx([30.0**0.1])
    assert plain.predict(np.ones(1))[0] == pytest.approx([3.9])


def test_no_transfer_teaches_and_takes_nothing() -> None:
    model = Elasticities()
    model.observe(of(3), np.array([0.0, 1.0, -1.0]), np.array([1.0, 0.0, 1.0]))
    assert model.to_state() == Elasticities().to_state()
    model.observe(of(1), np.ones(1), np.ones(1))
    assert model.predict(np.zeros(2))[0].tolist() == [0.0, 0.0]


def test_who_forgets_follows_a_link_that_became_slower() -> None:
    steady, nimble = Elasticities(0.1), Elasticities(0.1, discount=0.5)
    for model in (steady, nimble):
        model.observe(of(20), np.ones(20), np.repeat([1.0, 3.0], 10))
    assert nimble.predict(np.ones(1))[0][0] > 2.8 > steady.predict(np.ones(1))[0][0]


def test_a_checkpoint_predicts_the_same_bits_whatever_room_there_was() -> None:
    rng = np.random.default_rng(7)
    original, resumed = Elasticities(0.5, 0.9), Elasticities(0.5, 0.9)
    for row in (2, 5, 3):
        original.observe(of(9, row), *link(rng, 9))
    original.observe(of(1, 40), np.zeros(1), np.ones(1))  # room for rows that were never seen
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(original.to_state())))
    c = rng.uniform(0.1, 2.0, 9)
    for mine, theirs in zip(original.predict(c), resumed.predict(c), strict=True):
        assert mine.tolist() == theirs.tolist()


@pytest.mark.parametrize(("lambda_", "discount"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0)])
def test_refuses_priors_that_are_none(lambda_: float, discount: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Elasticities(lambda_, discount)
