"""Contended time is the lesser of two bounds, although the kernel counts them at other times."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairbed.testbed.emulation.contention import HORIZON_S, ContentionEstimate

WINDOWS = st.lists(st.tuples(st.floats(0.0, 0.1), st.floats(0.0, 0.1)), min_size=1, max_size=50)


def estimate(windows: list[tuple[float, float]], slack_s: float = 0.0) -> float:
    found = ContentionEstimate()
    for unused_s, waited_s in windows:
        found.add([unused_s], [waited_s], slack_s)
    return found.contended_s


@given(WINDOWS)
def test_it_is_never_more_than_either_bound(windows: list[tuple[float, float]]) -> None:
    contended_s = estimate(windows)
    assert 0.0 <= contended_s <= min(map(sum, zip(*windows, strict=True))) + 1e-9
    assert contended_s >= sum(map(min, windows)) - 1e-9


@given(st.lists(st.floats(-0.02, 0.02), min_size=2, max_size=200))
@example([-0.015625, 0.015625, -0.015625, 0.015625])
@example([-0.02, 0.02] * 50)
def test_errors_at_the_edges_of_windows_do_not_add_up(edges: list[float]) -> None:
    """A busy program beside others: it always waits, and uses its quota in each period."""
    steps = [after - before for before, after in pairwise(edges)]
    assert estimate([(step, 0.08) for step in steps], slack_s=0.02) <= 0.04 + 1e-9


def test_a_wait_that_is_counted_at_its_end_is_compared_with_what_was_not_used_before() -> None:
    assert estimate([(0.1, 0.0), (0.1, 0.0), (0.0, 0.2)]) == pytest.approx(0.2)
    assert estimate([(5.0, 0.0), (0.0, 1.0)]) == HORIZON_S  # it was idle for most of that


def test_a_wait_while_all_of_the_speed_was_used_is_not_kept() -> None:
    assert estimate([(0.0, 0.1), (0.1, 0.0)]) == 0.0


def test_the_largest_of_several_measures_of_waiting_counts() -> None:
    found = ContentionEstimate()
    assert found.add([0.0, 0.1], [0.02, 0.05]) == pytest.approx(0.05)
    assert found.add([0.0, 0.1], [0.06, 0.0]) == pytest.approx(0.06)
