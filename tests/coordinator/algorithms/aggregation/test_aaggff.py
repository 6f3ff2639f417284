"""AAggFF: the worked examples, compared with known wrong variants."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.aaggff import (
    ALPHA,
    CDFS,
    AAggFFD,
    AAggFFS,
    Cdf,
    decision_gradient,
    doubly_robust,
    linearised_gradient,
    responses,
)
from fairbed.coordinator.algorithms.aggregation.quadratic import least_on_simplex
from fairbed.coordinator.algorithms.aggregation.weighting import weights_of
from fairbed.coordinator.algorithms.arrays import Floats
from tests.coordinator.algorithms.aggregation.test_quadratic import nearest


def decision_loss(p: Floats, r: Floats) -> float:
    """Return -log(1 + <p, r>), the loss of weights p with responses r, both of shape (K,)."""
    return -math.log1p(float((p * r).sum()))


LOSSES = np.array([0.01, 0.10, 0.02])
LATER = np.array([0.05, 0.20, 0.05])
PAIR = np.array([0, 2])

every_cdf = pytest.mark.parametrize("cdf", CDFS)


@pytest.mark.parametrize(
    ("cdf", "expected"),
    [
        ("weibull", [0.051861, 0.995134, 0.191858]),
        ("frechet", [0.013124, 0.648344, 0.114559]),
        ("gumbel", [0.115544, 0.763041, 0.180258]),
        ("exponential", [0.206077, 0.900509, 0.369687]),
        ("logistic", [0.316646, 0.787127, 0.368546]),
        ("normal", [0.220878, 0.904511, 0.295129]),
    ],
)
def test_responses_are_those_of_table_a1(cdf: Cdf, expected: list[float]) -> None:
    assert responses(LOSSES, cdf, 1.0).tolist() == pytest.approx(expected, abs=1e-6)


def test_responses_lie_between_their_ends() -> None:
    r = responses(LOSSES, "normal", 0.5, 0.2)
    assert r.tolist() == pytest.approx((0.2 + 0.3 * responses(LOSSES, "normal", 1.0)).tolist())


@every_cdf
@given(
    losses=st.lists(st.floats(0.0, 20.0), min_size=2, max_size=6),
    factor=st.floats(1.0, 50.0),
)
def test_a_larger_loss_never_lowers_a_response(
    cdf: Cdf, losses: list[float], factor: float
) -> None:
    """Nor does it raise the response of another client, relative to the larger mean."""
    higher = [losses[0] * factor, *losses[1:]]
    if sum(losses) / len(losses) <= 1e-9:
        return
    before, after = (responses(np.array(one), cdf, 1.0) for one in (losses, higher))
    assert after[0] >= before[0] - 1e-9
    assert (after[1:] <= before[1:] + 1e-9).all()


def test_the_released_normal_would_reverse_fairness() -> None:
    """With erfc the largest loss has the smallest response, as in the released code."""
    x = LOSSES / LOSSES.mean()
    released = [0.5 * (1.0 + math.erfc((v - 1.0) / math.sqrt(2.0))) for v in x]
    assert released == pytest.approx([1.279122, 0.595489, 1.204871], abs=1e-6)
    assert np.argmin(released) == np.argmax(LOSSES) == np.argmax(responses(LOSSES, "normal", 1.0))


@every_cdf
@pytest.mark.parametrize("losses", [[0.0, 0.0], [0.0, 1e-300], [0.0, 5.0], [1e308, 1e300]])
def test_extreme_losses_give_responses_within_bounds(cdf: Cdf, losses: list[float]) -> None:
    r = responses(np.array(losses), cdf, 1.0)
    assert np.isfinite(r).all()
    assert r.min() >= 0.0
    assert r.max() <= 1.0


@every_cdf
def test_losses_of_zero_give_equal_responses(cdf: Cdf) -> None:
    r = responses(np.zeros(3), cdf, 1.0)
    assert np.ptp(r) == 0.0
    assert r[0] == pytest.approx(responses(np.ones(2), cdf, 1.0)[0])


def test_a_loss_of_zero_has_response_zero_with_frechet() -> None:
    assert responses(np.array([0.0, 1.0]), "frechet", 1.0)[0] == 0.0


def test_gradient_is_the_slope_of_the_loss() -> None:
    p, r, step = np.array([0.2, 0.5, 0.3]), np.array([0.1, 0.3, 0.0]), 1e-6
    slopes = [
        (decision_loss(p + step * e, r) - decision_loss(p - step * e, r)) / (2 * step)
        for e in np.eye(3)
    ]
    assert decision_gradient(p, r).tolist() == pytest.approx(slopes, abs=1e-9)


def silos(cdf: Cdf, rounds: int = 3) -> list[list[float]]:
    """Return the weights of AAggFF-S after each round of the worked example."""
    rule, seen = AAggFFS(3), []
    for losses in [LOSSES, LATER, LATER][:rounds]:
        rule.learn(responses(losses, cdf, rule.most))
        seen.append(rule.p.tolist())
    return seen


def test_worked_example_of_the_silos() -> None:
    rule = AAggFFS(3)
    r = responses(LOSSES, "normal", rule.most)
    assert r.tolist() == pytest.approx([0.073626, 0.301504, 0.098376], abs=1e-6)
    g = decision_gradient(rule.p, r)
    assert g.tolist() == pytest.approx([-0.063589, -0.260403, -0.084966], abs=1e-6)
    expected = [
        [0.315230, 0.364219, 0.320551],
        [0.302654, 0.389390, 0.307956],
        [0.290161, 0.414394, 0.295445],
    ]
    for p, meant in zip(silos("normal"), expected, strict=True):
        assert p == pytest.approx(meant, abs=1e-6)


def test_worked_example_of_the_silos_with_weibull() -> None:
    expected = [[0.307102, 0.375626, 0.317272], [0.289316, 0.411267, 0.299416]]
    for p, meant in zip(silos("weibull", 2), expected, strict=True):
        assert p == pytest.approx(meant, abs=1e-6)


def test_the_released_silos_hardly_move() -> None:
    """Weights start at 1 each, squares are centred on 0, and the ridge counts twice."""
    A, c, p, beta = (1.0 + 0.75) * ALPHA * np.eye(3), np.zeros(3), np.ones(3), 0.75
    released = []
    for losses in (LOSSES, LATER):
        g = decision_gradient(p, responses(losses, "weibull", 1.0 / 3.0))
        A, c = A + beta * np.outer(g, g), c - g
        p = least_on_simplex(A, c, np.full(3, 1.0 / 3.0))
        released.append(p.tolist())
    assert released[0] == pytest.approx([0.322088, 0.351464, 0.326448], abs=1e-6)
    assert released[1] == pytest.approx([0.312863, 0.369927, 0.317210], abs=1e-6)
    assert max(released[1]) - min(released[1]) < 0.5 * np.ptp(silos("weibull", 2)[1])


@pytest.mark.parametrize("wrong", ["centred on 0", "nearest point"])
def test_a_wrong_variant_of_the_silos_is_detected(wrong: str) -> None:
    A, c, p, beta = ALPHA * np.eye(3), np.zeros(3), np.full(3, 1.0 / 3.0), 0.75
    rule, r = AAggFFS(3), responses(np.array([0.1, 0.6, 0.4]), "weibull", 1.0 / 3.0)
    for _ in range(40):
        g = decision_gradient(p, r)
        A += beta * np.outer(g, g)
        c -= g if wrong == "centred on 0" else g * (1.0 - beta * (g @ p))
        p = nearest(A, c) if wrong == "nearest point" else least_on_simplex(A, c, p)
        rule.learn(r)
    assert np.abs(p - rule.p).max() > 0.03


@pytest.mark.parametrize("beta_cap", [math.inf, 0.5])
def test_equal_losses_keep_equal_weights(beta_cap: float) -> None:
    few, many = AAggFFS(5, beta_cap), AAggFFD(5, 2)
    for seen in (np.array([0, 3]), np.array([1, 2]), np.array([0, 4])):
        few.learn(responses(np.full(5, 0.7), "normal", few.most))
        many.learn(seen, responses(np.full(2, 0.7), "normal", many.inclusion(2)))
    np.testing.assert_allclose(few.p, 0.2, rtol=1e-12)
    np.testing.assert_allclose(many.p, 0.2, rtol=1e-12)


def test_a_cap_on_beta_makes_larger_steps() -> None:
    """Past rounds weigh less."""
    free, capped = AAggFFS(11), AAggFFS(11, 0.5)
    losses = np.array([3.0] + [0.2] * 10)
    for _ in range(30):
        for rule in (free, capped):
            rule.learn(responses(losses, "weibull", rule.most))
    assert capped.p[0] > free.p[0] + 1e-3
    assert free.p[0] > 0.5


def test_worked_example_of_the_devices() -> None:
    rule = AAggFFD(4, 2)
    r = responses(np.array([1.0, 3.0]), "weibull", rule.inclusion(2))
    assert r.tolist() == pytest.approx([0.110600, 0.447300], abs=1e-6)
    full = doubly_robust(r, PAIR, 4, 0.5, float(r.mean()))
    assert full.tolist() == pytest.approx([-0.057751, 0.278950, 0.615651, 0.278950], abs=1e-6)
    g = rule.learn(PAIR, r)
    assert g.tolist() == pytest.approx([0.045155, -0.218109, -0.481372, -0.218109], abs=1e-6)
    assert rule.p.tolist() == pytest.approx([0.228576, 0.249520, 0.272384, 0.249520], abs=1e-6)
    assert weights_of(rule.p, PAIR).tolist() == pytest.approx([0.456276, 0.543724], abs=1e-6)
    later = np.array([1, 2])
    g = rule.learn(later, responses(np.array([2.0, 2.0]), "weibull", rule.inclusion(2)))
    assert g.tolist() == pytest.approx([-0.240156] * 4, abs=1e-6)
    assert rule.p.tolist() == pytest.approx([0.232432, 0.249680, 0.268208, 0.249680], abs=1e-6)
    assert weights_of(rule.p, later).tolist() == pytest.approx([0.482112, 0.517888], abs=1e-6)


def test_without_the_imputed_mean_taking_part_is_penalised() -> None:
    """The released estimate: a device with the mean loss gets less weight when it reports."""
    r, p = np.full(2, 0.25), np.full(4, 0.25)
    mean = 0.25
    released = np.full(4, mean)
    released[PAIR] = (r - mean) / 0.5
    g = linearised_gradient(p, released, mean)
    assert g[0] > g[1] + 0.1, "a larger gradient is a smaller weight"
    mine = linearised_gradient(p, doubly_robust(r, PAIR, 4, 0.5, mean), mean)
    assert np.ptp(mine) < 1e-15


def test_the_previous_mean_may_be_imputed() -> None:
    rule, first = AAggFFD(4, 2, "previous_mean"), np.array([0.1, 0.3])
    rule.learn(PAIR, first)
    p, second = rule.p, np.array([0.2, 0.4])
    g = rule.learn(PAIR, second)
    full = doubly_robust(second, PAIR, 4, 0.5, 0.2)
    np.testing.assert_allclose(g, linearised_gradient(p, full, 0.2), rtol=1e-12)
    assert not np.allclose(full, doubly_robust(second, PAIR, 4, 0.5, 0.3))


def test_those_that_fail_count_as_not_drawn() -> None:
    rule = AAggFFD(10, 4)
    assert rule.inclusion(4) == 0.4
    assert rule.inclusion(2) == 0.2
    assert AAggFFD(3, 8).inclusion(3) == 1.0


def test_one_device_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="per_round must be at least 2 with impute 'mean', got 1"):
        AAggFFD(4, 1)
    assert AAggFFD(4, 1, "previous_mean").p.tolist() == [0.25] * 4


def test_a_persistently_larger_loss_gains_weight() -> None:
    rng, few, many = np.random.default_rng(3), AAggFFS(6), AAggFFD(6, 3)
    losses = np.array([0.5, 0.5, 0.5, 0.5, 0.5, 2.0])
    for _ in range(60):
        few.learn(responses(losses, "weibull", few.most))
        seen = rng.choice(6, 3, replace=False)
        many.learn(seen, responses(losses[seen], "weibull", many.inclusion(3)))
    for p in (few.p, many.p):
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        assert p.argmax() == 5
        assert p[5] > 0.3


@pytest.mark.parametrize("kind", ["silos", "devices"])
def test_a_new_client_gets_an_equal_share(kind: str) -> None:
    rule: AAggFFS | AAggFFD = AAggFFS(3) if kind == "silos" else AAggFFD(3, 2)
    rule.load_state(rule.to_state() | {"p": [0.5, 0.3, 0.2]})
    rule.grow(4)
    assert rule.p.tolist() == pytest.approx([0.375, 0.225, 0.15, 0.25])
    rule.grow(2)
    assert len(rule.p) == 4, "rows are only ever appended"
    learn_once(rule)
    assert rule.p.shape == (4,)
    assert rule.p.sum() == pytest.approx(1.0, abs=1e-12)


def learn_once(rule: AAggFFS | AAggFFD) -> None:
    if isinstance(rule, AAggFFS):
        rule.learn(np.linspace(0.0, rule.most, len(rule.p)))
    else:
        rule.learn(np.array([1, 0]), np.array([0.0, 0.4]))


@pytest.mark.parametrize("kind", ["silos", "devices", "devices, previous mean"])
def test_a_restored_rule_continues_the_same(kind: str) -> None:
    def made() -> AAggFFS | AAggFFD:
        if kind == "silos":
            return AAggFFS(4)
        return AAggFFD(4, 2, "mean" if kind == "devices" else "previous_mean")

    original, resumed = made(), made()
    learn_once(original)
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(original.to_state())))
    learn_once(original)
    learn_once(resumed)
    assert original.to_state() == resumed.to_state()


def test_weights_of_a_round_are_a_distribution() -> None:
    p: Floats = np.array([0.1, 0.4, 0.3, 0.2])
    assert weights_of(p, np.array([3, 1])).tolist() == pytest.approx([1 / 3, 2 / 3])
