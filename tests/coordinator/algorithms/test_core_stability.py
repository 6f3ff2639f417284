"""Core stability: fixtures of the paper, brute force over coalitions, the convex certificate."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import logsumexp

from fairbed.coordinator.algorithms.aggregation.corefed import corefed_weights
from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.core_stability import (
    dominating,
    fit_softmax,
    gain,
    is_blocked,
    largest_blocked_m,
    proportionality,
    pseudo_core_factor,
    smallest_valid_m,
    strongest_coalition,
)

PAPER = {
    "Adult": ([2.59, 0.77, 1.46], [2.62, 0.90, 1.53], 1.0116, 2.798),
    "MNIST": ([0.34, 0.29, 0.92], [0.36, 0.41, 0.91], 0.989, 2.663),
    "CIFAR-10": ([0.63, 1.40, 0.51], [0.73, 1.35, 0.71], 0.964, 2.618),
    "VGG-11": ([0.25, 3.25, 3.46], [1.63, 3.17, 3.32], 2.173, 2.221),
    "noisy": ([3.28, 3.30, 1.42], [3.26, 3.27, 1.95], 0.991, 2.744),
    "ten agents": (
        [2.11, 2.30, 3.04, 3.28, 1.15, 2.70, 2.00, 2.72, 2.76, 3.14],
        [2.26, 2.50, 3.12, 3.32, 1.42, 2.50, 1.99, 2.80, 2.65, 2.99],
        0.926,
        9.774,
    ),
}
"""Utilities under FedAvg and CoreFed, Tables 1 to 4; the margin of CoreFed's row as alternative to
FedAvg's, and the printed sum of ratios."""


@st.composite
def games(draw: st.DrawFn) -> tuple[Floats, Floats, Floats]:
    """Return losses of a model, (n,), of alternatives, (A, n), and weights, (n,)."""
    n = draw(st.integers(2, 5))
    values = st.floats(0.0, 3.0).map(lambda value: round(value, 2))
    model = draw(hnp.arrays(np.float64, n, elements=values))
    others = draw(hnp.arrays(np.float64, (draw(st.integers(1, 4)), n), elements=values))
    weights = draw(hnp.arrays(np.float64, n, elements=st.sampled_from([1.0, 2.0, 5.0])))
    return model, others, weights


def brute_force(u: Floats, others: Floats, w: Floats) -> tuple[float, bool]:
    """Return margin and verdict by trying every coalition with every alternative."""
    n, margin, is_blocking = len(u), -np.inf, False
    for other in others:
        for size in range(1, n + 1):
            for members in map(list, combinations(range(n), size)):
                scaled = other[members] / u[members] * w[members].sum() / w.sum()
                margin = max(margin, float(scaled.min()))
                is_blocking |= bool((scaled >= 1.0 - 1e-12).all() and (scaled > 1.0 + 1e-12).any())
    return margin, is_blocking


@pytest.mark.parametrize("name", PAPER)
def test_margins_and_sums_of_ratios_of_the_paper(name: str) -> None:
    fedavg, corefed, margin, ratio_sum = PAPER[name]
    u, other = np.array(fedavg), np.array(corefed)
    found = strongest_coalition(u, other[np.newaxis])
    assert found.margin == pytest.approx(margin, abs=5e-4)
    assert found.is_blocking == (margin > 1.0)
    assert len(u) * gain(other, u) == pytest.approx(ratio_sum, abs=5e-4)
    assert len(u) * gain(other, u) < len(u), "no coalition returns from CoreFed to FedAvg"
    assert not strongest_coalition(other, u[np.newaxis]).is_blocking


def test_the_first_agent_alone_leaves_fedavg_with_vgg() -> None:
    fedavg, corefed, _, _ = PAPER["VGG-11"]
    assert strongest_coalition(np.array(fedavg), np.array([corefed])).members.tolist() == [0]


def test_worked_examples() -> None:
    """Two of three gain 1.6 and 1.5, and must gain 1.5 each, one of them more."""
    found = strongest_coalition(np.ones(3), np.array([[1.6, 1.5, 0.5]]))
    assert found.is_blocking
    assert found.margin == pytest.approx(1.0)
    assert found.members.tolist() == [0, 1]
    found = strongest_coalition(np.ones(3), np.array([[1.5, 1.5, 0.5], [1.6, 1.5, 0.5]]))
    assert (found.alternative, found.is_blocking) == (1, True), "of equal margins the one that does"
    assert not is_blocked(np.ones(3), np.array([[1.5, 1.5, 0.5]])), "none gains strictly more"
    assert not is_blocked(np.ones(2), np.array([[1.9, 0.9]])), "sum 2.8 > 2 without a block"
    assert gain(np.ones(2), np.array([1.9, 0.9])) == pytest.approx(1.4)
    assert gain(np.ones(2), np.array([1.9, 0.9]), np.array([1.0, 3.0])) == pytest.approx(1.15)


