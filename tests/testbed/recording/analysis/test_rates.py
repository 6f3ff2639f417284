"""Link rates from transfers."""

import math

import numpy as np
import pytest

from fairbed.testbed.emulation.tcp import slow_start_s, transmission_s
from fairbed.testbed.recording.analysis.findings import NotMeasured
from fairbed.testbed.recording.analysis.rates import (
    MIN_LINE_RATIO,
    Transfer,
    link_rate,
    one_way_delay,
    rate_series,
    transfer,
    whole_transfer,
)

MB = 1_000_000


def _steady(n: int, rate_bps: float = 8e6, every_s: float = 3.0) -> list[Transfer | None]:
    ends = [every_s * (i + 1) for i in range(n)]
    return [Transfer(end - 8.0 * MB / rate_bps, end, MB) for end in ends]


def test_the_round_trip_is_no_part_of_the_rate() -> None:
    seen = transfer(end_s=10.0, elapsed_s=1.1, round_trip_s=0.1, n_bytes=MB)
    assert seen is not None
    assert seen.rate_bps == pytest.approx(8e6)
    assert seen.start_s == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("elapsed_s", "round_trip_s", "n_bytes"),
    [(1.0, 0.9, MB), (1.0, 2.0, MB), (0.0, 0.0, MB), (math.nan, 0.0, MB), (1.0, 0.0, 1000)],
    ids=["latency", "less than a round trip", "no time", "no number", "small"],
)
def test_transfers_that_show_only_latency_are_rejected(
    elapsed_s: float, round_trip_s: float, n_bytes: int
) -> None:
    assert transfer(5.0, elapsed_s, round_trip_s, n_bytes) is None


def test_a_steady_link_has_the_median_of_its_transfers() -> None:
    transfers = _steady(20)
    transfers[3] = Transfer(0.0, 30.0, MB)  # one that stalled
    found = link_rate(transfers, 60.0, "models")
    assert found.value == pytest.approx(8e6)
    assert found.series is None


def test_two_transfers_are_too_few() -> None:
    with pytest.raises(NotMeasured, match=r"needs 3 models .* got 2 of 4"):
        link_rate([*_steady(2), None, None], 60.0, "models")


def test_a_few_transfers_that_differ_do_not_make_a_varying_link() -> None:
    few = [*_steady(3, 8e6), *_steady(3, 4e6)]
    assert link_rate(few, 60.0, "models").series is None


def test_a_varying_link_keeps_the_volume_of_each_transfer() -> None:
    rng = np.random.default_rng(5)
    transfers: list[Transfer | None] = []
    now = 0.0
    for _ in range(40):
        now += float(rng.uniform(0.0, 3.0))
        end = now + float(rng.uniform(0.5, 2.0))
        transfers.append(Transfer(now, end, int(rng.integers(MB // 10, MB))))
        now = end
    found = link_rate(transfers, now + 5.0, "models")
    assert found.series is not None
    assert found.series.period_s == pytest.approx(now + 5.0)
    assert found.value == pytest.approx(found.series.mean)
    for item in transfers:
        assert item is not None
        assert found.series.integral(item.start_s, item.end_s) == pytest.approx(8.0 * item.n_bytes)


def test_overlapping_transfers_still_make_a_series() -> None:
    series = rate_series(
        [Transfer(0.0, 4.0, MB), Transfer(1.0, 2.0, MB), Transfer(1.5, 5.0, MB)], 5.0
    )
    assert list(series.t_s) == sorted(set(series.t_s))


def test_the_delay_is_half_of_the_quick_round_trips() -> None:
    found = one_way_delay([0.060] * 9 + [0.5] * 11, "echoes")
    assert found.value == pytest.approx(0.030)
    with pytest.raises(NotMeasured, match="needs 3 echoes, got 1"):
        one_way_delay([0.1], "echoes")


@pytest.mark.parametrize("n_bytes", [20_000, 86_634, 345_000, MB])
@pytest.mark.parametrize("down_bps", [5e5, 4e6, 2e7])
def test_the_waiting_of_tcp_is_not_the_line_s(n_bytes: int, down_bps: float) -> None:
    trip_s = 0.02
    carried_s = 8.0 * n_bytes / down_bps
    waited_s = float(slow_start_s(8.0 * n_bytes, np.array([carried_s]), np.array([trip_s]))[0])
    assert transmission_s(8.0 * n_bytes, carried_s + waited_s, trip_s) == pytest.approx(carried_s)
    seen = whole_transfer(10.0, trip_s + waited_s + carried_s, trip_s, n_bytes)
    if seen is None:  # hardly anything but waiting
        assert carried_s < MIN_LINE_RATIO * (trip_s + waited_s + carried_s)
    else:
        assert seen.rate_bps == pytest.approx(down_bps)


def test_no_bytes_are_no_transfer() -> None:
    assert whole_transfer(10.0, 1.0, 0.1, 0) is None


def test_a_connection_without_a_slow_start_does_not_wait() -> None:
    assert transmission_s(8.0 * MB, 0.05, 0.04) == 0.05
