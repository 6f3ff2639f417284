"""Tables with any column names and units become traces; bad rows are named."""

import pytest

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces import Trace
from fairbed.profiles.traces.columns import Read, parse_columns, read_columns

PHONE = """\
Timestamp;DL_bitrate;ul_kbps;ping_avg_ms;Loss
2019.12.01_12.11.21;1000;50;40;1
2019.12.01_12.11.21;3000;150;60;1
2019.12.01_12.11.22;-;50;40;0
2019.12.01_12.11.24;500;25;20;0
"""

CHOSEN = "t=Timestamp:%Y.%m.%d_%H.%M.%S,down=DL_bitrate:kbit,up=ul_kbps,delay=ping_avg_ms:rtt-ms"


def read(text: str, columns: str) -> Read:
    return read_columns(text.encode(), "log.csv", parse_columns(columns))


def test_columns_are_read_by_name_and_unit() -> None:
    found = read(PHONE, CHOSEN + ",loss=Loss:%")
    trace = found.trace
    assert trace.t_s.tolist() == [0.0, 3.0]
    assert trace.columns["down_bps"].tolist() == [2e6, 5e5]  # rows of one second are averaged
    assert trace.columns["up_bps"].tolist() == [1e5, 2.5e4]
    assert trace.columns["delay_s"].tolist() == pytest.approx([0.025, 0.01])
    assert trace.columns["loss_ratio"].tolist() == [0.01, 0.0]
    assert str(found) == (
        "2 rows, 1 without a value left out, 1 with the time of the row before averaged"
    )


@pytest.mark.parametrize(
    ("times", "columns", "expected"),
    [
        (("0", "2", "3"), "t=at:s", [0.0, 2.0, 3.0]),
        (("1700000000500", "1700000001000", "1700000002500"), "t=at:ms", [0.0, 0.5, 2.0]),
        (("2023-10-01T12:00:00", "2023-10-01T12:00:01.500", "2023-10-01 12:01:00"), "t=at", None),
        (
            ("2023-10-01T12:00:00Z", "2023-10-01T12:00:01.500Z", "2023-10-01T14:01:00+02:00"),
            "t=at:iso",
            None,
        ),
    ],
)
def test_times_are_numbers_or_text(
    times: tuple[str, ...], columns: str, expected: list[float] | None
) -> None:
    text = "at,mbps\n" + "".join(f"{t},1\n" for t in times)
    found = read(text, f"{columns},rate=mbps").trace
    assert found.t_s.tolist() == pytest.approx(expected or [0.0, 1.5, 60.0])


def test_a_clock_in_mhz_is_divided_and_comments_are_ignored() -> None:
    text = "# a board\n\nt_s\tcpu_mhz\n0\t600\n1\t3000\n\n"
    found: Trace = read(text, "t=t_s,clock=cpu_mhz:/600").trace
    assert found.columns["clock_ratio"].tolist() == [1.0, 5.0]  # a reference on a throttled board
    assert found.period_s == 2.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t=at", "must name t and at least one number, got 't=at'"),
        ("down=dl:kbit", "must name t and at least one number"),
        ("t=at,speed=x", "with a NUMBER of t, down, up, rate, delay, jitter, loss, clock, load,"),
        ("t=at:s,down=", "must be NUMBER=COLUMN:UNIT"),
        ("t=at,down=a:bit,down=b:bit", "must name each number once, got down twice"),
        ("t=at,rate=a:bit,up=b:bit", "must name rate alone, or down and up, got both"),
    ],
)
def test_bad_names_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="must") as caught:
        parse_columns(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        (
            "at,dl\n0,1\n",
            "t=time,down=dl:bit",
            "log.csv: row 1: must have the column 'time', got 'at', 'dl'",
        ),
        ("at,dl\n0,1\n", "t=at:s,down=dl", "down=dl: must have a unit of bit, kbit"),
        (
            "at,dl\n0,1\n",
            "t=at:s,down=dl:mph",
            "got the unit 'mph'; write it after a colon: --columns 'down=dl:UNIT'",
        ),
        ("at,dl\n0,1\n", "t=at:s,down=dl:/x", "got the unit '/x'"),
        ("at,dl\n0,1\n1\n", "t=at:s,down=dl:bit", "row 3: must have 2 values, got 1; correct"),
        ("at,dl\n0,fast\n", "t=at:s,down=dl:bit", "row 2: dl must be a number, got 'fast'"),
        ("at,dl\n0,1\n1,-4\n", "t=at:s,down=dl:kbit", "row 3: dl must be from 0 to 1e+12 in the"),
        ("at,dl\n0,inf\n", "t=at:s,down=dl:kbit", "row 2: dl must be from 0 to 1e+12"),
        (
            "at,dl\n3,1\n\n2,1\n",
            "t=at:s,down=dl:bit",
            "row 4: times must not decrease, got 2 s after 3",
        ),
        ("at,dl\nnoon,1\n", "t=at:%H:%M,down=dl:bit", "row 2: must be a time as %H:%M, got 'noon'"),
        (
            "at,dl\nnan,1\n0,-\n",
            "t=at:s,down=dl:bit",
            "must have rows with all chosen values, got 2 w",
        ),
        ("# nothing\n", "t=at:s,down=dl:bit", "must have a header, got comments only"),
    ],
)
def test_a_bad_table_is_one_line(text: str, columns: str, words: str) -> None:
    with pytest.raises(TraceError, match=r"^log\.csv: ") as caught:
        read(text, columns)
    assert words in str(caught.value)


def test_a_field_without_end_is_one_line() -> None:
    with pytest.raises(TraceError, match=r"^log\.csv: must be a table, got: field larger than"):
        read(f"at,dl\n0,{'1' * 140_000}\n", "t=at:s,down=dl:bit")
