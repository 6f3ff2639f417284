"""Our trace format: reading gives what was written, and bad rows are refused by number."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces.files import parse_trace
from fairbed.profiles.traces.table import MAX_BYTES, format_table
from fairbed.profiles.traces.trace import COLUMNS, ONE_WAY, Trace


def test_reads_columns_as_series() -> None:
    trace = parse_trace(b"t_s,down_bps,up_bps\n0,5e6,1e6\n1,0,2e6\n", "a.csv")
    assert trace.series("down_bps").values == (5e6, 0.0)
    assert trace.series("up_bps").at(1.5) == 2e6
    assert trace.period_s == 2.0


def test_a_comment_sets_the_end_of_the_last_row() -> None:
    trace = parse_trace(b"# period_s = 4.5\nt_s,clock_ratio\n0,1\n3,0.6\n", "a.csv")
    assert trace.period_s == 4.5
    assert trace.mean("clock_ratio") == pytest.approx((3 * 1.0 + 1.5 * 0.6) / 4.5)


def test_a_single_row_holds_a_second() -> None:
    assert parse_trace(b"t_s,available\n7,1\n", "a.csv").period_s == 1.0


def test_times_count_from_the_first_row() -> None:
    trace = parse_trace(b"t_s,up_bps\n100.5,1\n101.5,2\n", "a.csv")
    assert trace.series("up_bps").t_s == (0.0, 1.0)


def test_megabits_become_bits() -> None:
    trace = parse_trace(b"\xef\xbb\xbft_s, down_mbps, up_mbps\r\n0, 1.5, 0.25\r\n", "a.csv")
    assert (trace.series("down_bps").values, trace.series("up_bps").values) == ((1.5e6,), (25e4,))


def test_a_rate_without_direction_is_used_for_both() -> None:
    trace = parse_trace(b"t_s,mbps\n0,3\n", "a.csv")
    assert trace.series("down_bps") == trace.series("up_bps")
    with pytest.raises(KeyError):
        trace.series("delay_s")


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    rows = draw(st.integers(1, 20))
    steps = draw(st.lists(st.integers(1, 999), min_size=rows, max_size=rows))
    edges = np.concatenate([[0], np.cumsum(steps)]) / 8.0
    names = draw(st.lists(st.sampled_from([*COLUMNS, ONE_WAY]), min_size=1, unique=True))
    values = st.lists(st.integers(1, 1000), min_size=rows, max_size=rows)
    columns = {name: np.array(draw(values)) / 1000.0 for name in names}
    return Trace(edges[:-1], columns, float(edges[-1]))


@given(traces())
def test_what_is_written_is_read_back(trace: Trace) -> None:
    again = parse_trace(format_table(trace, {"source": "a\ntest"}).encode(), "a.csv")
    assert again.period_s == trace.period_s
    assert again.t_s.tolist() == trace.t_s.tolist()
    assert {k: v.tolist() for k, v in again.columns.items()} == {
        k: v.tolist() for k, v in trace.columns.items()
    }


@given(traces(), st.integers(1, 400))
def test_binning_keeps_the_sum_over_time(trace: Trace, eighths: int) -> None:
    binned = trace.binned(eighths / 8.0)
    for name in trace.columns:
        assert binned.mean(name) == pytest.approx(trace.mean(name), abs=1e-9)
    assert np.all(binned.durations_s <= eighths / 8.0 + 1e-9)


@given(traces(), st.floats(0.0, 1.0))
def test_a_quantile_weighs_values_by_their_time(trace: Trace, share: float) -> None:
    for name, values in trace.columns.items():
        found = trace.quantile(name, share)
        below = trace.durations_s[values <= found].sum() / trace.period_s
        assert found in values.tolist()
        assert below >= share - 1e-9


BAD = {
    b"": "a trace must have rows, got an empty file",
    b" \n\n": "a trace must have rows, got an empty file",
    b"# nothing\n": "must have a header, got comments only",
    b"t_s,up_bps\n": "must have rows, got only a header",
    b"time,up_bps\n0,1\n": "row 1: the first column must be t_s, got 'time'",
    b"t_s\n0\n": "row 1: must have a column beside t_s",
    b"t_s,speed\n0,1\n": "row 1: unknown column 'speed'; begin the file with t_s and any of",
    b"t_s,up_bps,up_mbps\n0,1,1\n": "row 1: columns must differ",
    b"t_s,up_bps\n0,1\n1,-2\n": "row 3: up_bps must be from 0 to 1e+12, got -2; correct",
    b"t_s,up_bps\n0,1\n1,nan\n": "row 3: up_bps must be from 0 to 1e+12, got nan; correct",
    b"t_s,up_bps\n0,1\n1,inf\n": "row 3: up_bps must be from 0 to 1e+12, got inf; correct",
    b"t_s,clock_ratio\n0,1\n1,0\n": "row 3: clock_ratio must be from 0.001 to 100, got 0; correct",
    b"t_s,delay_s\n0,61\n": "row 2: delay_s must be from 0 to 60, got 61; correct or delete",
    b"t_s,available\n0,1.5\n": "row 2: available must be from 0 to 1, got 1.5",
    b"# a\n# b\nt_s,up_bps\n0,1\n2,1\n1,1\n": "row 6: t_s must increase, got 1 after 2; correct",
    b"t_s,up_bps\n0,1\n0,1\n": "row 3: t_s must increase, got 0 after 0; correct",
    b"t_s,up_bps\n0,1\nnan,1\n": "row 3: t_s must be finite, got nan; correct",
    b"t_s,up_bps\n0,1\n1,\n": "row 3: must be numbers, got nothing; correct or delete",
    b"t_s,up_bps\n0,1\n1,fast\n": "row 3: must be numbers, got 'fast'; correct or delete",
    b"t_s,up_bps\n0,1\n1,1_0\n": "must be rows of 2 plain numbers",
    b"t_s,up_bps\n0,1\n1\n": "row 3: must have 2 values, got 1; correct the row",
    b"t_s,up_bps\n0,1\n\n2,1\n": "row 3: must have 2 values, got none; correct the row",
    b"t_s,up_bps\n0,1,2\n": "row 2: must have 2 values, got 3; correct the row",
    b"t_s,up_bps\n0,1\n1,\xff\n": "row 3: must be UTF-8 text, got byte 0xff",
    b"t_s,up_bps\n0,1\n1,\0\n": "row 3: must be text, got a zero byte",
    "t_s,up_bps\n0,1\n".encode("utf-16-le"): "with a byte order mark, got UTF-16LE without one",
    b"# period_s = 1\nt_s,up_bps\n0,1\n1,2\n": "period_s must be a number greater than the last",
    b"# period_s = x\nt_s,up_bps\n0,1\n": "period_s must be a number greater than the last",
}


@pytest.mark.parametrize("content", BAD, ids=lambda content: BAD[content][:40])
def test_a_bad_table_is_refused_by_row(content: bytes) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace(content, "a.csv")
    message = str(caught.value)
    assert message.startswith("a.csv: ")
    assert BAD[content] in message
    assert "\n" not in message


@given(
    st.one_of(
        st.binary(max_size=200),
        st.text("t_s,down_bp 0123456789.-enaif\n\r#=", max_size=120).map(
            lambda text: f"t_s,down_bps\n{text}".encode()
        ),
        st.text("0123456789 .-e\n\r", max_size=80).map(str.encode),
    )
)
def test_any_bytes_are_a_valid_trace_or_one_line(content: bytes) -> None:
    try:
        trace = parse_trace(content, "a.csv")
    except TraceError as exc:
        message = str(exc)
        assert message.startswith("a.csv: ")
        assert len(message.splitlines()) == 1
        return
    for name in trace.columns:
        trace.series(name)  # would raise


def test_the_limit_of_size_leaves_room_for_a_week_at_1_hz() -> None:
    assert 7 * 86_400 * len("604800,100000000,100000000\n") < MAX_BYTES


@pytest.mark.full
def test_reading_takes_a_few_times_the_memory_of_the_file() -> None:
    rows = "".join(f"{t},{t * 7919 % 10**8},{t * 104729 % 10**8}\n" for t in range(40_000))
    content = f"t_s,down_bps,up_bps\n{rows}".encode()
    tracemalloc.start()
    trace = parse_trace(content, "a.csv")
    _, read_peak = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    format_table(trace, {})
    _, written_peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read_peak < 6 * len(content)
    assert written_peak < 8 * len(content)
