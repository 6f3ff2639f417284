"""Bars have a resolution of an eighth of a cell, and show every span."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.tui.bars import EIGHTHS, BarCell, bar, gauge
from fairbed.coordinator.tui.phase_spans import LETTERS, MISSED, OVER, PHASES, Span

FULL = "█"


@st.composite
def bars(draw: st.DrawFn) -> tuple[list[Span], float, int]:
    """Yield spans in order, a scale that holds them, and a width."""
    lasted = draw(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=len(PHASES)))
    spans, at_s = [], draw(st.floats(0.0, 3.0))
    for phase, length_s in zip(PHASES, lasted, strict=False):
        spans.append(Span(phase, at_s, at_s + length_s))
        at_s += length_s
    return spans, at_s + draw(st.floats(0.01, 5.0)), draw(st.integers(1, 80))


@given(case=bars())
def test_a_bar_has_its_width_and_only_its_phases(case: tuple[list[Span], float, int]) -> None:
    spans, scale_s, width = case
    cells = bar(spans, scale_s, width)
    assert len(cells) == width
    assert {c.foreground for c in cells} | {c.background for c in cells} <= {
        s.phase for s in spans
    } | {None}
    assert all(cell.glyph in EIGHTHS for cell in cells)


@given(case=bars())
def test_a_lettered_bar_is_as_wide_and_a_letter_is_in_the_colour_of_its_phase(
    case: tuple[list[Span], float, int],
) -> None:
    spans, scale_s, width = case
    cells = bar(spans, scale_s, width, LETTERS)
    assert len(cells) == width
    for cell in cells:
        assert cell.glyph == (" " if cell.foreground is None else LETTERS[cell.foreground])
        assert cell.background is None


def test_each_phase_has_its_own_letter() -> None:
    assert set(LETTERS) == {*PHASES, MISSED}
    assert len(set(LETTERS.values())) == len(LETTERS)


def test_a_lettered_cell_shows_its_longest_phase() -> None:
    cells = bar([Span("load", 0.0, 3 / 8), Span("train", 3 / 8, 2.0)], 2.0, 2, LETTERS)
    assert "".join(cell.glyph for cell in cells) == "tt"


@given(case=bars())
def test_a_bar_does_not_change_with_the_unit_of_time(case: tuple[list[Span], float, int]) -> None:
    spans, scale_s, width = case
    twice = [Span(s.phase, 2 * s.start_s, 2 * s.end_s) for s in spans]
    assert bar(spans, scale_s, width) == bar(twice, 2 * scale_s, width)


def test_whole_cells_are_full_blocks() -> None:
    assert bar([Span("train", 0.0, 2.0)], 4.0, 4) == [
        BarCell(FULL, "train", None),
        BarCell(FULL, "train", None),
        BarCell(" ", None, None),
        BarCell(" ", None, None),
    ]


def test_two_phases_share_a_cell_at_their_boundary() -> None:
    cells = bar([Span("load", 0.0, 3 / 8), Span("train", 3 / 8, 2.0)], 2.0, 2)
    assert cells == [BarCell("▍", "load", "train"), BarCell(FULL, "train", None)]


def test_a_bar_may_begin_within_a_cell() -> None:
    assert bar([Span("train", 0.5, 1.0)], 1.0, 1) == [BarCell("▌", None, "train")]


def test_an_instant_is_still_an_eighth() -> None:
    assert bar([Span("encode", 1.0, 1.0)], 4.0, 4)[1] == BarCell("▏", "encode", None)


def test_time_after_the_work_is_not_drawn() -> None:
    assert bar([Span(OVER, 0.0, 1.0)], 1.0, 1) == [BarCell(" ", None, None)]


@pytest.mark.parametrize("scale_s", [0.0, -1.0])
def test_an_empty_scale_draws_a_dot_and_does_not_divide(scale_s: float) -> None:
    assert bar([Span("train", 0.0, 1.0)], scale_s, 2)[1] == BarCell(" ", None, None)


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.0, "    "), (0.5, "██  "), (0.53, "██▏ "), (1.0, "████"), (7.0, "████")]
)
def test_a_gauge_fills_up(ratio: float, text: str) -> None:
    assert gauge(ratio, 4) == text
