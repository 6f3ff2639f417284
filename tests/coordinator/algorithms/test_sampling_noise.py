"""Noise of small test sets: against exact expectations, and what the corrections recover."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.fairness import summarise
from fairbed.coordinator.algorithms.sampling_noise import SamplingNoise, sampling_noise

FEW = 32
"""Draws of identical devices where a test does not look at them."""

tests = st.integers(2, 25).flatmap(
    lambda devices: st.lists(
        st.integers(0, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
        min_size=devices,
        max_size=devices,
    )
)
"""Test examples and correct ones of each device."""


def noise_of(n: Ints, correct: Ints, draws: int = FEW) -> SamplingNoise:
    found = sampling_noise(n, correct, draws)
    assert found is not None
    return found


def worst10(values: Floats) -> float:
    return float(np.sort(values)[: max(1, values.size // 10)].mean())


def test_thirty_identical_devices_with_twelve_examples_have_the_worst_tenth_of_the_issue() -> None:
    correct = np.array([10] * 24 + [11] * 6)  # 306 of 360 are 0.85
    noise = sampling_noise(np.full(30, 12), correct)
    assert noise is not None
    assert noise.worst10 == pytest.approx(0.663, abs=0.003)
    assert noise.worst10_std == pytest.approx(0.046, abs=0.002)
    assert (noise.examples_min, noise.examples_median, noise.examples_max) == (12, 12.0, 12)


def test_the_noise_variance_of_such_devices_is_103_in_percent_squared() -> None:
    rng = np.random.default_rng(0)
    n = np.full(30, 12)
    of_noise = [noise_of(n, rng.binomial(n, 0.85)).variance for _ in range(300)]
    assert 1e4 * np.mean(of_noise) == pytest.approx(103.0, abs=2.0)


def expected_worst10(n: Ints, p: float) -> float:
    """Return the exact mean of the lowest m accuracies: integral of E[(m - N(t))_+] / m.

    N(t), the number of accuracies of at most t, is a sum of independent indicators.
    """
    m = max(1, len(n) // 10)
    cuts = np.unique(np.concatenate([np.arange(size + 1) / size for size in n.tolist()]))
    total = 0.0
    for low, high in pairwise(cuts):
        counts = np.zeros(m)  # P(N = 0 .. m - 1)
        counts[0] = 1.0
        for size in n.tolist():
            q = binom.cdf(np.floor(size * (low + high) / 2), size, p)
            counts = (1.0 - q) * counts + q * np.concatenate(([0.0], counts[:-1]))
        total += (high - low) * float((m - np.arange(m)) @ counts)
    return total / m


@pytest.mark.parametrize(
    "n", [np.full(30, 12), np.array([3, 5, 8, 8, 40]), np.arange(4, 24)], ids=["30", "5", "20"]
)
def test_identical_devices_have_their_exact_expectation(n: Ints) -> None:
    correct = np.rint(0.8 * n).astype(np.int64)
    noise = sampling_noise(n, correct)
    assert noise is not None
    p = correct.sum() / n.sum()
    error = 4.0 * noise.worst10_std / 64
    assert noise.worst10 == pytest.approx(expected_worst10(n, p), abs=error)
    mirrored = 1.0 - expected_worst10(n, 1.0 - p)
    assert noise.best10 == pytest.approx(mirrored, abs=4.0 * noise.best10_std / 64)


@pytest.mark.parametrize("least", [2, 1])
def test_the_correction_is_unbiased_for_the_devices_at_hand(least: int) -> None:
    """Also with single examples, where accuracy does not depend on the size."""
    rng = np.random.default_rng(1)
    errors = []
    for _ in range(500):
        n, theta = rng.integers(least, 8, 10), rng.beta(6.0, 2.0, 10)
        correct = rng.binomial(n, theta)
        errors.append((correct / n).var() - noise_of(n, correct).variance - theta.var())
    assert abs(np.mean(errors)) < 3.0 * np.std(errors) / np.sqrt(len(errors))


def errors_of(fleet: tuple[float, float] | None, seed: int) -> tuple[Floats, Floats]:
    """Return errors of worst 10 % (raw, shrunken) and of the variance (raw, corrected)."""
    rng = np.random.default_rng(seed)
    worst, variance = [], []
    for _ in range(150):
        n = rng.integers(8, 30, 30)
        theta = np.full(30, 0.85) if fleet is None else rng.beta(*fleet, 30)
        correct = rng.binomial(n, theta)
        raw, noise = summarise(n, correct, np.ones(30)), noise_of(n, correct)
        assert noise.worst10_shrunken is not None
        assert noise.variance_corrected is not None
        truth = worst10(theta)
        worst.append((raw.accuracy_worst10 - truth, noise.worst10_shrunken - truth))
        spread = theta.var()
        variance.append((raw.accuracy_variance - spread, noise.variance_corrected - spread))
    return np.array(worst).T, np.array(variance).T


def test_of_identical_devices_nothing_is_left_but_a_small_bias() -> None:
    worst, variance = errors_of(None, seed=2)
    assert worst[0].mean() < -0.13
    assert -0.025 < worst[1].mean() < 0.0
    assert 1e4 * variance[0].mean() > 70.0
    assert 0.0 < 1e4 * variance[1].mean() < 15.0  # the floor at 0 leaves a positive mean


@pytest.mark.parametrize("fleet", [(85.0, 15.0), (17.0, 3.0)])
def test_of_different_devices_the_truth_is_recovered_better_than_by_the_raw_numbers(
    fleet: tuple[float, float],
) -> None:
    worst, variance = errors_of(fleet, seed=3)
    raw, corrected = np.sqrt(np.square(worst).mean(axis=1))
    assert corrected < 0.85 * raw
    raw, corrected = np.sqrt(np.square(variance).mean(axis=1))
    assert corrected < 0.75 * raw


def test_identical_devices_are_mostly_noise_and_opposite_ones_are_not() -> None:
    same = noise_of(np.full(20, 12), np.array([10, 10, 11, 11] * 5), 4_096)
    assert set(same.mostly_noise) == {"worst 10 %", "best 10 %", "variance"}
    assert same.is_floored
    assert same.variance_corrected == 0.0
    assert same.prior_examples is None
    assert same.worst10_shrunken == same.best10_shrunken == pytest.approx(10.5 / 12)
    apart = noise_of(np.full(20, 400), np.array([40, 360] * 10), 4_096)
    assert apart.mostly_noise == {}
    assert not apart.is_floored
    assert apart.variance_share == pytest.approx(0.09 / 399 * 0.95 / 0.16)


def test_the_prior_of_many_devices_is_that_of_their_accuracies() -> None:
    rng = np.random.default_rng(4)
    n = rng.integers(5, 60, 4_000)
    noise = noise_of(n, rng.binomial(n, rng.beta(8.0, 2.0, n.size)))
    assert noise.prior_accuracy == pytest.approx(0.8, abs=0.01)
    assert noise.prior_examples == pytest.approx(10.0, rel=0.1)


@pytest.mark.parametrize("right", [0, 1])
def test_accuracies_of_0_or_of_1_alone_tell_no_noise(right: int) -> None:
    n = np.array([12, 8, 5])
    noise = noise_of(n, right * n)
    assert set(noise.shares.values()) == {None}
    assert noise.mostly_noise == {}
    assert noise.worst10_shrunken == noise.prior_accuracy == right


def test_single_examples_can_not_be_corrected() -> None:
    noise = noise_of(np.ones(6, dtype=np.int64), np.array([1, 0, 1, 1, 0, 1]))
    assert noise.variance_share == pytest.approx(5 / 6)
    assert noise.variance_corrected is noise.worst10_shrunken is noise.prior_accuracy is None


def test_a_spread_needs_two_devices_with_test_examples() -> None:
    assert sampling_noise(np.array([12]), np.array([9])) is None
    assert sampling_noise(np.array([12, 0]), np.array([9, 0])) is None
    assert noise_of(np.array([12, 0, 8]), np.array([9, 0, 7])).devices == 2


@given(tests)
def test_any_counts_have_numbers_in_their_ranges(counted: list[tuple[int, int]]) -> None:
    n, correct = np.array(counted).T
    noise = sampling_noise(n, correct, 1)
    if (n > 0).sum() < 2:
        assert noise is None
        return
    assert noise is not None
    shares = (*noise.shares.values(), noise.worst10_pooled_share, noise.best10_pooled_share)
    assert all(share is None or 0.0 <= share <= 1.0 for share in shares)
    assert noise.variance >= 0.0
    raw = summarise(n, correct, np.ones(len(n)))
    if noise.variance_corrected is not None:
        assert 0.0 <= noise.variance_corrected <= raw.accuracy_variance + 1e-12
    if noise.worst10_shrunken is not None and noise.best10_shrunken is not None:
        assert raw.accuracy_worst10 - 1e-9 <= noise.worst10_shrunken
        assert noise.worst10_shrunken <= noise.best10_shrunken <= raw.accuracy_best10 + 1e-9
    order = np.random.default_rng(0).permutation(len(n))
    again = sampling_noise(n[order], correct[order], 1)
    assert again is not None
    assert again.worst10 == noise.worst10
    assert again.worst10_shrunken == pytest.approx(noise.worst10_shrunken, abs=1e-6)
