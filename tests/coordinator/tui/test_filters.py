"""Filters of lists: which rows an expression accepts, and what a bad one says."""

import re
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.tui.filters import Field, FilterError, parse_filter


@dataclass(frozen=True)
class Row:
    name: str
    state: str = "idle"
    tau_s: float | None = None
    down_bps: float | None = None


FIELDS: tuple[Field[Row], ...] = (
    Field("name", lambda row: row.name, is_searched=True),
    Field("state", lambda row: row.state, is_searched=True),
    Field("tau", lambda row: row.tau_s, is_number=True),
    Field("down", lambda row: row.down_bps, is_number=True),
)
ROWS = (
    Row("pi-00", "training", 3.0, 10e6),
    Row("pi-01", "silent", 0.2, 9e6),
    Row("nano-02", "idle", None, None),
    Row("idler-03", "gone", 4.0, 20e6),
)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("", "0123"),
        ("  ", "0123"),
        ("pi", "01"),
        ("PI", "01"),
        ("idle", "23"),
        ("pi silent", "1"),
        ("state:idle", "2"),
        ("state:silent,gone", "13"),
        ("state:i", "012"),
        ("state=idle,gone", "23"),
        ("state!=idle", "013"),
        ("!pi", "23"),
        ("!state:silent,gone", "02"),
        ("tau>3", "3"),
        ("tau>=3", "03"),
        ("tau<3", "1"),
        ("tau<=.2", "1"),
        ("tau<=20%", "1"),
        ("tau=3", "0"),
        ("tau:3", "0"),
        ("tau!=3", "13"),
        ("!tau>0", "2"),
        ("down>=10M", "03"),
        ("pi tau>1 down>1k", "0"),
    ],
)
def test_an_expression_accepts_the_rows_that_it_names(text: str, accepted: str) -> None:
    keeps = parse_filter(text, FIELDS)
    assert "".join(str(i) for i, row in enumerate(ROWS) if keeps(row)) == accepted
    assert keeps.text == text.strip()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("speed>3", "speed>3: no field 'speed'; fields: name, state, tau, down"),
        ("tau>", "tau>: a value must follow"),
        ("tau>x", "tau>x: must be a number as in tau>3 or 10M, got 'x'"),
        ("state>3", "state>3: state is a text; write state:3"),
        ("pi !tau:", "tau:: a value must follow"),
    ],
)
def test_a_bad_expression_has_one_clear_line(text: str, problem: str) -> None:
    with pytest.raises(FilterError, match=f"^{re.escape(problem)}$"):
        parse_filter(text, FIELDS)


@given(text=st.text(st.sampled_from(list("pi!<>=:,tau state 03.M%e-")), max_size=20))
def test_any_text_is_a_filter_or_has_a_problem(text: str) -> None:
    with suppress(FilterError):
        keeps = parse_filter(text, FIELDS)
        assert {row for row in ROWS if keeps(row)} <= set(ROWS)
        assert parse_filter(keeps.text, FIELDS).text == keeps.text
