"""The k smallest values: equal to the start of a sort."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.selection.pool import smallest, weighted_draw

VALUES = st.lists(st.integers(-3, 3), max_size=30)


@given(values=VALUES, k=st.integers(-1, 35))
def test_the_smallest_are_the_first_of_a_stable_sort(values: list[int], k: int) -> None:
    column = np.array(values, dtype=np.float64)
    found = smallest(column, k)
    assert found.dtype == np.int64
    assert found.tolist() == np.argsort(column, kind="stable")[: max(k, 0)].tolist()


@given(weights=st.lists(st.sampled_from([0.0, 1.0, 5.0]), max_size=12), size=st.integers(0, 14))
def test_a_draw_is_without_replacement_and_takes_the_weightless_last(
    weights: list[float], size: int
) -> None:
    column = np.array(weights, dtype=np.float64)
    drawn = weighted_draw(np.random.default_rng(3), column, np.arange(len(column)), size)
    assert len(drawn) == len(set(drawn.tolist())) == min(size, len(weights))
    heavy = int((column > 0.0).sum())
    assert (column[drawn[:heavy]] > 0.0).all()
    assert (column[drawn[heavy:]] == 0.0).all()


def test_a_draw_follows_the_weights() -> None:
    rng, weights = np.random.default_rng(8), np.array([1.0, 2.0, 5.0])
    rows = np.arange(3)
    first = np.array([weighted_draw(rng, weights, rows, 2)[0] for _ in range(8000)])
    shares = np.bincount(first, minlength=3) / len(first)
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.02)
