"""The cost of a step is linear, through two measurements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.emulation.work import StepCost, WorkCosts, fit_cost

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


def test_only_steps_have_a_cost() -> None:
    train, evaluate = StepCost(fixed_s=1, per_example_s=2), StepCost(fixed_s=3, per_example_s=4)
    costs = WorkCosts(train=train, evaluate=evaluate)
    assert costs.of("train") is train
    assert costs.of("evaluate") is evaluate
    assert costs.of("load") is costs.of("encode") is None
