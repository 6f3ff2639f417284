"""Numbers with units are read, or refused with the valid units."""

from collections.abc import Callable

import pytest

from fairbed.profiles import LinkQueue
from fairbed.testbed.units import duration_s, queue_depth, rate_bps, ratio, size_bytes


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (rate_bps, "10mbit", 10e6),
        (rate_bps, "0.5 Gbit", 5e8),
        (rate_bps, "9600bit", 9600.0),
        (duration_s, "20ms", 0.02),
        (duration_s, "0s", 0.0),
        (duration_s, "1.5h", 5400.0),
        (ratio, "1%", 0.01),
        (ratio, ".25", 0.25),
    ],
)
def test_reads(read: Callable[[str], float], text: str, value: float) -> None:
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (
            rate_bps,
            "10",
            "must be a rate such as 10mbit (units: bit, kbit, mbit, gbit, MB/s), got",
        ),
        (rate_bps, "10mb", "'mb' may be of bits or of bytes"),
        (rate_bps, "10ms", "must be a rate such as 10mbit"),
        (rate_bps, "0mbit", "must be a rate above 0"),
        (rate_bps, "-1mbit", "must be a rate such as"),
        (rate_bps, "1e999mbit", "must be a rate such as"),
        (duration_s, "20", "must be a duration such as 20ms (units: us, ms, s, min, h), got '20'"),
        (duration_s, "", "must be a duration"),
        (duration_s, "nan s", "must be a duration"),
        (ratio, "101%", "must be a share from 0 to 1, got '101%'"),
        (ratio, "half", "must be a share such as 1% or 0.01 (units: %, none), got 'half'"),
    ],
)
def test_refuses(read: Callable[[str], float], text: str, words: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        read(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("512M", 512 << 20), ("512mb", 512 << 20), ("512MiB", 512 << 20), ("1.5G", 3 << 29)],
)
def test_memory_is_counted_in_powers_of_1024(text: str, n_bytes: int) -> None:
    assert size_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "512", "lots", "0M", "-1M", "1e400G", "5mbit"])
def test_an_invalid_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be an amount of memory such as 512M"):
        size_bytes(text)


def test_a_depth_is_a_time_or_an_amount() -> None:
    assert queue_depth("300ms") == LinkQueue(depth_s=0.3)
    assert queue_depth(" 1.5s ") == LinkQueue(depth_s=1.5)
    assert queue_depth("64k") == LinkQueue(depth_bytes=1 << 16)


@pytest.mark.parametrize("text", ["", "0ms", "61s", "300", "2k", "17m", "0k", "long", "nan s"])
def test_a_depth_that_no_queue_can_have_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time up to 60s such as 300ms, or an amount"):
        queue_depth(text)