def test_the_example_of_a_poor_data_set() -> None:
    """Section 3.1: FedAvg serves the third device; the others gain by a large factor."""
    losses_fair, losses_poor = np.array([0.1, 0.1, 9.0]), np.array([7.0, 7.0, 7.0])
    assert losses_poor.sum() > losses_fair.sum()
    found = strongest_coalition(10.0 - losses_poor, 10.0 - losses_fair[np.newaxis])
    assert found.is_blocking
    assert found.members.tolist() == [0, 1]


@given(game=games(), M=st.sampled_from([3.1, 5.0, 50.0]))
def test_prefixes_find_what_all_coalitions_find(
    game: tuple[Floats, Floats, Floats], M: float
) -> None:
    model, others, w = game
    found = strongest_coalition(M - model, M - others, w)
    margin, is_blocking = brute_force(M - model, M - others, w)
    assert found.is_blocking == is_blocking
    assert found.margin == pytest.approx(margin)


@given(game=games())
def test_equal_weights_are_no_weights_and_order_does_not_matter(
    game: tuple[Floats, Floats, Floats],
) -> None:
    u, others, _ = (3.5 - part for part in game)
    plain = strongest_coalition(u, others)
    assert strongest_coalition(u, others, np.full(len(u), 7.0)).margin == pytest.approx(
        plain.margin
    )
    assert strongest_coalition(u[::-1], others[:, ::-1]).margin == pytest.approx(plain.margin)


@given(game=games())
def test_a_model_is_blocked_up_to_one_m(game: tuple[Floats, Floats, Floats]) -> None:
    model, others, w = game
    low, limit = smallest_valid_m(model), largest_blocked_m(model, others, w)
    if low < 1e-3:
        return
    for M in (low, 1.5 * low, 4.0 * low, 100.0 * low):
        if limit is None or not 0.999 * limit <= M <= 1.001 * limit:
            assert is_blocked(M - model, M - others, w) == (limit is not None and limit >= M)


def test_the_largest_blocked_m_of_two_devices_is_that_of_the_formula() -> None:
    """Alone, device 0 must double its utility: (M - 0.2) >= 2 (M - 1), M <= 1.8."""
    assert largest_blocked_m(np.array([1.0, 0.5]), np.array([[0.2, 3.0]])) == pytest.approx(1.8)
    assert largest_blocked_m(np.array([1.0, 1.0]), np.array([[0.9, 1.0]])) == np.inf
    assert largest_blocked_m(np.array([1.0, 1.0]), np.array([[1.1, 1.1]])) is None
    assert largest_blocked_m(np.array([1.0, 0.5]), np.zeros((0, 2))) is None
    assert largest_blocked_m(np.array([1.0]), np.array([[2.0]])) is None


@given(game=games())
def test_no_gain_means_no_block(game: tuple[Floats, Floats, Floats]) -> None:
    model, others, w = game
    u, alternatives = 3.5 - model, 3.5 - others
    helpful = np.array([gain(u, other, w) for other in alternatives])
    if (helpful <= 1.0).all():
        assert not is_blocked(u, alternatives, w)


def test_dominance_and_proportionality() -> None:
    assert dominating(np.ones(2), np.array([[1.0, 1.0], [2.0, 0.9], [1.0, 1.1]])) == 2
    assert dominating(np.ones(2), np.array([[2.0, 0.9]])) is None
    found = proportionality(np.array([1.0, 1.0]), np.array([1.5, 4.0]))
    np.testing.assert_allclose(found, [4.0 / 3.0, 0.5])
    found = proportionality(np.array([1.0, 1.0]), np.array([1.5, 4.0]), np.array([3.0, 1.0]))
    np.testing.assert_allclose(found, [8.0 / 9.0, 1.0])


@pytest.mark.parametrize("call", [strongest_coalition, lambda u, o: gain(u, o[0])])
def test_a_model_with_a_utility_of_zero_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match="every utility of the model must be > 0, got 0"):
        call(np.array([1.0, 0.0]), np.ones((1, 2)))  # type: ignore[operator]  # one of two


def test_no_alternative_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one alternative"):
        strongest_coalition(np.ones(2), np.ones((0, 2)))


@given(centre=hnp.arrays(np.float64, 3, elements=st.floats(-0.4, 0.4)), seed=st.integers(0, 50))
def test_theorem_3_bounds_the_gain_in_the_ball(centre: Floats, seed: int) -> None:
    """Losses (c_i / 2) |theta - a_i|^2 are c_i-smooth; models in the ball are drawn."""
    rng = np.random.default_rng(seed)
    targets, scale, w = rng.normal(size=(4, 3)), rng.uniform(0.1, 1.0, 4), rng.uniform(1, 3, 4)

    def u(theta: Floats) -> Floats:
        found: Floats = 20.0 - 0.5 * scale * ((theta - targets) ** 2).sum(axis=1)
        return found

    gradient = (w * scale / u(centre)) @ (centre - targets)
    radius = 0.5
    k = pseudo_core_factor(u(centre), float(np.linalg.norm(gradient)), scale.max(), radius, w)
    steps = rng.normal(size=(50, 3))
    steps *= radius / np.linalg.norm(steps, axis=1, keepdims=True)
    assert max(gain(u(centre), u(centre + step), w) for step in steps) <= k + 1e-12


