"""Gauges are shared between processes."""

import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fairbed.testbed.backends.gauges import (
    CLOCK_RATIO,
    CONTENDED_S,
    SPEED_RATIO,
    TEMPERATURE_CELSIUS,
    Gauge,
    GaugeAddress,
    Gauges,
)

DEVICE = """
import sys, msgspec
from fairbed.testbed.backends.gauges import *
gauge = Gauge.open(msgspec.json.decode(sys.argv[1], type=GaugeAddress))
gauge[CONTENDED_S] = 2.0 * gauge[SPEED_RATIO]
"""


def test_at_first_only_the_nominal_clock_is_known(tmp_path: Path) -> None:
    gauge = Gauges(tmp_path / "gauges", ["a"])["a"]
    assert gauge[CLOCK_RATIO] == 1.0
    assert all(math.isnan(gauge[column]) for column in (SPEED_RATIO, CONTENDED_S, 3))


def test_a_device_in_another_process_shares_its_row_and_no_other(tmp_path: Path) -> None:
    gauges = Gauges(tmp_path / "gauges", ["a", "b"])
    gauges["b"][SPEED_RATIO] = 0.25
    address = msgspec.json.encode(gauges.address("b")).decode()
    subprocess.run([sys.executable, "-c", DEVICE, address], check=True, timeout=60)
    assert gauges["b"][CONTENDED_S] == 0.5
    assert math.isnan(gauges["a"][CONTENDED_S])


def test_a_restarted_device_finds_what_it_had_written(tmp_path: Path) -> None:
    gauges = Gauges(tmp_path / "gauges", ["a"])
    Gauge.open(gauges.address("a"))[CONTENDED_S] = 3.0
    assert Gauge.open(gauges.address("a"))[CONTENDED_S] == 3.0
    gauges["a"][TEMPERATURE_CELSIUS] = 61.0
    assert Gauge.open(gauges.address("a"))[TEMPERATURE_CELSIUS] == 61.0


def test_an_empty_fleet_has_an_empty_file(tmp_path: Path) -> None:
    Gauges(tmp_path / "gauges", [])
    assert (tmp_path / "gauges").exists()


def test_a_file_that_is_missing_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gauges"):
        Gauge.open(GaugeAddress(path=str(tmp_path / "gauges"), row=0, rows=1))
