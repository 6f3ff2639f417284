"""Rows as tables, and documents that hold them."""

from benchmarks._fidelity.catalogue import GROUPS
from benchmarks._fidelity.rows import Row
from benchmarks._fidelity.table import (
    TITLES,
    arranged,
    markdown,
    plain,
    summary,
)


def test_every_group_has_a_title() -> None:
    assert set(TITLES) == set(GROUPS)


def row(**given: object) -> Row:
    numbers: dict[str, object] = {
        "backend": "namespace",
        "quantity": "goodput 10 Mbit/s down",
        "target": 10e6,
        "achieved": 9.9e6,
        "error": -0.01,
        "limit": 0.03,
        "ok": True,
        "unit": "bit/s",
        "valid": 3,
        "attempts": 4,
        "group": "goodput",
    }
    return Row(**(numbers | given))  # type: ignore[arg-type]  # the names are those of a Row


MISSED = row(backend="process", achieved=9e6, error=-0.1, ok=False)
UNKNOWN = row(
    backend="process",
    quantity="delay 20 ms down, p95",
    target=0.02,
    achieved=None,
    error=None,
    limit=3e-3,
    ok=None,
    unit="s",
    is_relative=False,
    valid=0,
    reason="too busy",
    group="delay",
)


def test_rows_of_several_runs_are_arranged_by_group_and_backend() -> None:
    cpu, strange = row(group="cpu"), row(group="", backend="cloud")
    delay = row(group="delay", backend="namespace")
    rows = [UNKNOWN, strange, MISSED, delay, row(), cpu]
    assert arranged(rows, ["namespace", "process"]) == [cpu, row(), MISSED, delay, UNKNOWN, strange]


def test_a_terminal_shows_every_row_and_why_one_is_unknown() -> None:
    _, first, second, third = plain([row(), MISSED, UNKNOWN]).splitlines()
    assert "10 Mbit/s    9.9 Mbit/s    -1.0 %      +-3.0 % ok       3/4" in first
    assert "missed" in second
    assert third.endswith("+-3.0 ms unknown  0/4  too busy")


def test_a_document_has_a_column_for_each_backend() -> None:
    assert markdown([row(), MISSED, UNKNOWN]).splitlines() == [
        "| quantity | namespace | process |",
        "|---|---|---|",
        "| goodput 10 Mbit/s down | 9.9 Mbit/s (-1.0 %) | 9 Mbit/s (-10.0 %) **misses +-3.0 %** |",
        "| delay 20 ms down, p95 |  | unknown: too busy |",
    ]


def test_the_summary_counts_what_was_kept_and_shows_the_worst() -> None:
    lines = summary([row(), row(error=0.02), MISSED, UNKNOWN]).splitlines()
    assert lines[2:] == [
        "| goodput, 0.1 to 500 Mbit/s, both ways | 2 of 2 within limits; at most +2.0 % "
        "| 0 of 1 within limits; at most -10.0 % |",
        "| one-way delay and jitter |  | 0 of 1 within limits, 1 unknown |",
    ]
