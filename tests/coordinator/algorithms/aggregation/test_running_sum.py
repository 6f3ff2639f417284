"""The running sum: rounded once, in any order, over more values than one block."""

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.running_sum import (
    BLOCK,
    RunningSum,
    squared_distance,
)
from fairbed.coordinator.algorithms.arrays import Vector
from tests.coordinator.algorithms.aggregation.rounds import vector

SIZE = 2 * BLOCK + 3
VALUES = st.floats(-(2.0**20), 2.0**20, width=32).filter(lambda x: x == 0.0 or abs(x) > 2.0**-20)


def mean(terms: list[tuple[float, Vector]], divisor: float) -> Vector:
    running = RunningSum(terms[0][1].size)
    for weight, x in terms:
        running.add(weight, x)
    return running.divided_by(divisor)


def exact_mean(n_k: list[int], values: list[float]) -> float:
    """Rounded to float64 before and after the division, and to float32, like the sum."""
    total = sum(n * Fraction(value) for n, value in zip(n_k, values, strict=True))
    return float(np.float32(float(total) / sum(n_k)))


@given(st.lists(st.tuples(st.integers(1, 10**6), VALUES), min_size=1, max_size=30))
def test_is_the_exact_sum_rounded_once(terms: list[tuple[int, float]]) -> None:
    n_k, values = [n for n, _ in terms], [value for _, value in terms]
    summed = mean([(float(n), vector(value)) for n, value in terms], float(sum(n_k)))
    assert float(summed[0]) == exact_mean(n_k, values)


@given(
    terms=st.lists(st.tuples(st.floats(1.0, 1e9), VALUES), min_size=2, max_size=30), data=st.data()
)
def test_the_order_changes_no_bit(terms: list[tuple[float, float]], data: st.DataObject) -> None:
    other = data.draw(st.permutations(terms))
    first = mean([(weight, vector(value)) for weight, value in terms], 7.0)
    second = mean([(weight, vector(value)) for weight, value in other], 7.0)
    assert first.tobytes() == second.tobytes()


@given(
    terms=st.lists(st.tuples(st.floats(1.0, 1e9), VALUES), min_size=1, max_size=30), data=st.data()
)
def test_several_at_once_are_the_same_as_one_by_one(
    terms: list[tuple[float, float]], data: st.DataObject
) -> None:
    weights, x = np.array([weight for weight, _ in terms]), vector(*(value for _, value in terms))
    cut, together = data.draw(st.integers(0, len(terms) - 1)), RunningSum(1)
    if cut:
        together.add_all(weights[:cut], x[:cut, np.newaxis])
    together.add_all(weights[cut:], x[cut:, np.newaxis])
    one_by_one = mean([(weight, vector(value)) for weight, value in terms], 7.0)
    assert together.divided_by(7.0).tobytes() == one_by_one.tobytes()


def test_small_terms_survive_between_large_ones() -> None:
    large, small = vector(2.0**60), vector(1.0)
    terms = [(1.0, large), (1.0, small), (-1.0, large), (1.0, small)]
    assert mean(terms, 2.0).tolist() == [1.0]


def test_a_tie_is_rounded_alike_in_every_order() -> None:
    """The mean is halfway between two float32, so one lost bit changes the rounding."""
    rng = np.random.default_rng(2)
    low = rng.uniform(1.0, 2.0, SIZE).astype(np.float32)
    high = np.nextafter(low, np.float32(2.0))
    noise = rng.uniform(1e3, 1e6, SIZE).astype(np.float32)
    terms = [(1.0, low), (0.1, noise), (1.0, high), (-0.1, noise)]
    expected = ((low.astype(float) + high.astype(float)) / 2.0).astype(np.float32)
    for order in permutations(terms):
        np.testing.assert_array_equal(mean(list(order), 2.0), expected)
    plain = sum(weight * x.astype(float) for weight, x in terms) / 2.0
    assert np.any(np.float32(plain) != expected), "a plain float64 sum does lose it"


def test_every_block_is_summed() -> None:
    rng = np.random.default_rng(3)
    models = [rng.standard_normal(SIZE).astype(np.float32) for _ in range(5)]
    expected = np.array([math.fsum(column) for column in np.array(models, dtype=float).T]) / 5.0
    np.testing.assert_array_equal(
        mean([(1.0, model) for model in models], 5.0), expected.astype(np.float32)
    )


@given(st.lists(VALUES, min_size=1, max_size=9), st.integers(-200, 200))
def test_a_shift_is_a_power_of_two_and_rounds_nothing(values: list[float], exponent: int) -> None:
    plain, shifted = RunningSum(1), RunningSum(1)
    for at, value in enumerate(values):
        if at == len(values) // 2:
            shifted.shift(exponent)
        plain.add(0.1, vector(value))
        shifted.add(math.ldexp(0.1, exponent) if at >= len(values) // 2 else 0.1, vector(value))
    assert shifted.divided_by(math.ldexp(1.0, exponent)) == plain.divided_by(1.0)


def test_squared_distance_agrees_with_numpy_over_several_blocks() -> None:
    rng = np.random.default_rng(4)
    one, other = (rng.standard_normal(SIZE).astype(np.float32) for _ in range(2))
    expected = float(np.square(one.astype(float) - other.astype(float)).sum())
    assert squared_distance(one, other) == pytest.approx(expected, rel=1e-13)
    assert squared_distance(one, one) == 0.0
    assert squared_distance(vector(), vector()) == 0.0
