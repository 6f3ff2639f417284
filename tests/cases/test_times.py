"""Times in text: zones that a file has beside each other, and clocks that are set back."""

import pytest

from fairbed.profiles.errors import TraceError
from fairbed.profiles.exchange_log import parse_log_columns, read_exchange_log
from fairbed.profiles.traces.columns import parse_columns, read_columns

DAY = "2023-10-03 "


def seconds(first: str, second: str, unit: str = "") -> float:
    content = f"at;mbps\n{first};1\n{second};2\n".encode()
    read = read_columns(content, "a.csv", parse_columns(f"t=at{unit},rate=mbps"))
    return float(read.trace.t_s[-1])


READ = (
    ("CEST", "CET", 3605.0),
    ("EDT", "EST", 3605.0),
    ("CDT", "CST", 3605.0),
    ("PDT", "PST", 3605.0),
    ("ADT", "AST", 3605.0),
    ("MDT", "MST", 3605.0),
    ("PDT", "MST", 5.0),
    ("BST", "GMT", 3605.0),
    ("IST", "GMT", 3605.0),
    ("IDT", "IST", 3605.0),
    ("AMST", "AMT", 3605.0),
    ("BRST", "BRT", 3605.0),
    ("MSD", "MSK", 3605.0),
    ("AEDT", "AEST", 3605.0),
    ("NZDT", "NZST", 3605.0),
    ("JST", "UTC", 9 * 3600 + 5.0),
    ("CET", "Z", 3605.0),
    ("CEST", "+02:00", 5.0),
    ("+05:30", "+0530", 5.0),
    ("UTC+1", "GMT+1", 5.0),
    ("-0300", "-04:00", 3605.0),
    ("+02:00[Europe/Oslo]", "+01:00[Europe/Oslo]", 3605.0),
    ("[Europe/Oslo]", "[Europe/Oslo]", 5.0),
    *((zone, zone, 5.0) for zone in ("EST", "CST", "IST", "AMT", "WST", "GST", "SST", "MST")),
)


@pytest.mark.parametrize(("one", "other", "step_s"), READ)
def test_zones_of_one_region_have_their_differences(one: str, other: str, step_s: float) -> None:
    pair = (f"{DAY}10:00:00 {one}", f"{DAY}10:00:05 {other}")
    assert seconds(*pair) == step_s


SEVERAL = (
    *("CST", "EST", "IST", "BST", "AST", "AMT", "MST", "PST", "GST", "SST", "WST", "ECT", "KST"),
    *("NST", "WIT", "MSK", "EDT", "CDT", "PDT"),
)


@pytest.mark.parametrize("zone", SEVERAL)
@pytest.mark.parametrize("other", ["+01:00", "CET", "JST"])
def test_a_zone_of_several_meanings_is_refused_beside_others(zone: str, other: str) -> None:
    words = rf"^a\.csv: times must have zones of known offset, got {zone}, .* such as \+01:00$"
    with pytest.raises(TraceError, match=words):
        seconds(f"{DAY}10:00:00 {zone}", f"{DAY}10:00:05 {other}")


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("10:00:00", "10:00:05 CET", "got none in row 2 and CET in row 3; write all"),
        ("10:00:00Z", "10:00:05", "time zone or none, got"),
        ("10:00:00", "10:00:05+02:00", r"and \+02:00 in row 3"),
        ("10:00:00 Europe/Oslo", "10:00:05 Europe/London", "Europe/London in row 3"),
        ("10:00:00 Europe/Oslo", "10:00:05", "Europe/Oslo in row 2"),
        ("10:00:00 Europe/Oslo", "10:00:05+02:00", "Europe/Oslo in row 2"),
        ("10:00:00 AM CDT", "10:00:05 AM", "CDT in row 2"),
    ],
)
def test_times_with_and_without_a_zone_are_refused(first: str, second: str, words: str) -> None:
    with pytest.raises(TraceError, match="times must all have a time zone or none") as caught:
        seconds(DAY + first, DAY + second)
    assert caught.match(words)


def test_numbers_and_times_in_text_are_refused() -> None:
    with pytest.raises(TraceError, match="got a number in row 2 and none in row 3"):
        seconds("5", f"{DAY}10:00:05", ":s")


@pytest.mark.parametrize(
    ("form", "first", "second"),
    [
        (":%Y-%m-%d_%H-%M-%S", "2023-10-03_10-00-00", "2023-10-03_10-00-05"),
        (":%d.%m.%Y %H:%M:%S %z", "03.10.2023 10:00:00 +0200", "03.10.2023 10:00:05 +0200"),
        (":%b %d %Y %I:%M:%S %p", "Oct 03 2023 10:00:00 AM", "Oct 03 2023 10:00:05 AM"),
        (":%H:%M:%S %d %b", "10:00:00 03 Oct", "10:00:05 03 Oct"),
    ],
)
def test_the_end_of_a_format_is_no_zone(form: str, first: str, second: str) -> None:
    assert seconds(first, second, form) == 5.0


EXCHANGES = (
    ("2023-10-29 02:59:50", "2023-10-29 02:00:10", 20.0, "clock set back 1 h in 1 exchanges"),
    ("2023-11-05 01:59:00", "2023-11-05 01:30:00", 1860.0, "clock set back 1 h in 1 exchanges"),
    ("2023-10-29 02:59:50 CEST", "2023-10-29 02:00:10 CET", 20.0, ""),
    ("2023-10-29 01:59:50", "2023-10-29 04:00:10", 7220.0, "may be an hour off: write the times"),
    ("2024-03-31 01:59:50", "2024-03-31 03:00:10", 3620.0, "may be an hour off: write the times"),
    ("2024-03-31 01:59:50 CET", "2024-03-31 03:00:10 CEST", 20.0, ""),
    ("2024-03-30 01:59:50", "2024-03-30 03:00:10", 3620.0, ""),
    ("23:59:50", "00:00:10", 20.0, "midnight in 1 exchanges without dates: 1 day added"),
    ("2023-10-29 10:00:00", "2023-10-29 10:00:20", 20.0, ""),
    ("2023-10-28 02:59:50", "2023-10-28 02:00:10", None, "total must be from 0"),
    ("2023-10-29 02:59:50", "2023-10-29 02:00:10 CET", None, "must all have a time zone or none"),
    ("2023-10-29 02:59:50 IST", "2023-10-29 03:00:10 CET", None, "which has several meanings"),
)


@pytest.mark.parametrize(("start", "end", "total_s", "words"), EXCHANGES)
def test_an_exchange_over_a_change_of_the_clock_is_right_or_named(
    start: str, end: str, total_s: float | None, words: str
) -> None:
    content = f"d,s,e\na,{start},{end}\n".encode()
    columns = parse_log_columns("device=d,start=s,end=e")
    if total_s is None:
        with pytest.raises(TraceError, match=words):
            read_exchange_log(content, "a.csv", columns)
        return
    log = read_exchange_log(content, "a.csv", columns)
    assert log.durations_s["total"].tolist() == [total_s]
    assert words in str(log)
    assert bool(log.lines) == bool(words)
