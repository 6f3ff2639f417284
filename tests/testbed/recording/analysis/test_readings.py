"""Loads and transfers between two readings of a machine."""

from dataclasses import replace

import pytest

from fairbed.testbed.recording.analysis.rates import link_rate
from fairbed.testbed.recording.analysis.readings import (
    InterfaceCounters,
    Reading,
    busy_transfers,
    others_load,
)

STEP_S = 0.25


def _reading(t_s: float, payload: int = 0, busy_s: float = 0.0, own_s: float = 0.0) -> Reading:
    packets = payload // 1448
    traffic = InterfaceCounters(n_bytes=payload + 66 * packets, packets=packets)
    return Reading(
        t_s=t_s,
        busy_s=busy_s,
        own_s=own_s,
        clock_ratio=None,
        celsius=None,
        throttled=None,
        down=traffic,
        up=None,
        is_linked=True,
        free_bytes=None,
    )


def _at_rates(rates_bps: list[float]) -> list[Reading]:
    total, readings = 0.0, [_reading(0.0)]
    for index, rate in enumerate(rates_bps, 1):
        total += rate * STEP_S / 8.0
        readings.append(_reading(index * STEP_S, int(total)))
    return readings


def test_the_recorders_own_work_is_no_load() -> None:
    readings = [_reading(t, busy_s=1.5 * t, own_s=0.5 * t) for t in (0.0, 1.0, 2.0)]
    others = others_load(readings)
    assert list(others.values) == pytest.approx([1.0, 1.0])
    assert list(others.t_s) == [1.0, 2.0]


def test_an_idle_interface_has_no_transfers() -> None:
    assert busy_transfers(_at_rates([10e3] * 100), "down") == []


def test_background_traffic_and_the_ends_of_transfers_are_left_out() -> None:
    background, half, full = [10e3] * 20, [4e6], [8e6] * 16
    found = busy_transfers(_at_rates(background + half + full + half + background), "down")
    assert len(found) == 4
    assert [one.rate_bps for one in found] == pytest.approx([8e6] * 4, rel=1e-3)
    assert found[0].start_s >= len(background) * STEP_S


def test_the_rate_is_payload_without_headers() -> None:
    found = link_rate(busy_transfers(_at_rates([8e6] * 40), "down"), 10.0, "seconds of downloads")
    assert found.value == pytest.approx(8e6, rel=2e-3)


def test_reset_or_missing_counters_give_no_transfers() -> None:
    readings = [_reading(0.0, 10**9), _reading(1.0, 0), _reading(2.0, 1000)]
    assert busy_transfers(readings, "down") == []
    assert busy_transfers(_at_rates([8e6] * 40), "up") == []


def test_readings_without_processor_time_give_no_load() -> None:
    known = [_reading(t, busy_s=1.5 * t, own_s=0.5 * t) for t in (0.0, 1.0, 2.0, 3.0)]
    unknown = replace(known[2], busy_s=None)
    again = replace(known[1], t_s=1.0)
    others = others_load([known[0], known[1], again, unknown, known[3]])
    assert (list(others.t_s), list(others.values)) == ([1.0], [1.0])
