"""Ticks of axes are round numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.tui.widgets.plot import label, ticks


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0.0, 1.0, 2, [0.0, 0.5, 1.0]),
        (0.0, 0.93, 4, [0.0, 0.5]),
        (1.0, 30.0, 6, [5.0, 10.0, 15.0, 20.0, 25.0, 30.0]),
        (0.0, 3.6, 2, [0.0, 2.0]),
        (2.0, 2.0, 3, [2.0]),
    ],
)
def test_ticks_are_multiples_of_a_round_step(
    low: float, high: float, count: int, expected: list[float]
) -> None:
    assert ticks(low, high, count) == pytest.approx(expected)


def test_rounds_have_whole_ticks() -> None:
    assert ticks(1.0, 3.0, 10, is_whole=True) == [1.0, 2.0, 3.0]


@given(low=st.floats(0, 1e6), span=st.floats(1e-3, 1e6), count=st.integers(1, 50))
def test_ticks_lie_on_the_axis_and_are_not_too_many(low: float, span: float, count: int) -> None:
    found = ticks(low, low + span, count)
    assert len(found) <= count + 1
    assert all(low - 1e-3 * span <= value <= low + span * 1.001 for value in found)


def test_the_text_of_a_tick_is_short() -> None:
    assert [label(value) for value in (0.0, 0.1 + 0.2, 25.0)] == ["0", "0.3", "25"]
