"""An emulated device in numbers, and its sensors."""

import math

import pytest

from fairbed import profiles
from fairbed.testbed.emulation.cpu import RecentShare
from fairbed.testbed.emulation.device import (
    EmulatedDevice,
    EmulatedSensors,
    SensorReadings,
    emulated_device,
)

PI = profiles.load("raspberry-pi-4b")


def device() -> EmulatedDevice:
    return EmulatedDevice(
        title="a board",
        cores=4,
        memory_bytes=1 << 30,
        background_load=0.5,
        engine_threads=2,
        speed_ratio=0.4,
        storage_read_bytes_per_s=2e7,
    )


def sensors(speed_ratio: float, clock_ratio: float = 1.0) -> EmulatedSensors:
    now = SensorReadings(speed_ratio, clock_ratio, temperature_celsius=70.0, is_willing=False)
    return EmulatedSensors(device(), readings=lambda: now)


def test_the_speed_is_that_of_the_profile_on_this_machine() -> None:
    assert emulated_device(PI).speed_ratio == pytest.approx(PI.training_speed)
    assert emulated_device(PI, 2.0).speed_ratio == pytest.approx(PI.training_speed / 2.0)
    with pytest.raises(ValueError, match=r"emulation.host_core_speed must be > 0, got 0.0"):
        emulated_device(PI, 0.0)


def test_a_dilated_device_computes_and_reads_slower() -> None:
    slow = device().dilated(4.0)
    assert (slow.speed_ratio, slow.storage_read_bytes_per_s, slow.dilation) == (0.1, 5e6, 4.0)
    assert slow.dilated(2.0).dilation == 8.0


def test_without_readings_the_sensors_report_the_profile() -> None:
    steady = EmulatedSensors(device())
    assert (steady.cores(), steady.memory_bytes(), steady.board()) == (4, 1 << 30, "a board")
    assert (steady.free_cores(), steady.clock_ratio()) == (3.5, 1.0)
    assert (steady.temperature_celsius(), steady.throttled()) == (None, None)
    assert steady.is_willing()


def test_readings_are_reported() -> None:
    hot = sensors(0.24, clock_ratio=0.6)
    assert (hot.clock_ratio(), hot.temperature_celsius(), hot.is_willing()) == (0.6, 70.0, False)
    assert hot.free_cores() == 3.5, "the clock alone takes no core"


@pytest.mark.parametrize("speed_ratio", [0.4, math.nan])
def test_the_speed_of_the_profile_leaves_all_free_cores(speed_ratio: float) -> None:
    assert sensors(speed_ratio).free_cores() == 3.5


def test_missing_speed_lowers_the_free_cores() -> None:
    assert sensors(0.2).free_cores() == pytest.approx(2 * 0.5), "of the threads of the engine"
    starved = EmulatedSensors(device(), RecentShare(value=0.25))
    assert starved.free_cores() == pytest.approx(2 * 0.25)
