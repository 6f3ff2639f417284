"""Traces of mahimahi: packets become payload rates, without loss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces.files import parse_trace
from fairbed.profiles.traces.mahimahi import PAYLOAD_BYTES, parse_mahimahi

stamps = st.lists(st.integers(0, 30_000), min_size=1).map(sorted).filter(lambda ms: ms[-1] > 0)


def text(ms: list[int]) -> bytes:
    return "".join(f"{stamp}\n" for stamp in ms).encode()


def test_counts_the_packets_of_each_bin_as_payload() -> None:
    trace = parse_mahimahi(text([0, 0, 999, 1000, 2500]), "a", 1.0)
    assert trace.period_s == 2.5
    packets = trace.columns["bps"] * trace.durations_s / (8 * PAYLOAD_BYTES)
    assert packets.tolist() == [3.0, 1.0, 1.0]


def test_a_packet_at_the_very_end_belongs_to_the_last_bin() -> None:
    trace = parse_mahimahi(text([500, 2000]), "a", 1.0)
    assert (trace.columns["bps"] > 0).tolist() == [True, True]


@given(stamps, st.sampled_from([0.02, 0.1, 0.3, 1.0, 7.0]))
def test_the_volume_is_that_of_all_packets(ms: list[int], step_s: float) -> None:
    trace = parse_mahimahi(text(ms), "a", step_s)
    assert trace.period_s == ms[-1] / 1e3
    volume = trace.mean("bps") * trace.period_s / 8
    assert volume == pytest.approx(len(ms) * PAYLOAD_BYTES)


@given(stamps)
def test_the_order_within_a_bin_follows_the_clock(ms: list[int]) -> None:
    trace = parse_mahimahi(text(ms), "a", 0.5)
    counts = np.rint(trace.columns["bps"] * trace.durations_s / (8 * PAYLOAD_BYTES))
    for row, start in enumerate(trace.t_s[:-1]):
        inside = [m for m in ms if start * 1e3 <= m < start * 1e3 + 500]
        assert counts[row] == len(inside)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"0\n5\n3\n", "row 3: must be whole milliseconds that do not decrease, got 3 after 5"),
        (b"0\n1.5\n", "row 2: must be whole milliseconds that do not decrease, got 1.5 after 0"),
        (b"0\n-5\n", "row 2: must be whole milliseconds that do not decrease, got -5 after 0"),
        (b"0\nnan\n", "row 2: must be whole milliseconds that do not decrease, got nan after 0"),
        (b"0\n\n5\n", "row 2: must be one whole number of milliseconds, got nothing"),
        (b"0\nx\n", "row 2: must be one whole number of milliseconds, got 'x'"),
        (b"0\n5 6\n", "row 2: must be one whole number of milliseconds, got '5 6'"),
        (b"1\n99999999999\n", "must be at most 10000000 steps, got 1e+08 s in steps of 1 s; take"),
        (b"0\n0\n", "row 2: must end after 0 ms, got 0"),
        (
            b"1\n99999999999999999\n",
            "must be whole milliseconds that do not decrease, got 1e+17 after 1",
        ),
        (
            "0\n²\n".encode(),
            "must be one whole number per line",
        ),
    ],
)
def test_a_bad_file_is_refused_by_row(content: bytes, words: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace(content, "a")
    assert words in str(caught.value)
    assert str(caught.value).startswith("a: ")


def test_a_step_must_be_positive() -> None:
    with pytest.raises(TraceError, match=r"^a: steps must be longer than 0 s, got 0 s; 1 s is"):
        parse_mahimahi(b"1\n", "a", 0.0)
