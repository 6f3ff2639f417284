"""The cost of a step is linear, through two measurements."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.emulation.work import StepCost, WorkCosts, fit_cost, passes_s

sizes = st.tuples(st.integers(1, 512), st.integers(1, 512)).filter(lambda n: n[0] < n[1])
seconds = st.floats(0.0, 10.0)


@given(st.floats(0.0, 1.0), st.floats(0.0, 0.1), sizes)
def test_the_line_goes_through_both_measurements(
    fixed_s: float, per_example_s: float, n: tuple[int, int]
) -> None:
    right = StepCost(fixed_s=fixed_s, per_example_s=per_example_s)
    fitted = fit_cost((n[0], right.seconds(n[0])), (n[1], right.seconds(n[1])))
    for size in (*n, 1000):
        assert fitted.seconds(size) == pytest.approx(right.seconds(size), rel=1e-6, abs=1e-9)


@given(sizes, seconds, seconds)
def test_noise_makes_no_cost_negative_and_keeps_the_larger_step(
    n: tuple[int, int], small_s: float, large_s: float
) -> None:
    fitted = fit_cost((n[0], small_s), (n[1], large_s))
    assert fitted.fixed_s >= 0.0
    assert fitted.per_example_s >= 0.0
    assert fitted.seconds(n[1]) == pytest.approx(large_s, abs=1e-9)


@pytest.mark.parametrize("n", [(0, 5), (5, 5), (9, 5)])
def test_two_sizes_are_needed(n: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=rf"the smaller one first, got {n[0]} and {n[1]}"):
        fit_cost((n[0], 1.0), (n[1], 1.0))


@pytest.mark.parametrize("size", [1, 3, 4, 7, 10, 12])
def test_each_part_of_a_mini_batch_has_the_fixed_cost_of_a_step(size: int) -> None:
    cost, n_k, batch = StepCost(fixed_s=0.5, per_example_s=0.01), [3, 10, 27], 10
    parts = [
        [min(size, m - at) for at in range(0, m, size)]
        for n in n_k
        for m in [min(batch, n - start) for start in range(0, n, batch)]
    ]
    ends = np.cumsum([-(-n // batch) for n in n_k])
    expected = [
        2 * sum(cost.seconds(part) for some in parts[end - -(-n // batch) : end] for part in some)
        for n, end in zip(n_k, ends, strict=True)
    ]
    steps = 2 * np.array([-(-n // batch) for n in n_k])
    sizes = np.full(3, min(size, batch))
    for of in (min(size, batch), sizes):
        found = passes_s(cost, np.array(n_k), steps, batch, of)
        np.testing.assert_allclose(found, expected)


def test_only_steps_have_a_cost() -> None:
    train, evaluate = StepCost(fixed_s=1, per_example_s=2), StepCost(fixed_s=3, per_example_s=4)
    costs = WorkCosts(train=train, evaluate=evaluate)
    assert costs.of("train") is train
    assert costs.of("evaluate") is evaluate
    assert costs.of("load") is costs.of("encode") is None
