"""Tables of several drives, times with zones, and clocks that are set back."""

import numpy as np
import pytest

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces.columns import own_columns, parse_columns, read_columns, read_drives
from fairbed.profiles.traces.drives import parse_split

DAY = "2023-10-01 "


def lengths(text: str, columns: str, split: str) -> list[tuple[str, int]]:
    content = text.encode()
    chosen = parse_columns(columns) if columns else own_columns(content, "a.csv")
    found = read_drives(content, "a.csv", chosen, parse_split(split))
    return [(label, len(read.trace.t_s)) for label, read in found]


@pytest.mark.parametrize(
    ("text", "split", "expected"),
    [
        ("t_s,mbps\n0,1\n1,2\n0,3\n1,4\n", "time", [("", 2), ("", 2)]),
        ("t_s,mbps\n0,1\n1,2\n", "time", [("", 2)]),
        ("t_s,mbps\n5,1\n6,2\n1,2\n2,1\n3,1\n0,1\n1,2\n", "time", [("", 2), ("", 3), ("", 2)]),
        ("trace,t_s,mbps\na,0,1\na,1,2\nb,0,3\nb,1,4\n", "trace", [("a", 2), ("b", 2)]),
        ("trace,t_s,mbps\nb,0,1\na,0,2\nb,1,3\na,1,4\n", "trace", [("b", 2), ("a", 2)]),
        ("t_s,mbps,bus\n0,1,7\n1,2,7\n2,3,8\n3,4,8\n", "bus", [("7", 2), ("8", 2)]),
        (
            "bus,t_s,mbps\na,0,1\na,1,2\na,0,3\na,1,3\nb,1,4\n",
            "bus,time",
            [("a", 2), ("a", 2), ("b", 1)],
        ),
        ("t_s,mbps\n0,1\n0,2\n1,2\n0,3\n", "time", [("", 2), ("", 1)]),
    ],
)
def test_a_table_is_split_where_time_falls_or_by_a_column(
    text: str, split: str, expected: list[tuple[str, int]]
) -> None:
    assert lengths(text, "", split) == expected


@pytest.mark.parametrize(
    ("text", "split", "words"),
    [
        ("t_s,mbps\n0,1\n1,2\n", "bus", "must have the column 'bus', got t_s, mbps; name one of"),
        ("b,t_s,mbps\na,1,1\na,0,2\n", "b", "row 3: times must not decrease, got 0 s after 1 s"),
        ("time,dl\n0,1\n", "time", "must have t_s and a number of a trace, got time, dl"),
    ],
)
def test_a_split_that_does_not_fit_is_one_line(text: str, split: str, words: str) -> None:
    with pytest.raises(TraceError, match=r"^a\.csv: ") as caught:
        lengths(text, "", split)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "a,b", "time,time", "a,", ",time"])
