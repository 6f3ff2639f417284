"""Logs of exchanges are read by column, checked row by row, and written in one format."""

import pytest

from fairbed.profiles.errors import TraceError
from fairbed.profiles.exchange_log import (
    ExchangeLog,
    format_exchange_log,
    parse_log_columns,
    read_exchange_log,
)

BOARDS = """\
client,rnd,begin,finish,fit_ms
a,1,100,140,30000
b,1,101,121,15000
a,2,200,250,

b,2,200,230,16000
"""


def read(text: str, columns: str | None = None) -> ExchangeLog:
    named = None if columns is None else parse_log_columns(columns)
    return read_exchange_log(text.encode(), "log.csv", named)


def test_a_log_is_read_by_column_and_written_in_our_format() -> None:
    log = read(BOARDS, "device=client,round=rnd,start=begin:s,end=finish:s,train=fit_ms")
    assert log.devices == ("a", "b")
    assert log.durations_s["total"].tolist() == [40.0, 20.0, 30.0]
    assert log.durations_s["train"].tolist() == [30.0, 15.0, 16.0]
    assert str(log) == "3 exchanges of 2 devices, 2 rounds; 1 rows without a value left out"
    text = format_exchange_log(log, {"title": "two\nboards"})
    assert text.splitlines()[:3] == [
        "# title = two boards",
        "device,round,train_s,total_s",
        "a,1,30,40",
    ]
    again = read(text)
    assert again.durations_s["total"].tolist() == log.durations_s["total"].tolist()
    assert (again.round is not None, again.n_rounds) == (True, 2)


def test_a_table_with_a_column_per_device_is_read() -> None:
    log = read(",A,B B,note\n0,1000,2000,x\n\n1,-,4000,\n", "wide=A|B B:ms")
    assert log.devices == ("A", "B B")
    assert log.durations_s["total"].tolist() == [1.0, 2.0, 4.0]
    assert (log.n_rounds, log.left_out) == (2, 1)
    assert log.round is not None
    assert log.round.tolist() == [0, 0, 1]
    for columns, words in (
        ("wide=A|C:s", "row 1: must have the column 'C', got '', 'A', 'B'"),
        ("wide=A|B", "must have a unit of s, ms"),
    ):
        with pytest.raises(TraceError) as caught:
            read(",A,B\n0,1,2\n", columns)
        assert words in str(caught.value)
    with pytest.raises(TraceError, match="row 3: must have 3 values, got 2"):
        read(",A,B\n0,1,2\n1,2\n", "wide=A|B:s")
    with pytest.raises(ValueError, match="must have wide alone, got device, wide"):
        read("A\n1\n", "device=x,wide=A:s")


def test_a_log_may_have_no_rounds() -> None:
    log = read("device,total_s\na,1\na,2\n")
    assert log.round is None
    assert "no rounds" in str(log)
    assert format_exchange_log(log, {}).splitlines()[0] == "device,total_s"


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        (BOARDS, None, "row 1: must name the device, got ; name the columns: --columns"),
        ("device,round\na,1\n", None, "must have total, start and end, or a phase of download,"),
        (BOARDS, "device=node,total=fit_ms", "must have the column 'node', got 'client', 'rnd'"),
        (BOARDS, "device=client,total=rnd", "must have a unit of s, ms"),
        (
            "device,round,total_s\na,1,2\na,1,3\n",
            None,
            "row 3: device 'a' must have one row per ro",
        ),
        ("device,total_s\na,0\n", None, "exchange 1: the total must be more than 0 s, got a total"),
        ("device,total_s\na,-1\n", None, "exchange 1: total must be from 0 to 1e+07 s, got -1 s"),
        ("device,train_s,total_s\na,3,2\n", None, "the phases must not be longer than the total"),
        ("device,total_s\na,soon\n", None, "row 2: total_s must be a number, got 'soon'"),
        ("device,total_s\na\n", None, "row 2: must have 2 values, got 1"),
        ("device,total_s\na,-\n", None, "must have exchanges, got 1 rows without a value"),
    ],
)
def test_a_bad_log_is_one_line(text: str, columns: str | None, words: str) -> None:
    with pytest.raises(TraceError, match=r"^log\.csv: ") as caught:
        read(text, columns)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("total=x", "must name the device, got total"),
        ("device=x", "must have total, start and end, or a phase"),
        ("device=x,start=a", "must have start and end, or total, got one of start and end"),
        ("device=x,colour=y", "must be NAME=COLUMN:UNIT with device, round, start, end, total,"),
        ("device=x,total=a,total=b", "must name each column once, got total twice"),
    ],
)
def test_bad_names_of_columns_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="must") as caught:
        parse_log_columns(text)
    assert words in str(caught.value)