def test_theorem_3_by_hand_and_where_it_is_reached() -> None:
    """A utility of curvature B at a stationary point gains B r^2 / 2 and no more."""
    u, w = np.array([1.0, 2.0]), np.array([1.0, 3.0])
    assert pseudo_core_factor(u, 0.3, 2.0, 0.5) == pytest.approx(1.0 + (0.15 + 0.375) / 2)
    assert pseudo_core_factor(u, 0.3, 2.0, 0.5, w) == pytest.approx(1.0 + (0.15 + 0.625) / 4)
    here, radius, B = np.array([2.0]), 0.7, 3.0
    farthest = here + 0.5 * B * radius**2
    assert gain(here, farthest) == pytest.approx(pseudo_core_factor(here, 0.0, B, radius))


def _softmax_losses(theta: Floats, x: Floats, y: Ints, device: Ints, n: int) -> Floats:
    z = np.column_stack([x, np.ones(len(x))]) @ theta.T
    each = logsumexp(z, axis=1) - z[np.arange(len(y)), y]
    found: Floats = np.bincount(device, each, n) / np.bincount(device, minlength=n)
    return found


def _softmax_game(seed: int) -> tuple[Floats, Ints, Ints]:
    rng = np.random.default_rng(seed)
    x, device = rng.normal(size=(240, 3)), np.repeat(np.arange(4), [90, 70, 50, 30])
    noisy = x @ rng.normal(size=(3, 3)) * (1.0 - 0.6 * (device[:, None] == 3))
    y = (noisy + rng.gumbel(size=noisy.shape)).argmax(axis=1)
    return x, y, device


def test_the_certificate_is_1_where_corefed_stops_and_above_elsewhere() -> None:
    """Theorem 2: CoreFed by full gradient steps, M = 1.5; FedAvg is the mean of losses."""
    x, y, device = _softmax_game(1)
    n_k, M = np.bincount(device), 1.5

    def certificate(theta: Floats) -> float:
        u = M - _softmax_losses(theta, x, y, device, 4)
        fit = fit_softmax(x, y, (1.0 / (u * n_k))[device], 3)
        assert fit.gap(10.0) < 1e-4
        return gain(u, M - _softmax_losses(fit.theta, x, y, device, 4))

    mean = fit_softmax(x, y, (1.0 / n_k)[device], 3).theta
    theta = mean.copy()
    for _ in range(200):  # fixed point: minimise the sum of losses with CoreFed's weights
        a = corefed_weights(_softmax_losses(theta, x, y, device, 4), M)
        theta = fit_softmax(x, y, (a / n_k)[device], 3).theta
    assert certificate(theta) == pytest.approx(1.0, abs=1e-6)
    assert certificate(mean) > 1.0 + 1e-4


def test_a_class_without_examples_and_separable_examples_are_fitted() -> None:
    x = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    y = np.array([0, 0, 2, 2])
    fit = fit_softmax(x, y, np.full(4, 0.25), 3)
    assert np.isfinite(fit.theta).all()
    assert _softmax_losses(fit.theta, x, y, np.zeros(4, np.int64), 1)[0] < 1e-4


def test_newton_and_l_bfgs_find_the_same_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = _softmax_game(2)
    weights = np.full(len(y), 1.0 / len(y))
    newton = fit_softmax(x, y, weights, 3)
    monkeypatch.setattr("fairbed.coordinator.algorithms.core_stability.NEWTON_PARAMETERS", 0)
    other = fit_softmax(x, y, weights, 3)
    everyone = np.zeros(len(y), np.int64)
    values = [_softmax_losses(fit.theta, x, y, everyone, 1)[0] for fit in (newton, other)]
    assert values[0] == pytest.approx(values[1], abs=1e-9)
    assert newton.gradient_norm < 1e-8
    assert newton.gap(10.0) == pytest.approx(10.0 * newton.gradient_norm)


def test_a_smaller_coalition_is_found_beside_that_of_all() -> None:
    u, others = np.ones(3), np.array([[1.2, 1.2, 1.2], [1.7, 1.4, 0.1]])
    assert strongest_coalition(u, others).members.tolist() == [0, 1, 2]
    smaller = strongest_coalition(u, others, is_proper=True)
    assert (smaller.members.tolist(), smaller.alternative) == ([0, 1], 1)
    assert smaller.margin == pytest.approx(2.8 / 3.0)
    assert not smaller.is_blocking


def test_newton_ends_where_it_cannot_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Hessian cannot be factored, its steps are used up, or no length lowers the loss."""
    x, y, _ = _softmax_game(2)
    assert not fit_softmax(x, y, np.full(len(y), 5e-324), 3).theta.any()
    module = "fairbed.coordinator.algorithms.core_stability"
    weights = np.full(len(y), 1.0 / len(y))
    best = fit_softmax(x, y, weights, 3).gradient_norm
    monkeypatch.setattr(f"{module}.NEWTON_STEPS", 2)
    early = fit_softmax(x, y, weights, 3)
    assert early.gradient_norm > 100.0 * best, "it says how far it is from the minimum"
    monkeypatch.setattr(f"{module}.STEP_LENGTHS", ())
    assert not fit_softmax(x, y, weights, 3).theta.any()