def test_a_split_names_the_time_and_at_most_one_column(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be time, COLUMN, or COLUMN,time, got"):
        parse_split(text)


ZONES = (
    ("10:00:00 CDT", "10:00:05 CDT", 5.0),
    ("10:00:00 (CEST)", "10:00:05 (CEST)", 5.0),
    ("10:00:00 IST", "10:00:05 IST", 5.0),
    ("10:00:00 Z", "10:00:05Z", 5.0),
    ("10:00:00+02:00", "10:00:05+02:00", 5.0),
    ("10:00:00 +0200", "10:00:05 +0200", 5.0),
    ("10:00:00 UTC+2", "10:00:05 UTC+2", 5.0),
    ("10:00:00+02", "09:00:05+01", 5.0),
    ("10:00:00 GMT-5", "11:00:05 GMT-4", 5.0),
    ("01:59:59 CDT", "01:00:00 CST", 1.0),
    ("01:59:59 EDT", "01:00:00 EST", 1.0),
    ("02:59:59 CEST", "02:00:00 CET", 1.0),
    ("01:59:59 BST", "01:00:00 GMT", 1.0),
    ("01:59:59 IDT", "01:00:00 IST", 1.0),
    ("10:00:00 America/Chicago", "10:00:05 America/Chicago", 5.0),
    ("10:00:00 AM", "10:00:05 AM", 5.0),
    ("11:59:59 AM", "12:00:04 PM", 5.0),
    ("12:59:59 PM CDT", "1:00:04 PM CDT", 5.0),
    ("10:00:00.5", "10:00:02,25", 1.75),
    ("10:00", "10:01", 60.0),
)


@pytest.mark.parametrize(("first", "second", "step_s"), ZONES)
def test_zones_and_halves_of_the_day_are_read(first: str, second: str, step_s: float) -> None:
    text = f"at;mbps\n{DAY}{first};1\n{DAY}{second};2\n"
    read = read_columns(text.encode(), "a.csv", parse_columns("t=at,rate=mbps"))
    assert read.trace.t_s.tolist() == [0.0, step_s]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("10:00:00 XQT", "10:00:05 XQT", "unknown time zone 'XQT'; remove it from every row"),
        ("10:00:00 IST", "10:00:05 CET", "got IST, which has several meanings, beside CET"),
        ("10:00:00 CST", "10:00:05 HKT", "got CST, which has several meanings, beside HKT"),
        ("13:00:00 PM", "13:00:05 PM", "must be a time as ISO 8601, got"),
        ("25:00:00", "25:00:05", "must be a time as ISO 8601, got"),
        ("10:61:00", "10:61:05", "must be a time as ISO 8601, got"),
    ],
)
def test_a_zone_that_is_not_known_is_refused(first: str, second: str, words: str) -> None:
    text = f"at,mbps\n{DAY}{first},1\n{DAY}{second},2\n"
    with pytest.raises(TraceError, match=r"^a\.csv: ") as caught:
        read_columns(text.encode(), "a.csv", parse_columns("t=at,rate=mbps"))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("form", "first", "second"),
    [
        (":%d.%m.%Y %H:%M:%S %Z", "01.10.2023 10:00:00 CDT", "01.10.2023 10:00:05 CDT"),
        (":%d.%m.%Y %H:%M:%S", "01.10.2023 10:00:00 CEST", "01.10.2023 10:00:05 CEST"),
        (":%Y.%m.%d_%H.%M.%S", "2023.10.01_10.00.00", "2023.10.01_10.00.05"),
        (":%H:%M:%S", "23:59:58", "00:00:03"),
        ("", "23:59:58", "00:00:03"),
        ("", "2023/10/01 10:00:00", "2023/10/01 10:00:05"),
        ("", "2023-10-01T10:00:00.123456789", "2023-10-01T10:00:05.123456789"),
    ],
)
def test_formats_and_times_of_day_are_read(form: str, first: str, second: str) -> None:
    text = f"at,mbps\n{first},1\n{second},2\n"
    read = read_columns(text.encode(), "a.csv", parse_columns(f"t=at{form},rate=mbps"))
    assert read.trace.t_s.tolist() == pytest.approx([0.0, 5.0])


@pytest.mark.parametrize(
    ("date", "before", "after"),
    [
        ("2023-11-05", "01:59:59", "01:00:00"),
        ("2023-10-29", "02:59:59", "02:00:00"),
        ("2024-04-07", "02:59:58", "02:00:00"),
    ],
)
def test_the_end_of_summer_time_goes_on_and_is_named(date: str, before: str, after: str) -> None:
    text = f"at,mbps\n{date} 00:59:58,1\n{date} 00:59:59,1\n{date} {before},1\n{date} {after},2\n"
    read = read_columns(text.encode(), "a.csv", parse_columns("t=at,rate=mbps"))
    assert np.all(np.diff(read.trace.t_s) > 0.0)
    assert read.trace.t_s[-1] - read.trace.t_s[-2] <= 2.0
    assert "clock set back 1 h after 3 rows, at the end of summer time" in str(read)


def test_times_that_fall_on_another_day_are_drives() -> None:
    text = "at,mbps\n2023-11-07 01:59:59,1\n2023-11-07 01:00:00,2\n"
    with pytest.raises(TraceError, match="a file of several drives is split by --split time"):
        read_columns(text.encode(), "a.csv", parse_columns("t=at,rate=mbps"))


def test_rows_that_repeat_are_counted() -> None:
    text = "t_s,mbps\n0,1\n0,1\n0,3\n1,2\n1,2\n"
    read = read_columns(text.encode(), "a.csv", parse_columns("t=t_s,rate=mbps"))
    assert "3 with the time of the row before averaged (2 of them repeat a row)" in str(read)
