"""Causes of throttling, read from folders that describe machines."""

from pathlib import Path

import pytest

from fairbed.device_agent.sensors import ThrottleReader, pi_throttle_causes

PI = "sys/devices/platform/soc/soc:firmware/get_throttled"


def _file(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_causes_are_unknown_without_the_files(tmp_path: Path) -> None:
    assert ThrottleReader(tmp_path).causes() is None


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x0, ()),
        (0x50005, ("under-voltage", "throttled")),
        (0x80008, ("soft-temperature-limit",)),
        (0xE0002, ("frequency-capped",)),
        (0xF0000, ()),
    ],
)
def test_only_the_current_bits_of_a_raspberry_pi_count(bits: int, reasons: tuple[str, ...]) -> None:
    assert pi_throttle_causes(bits) == reasons


def test_a_raspberry_pi_is_read_each_time(tmp_path: Path) -> None:
    _file(tmp_path, PI, "0\n")
    reader = ThrottleReader(tmp_path)
    assert reader.causes() == ()
    _file(tmp_path, PI, "80008\n")
    assert reader.causes() == ("soft-temperature-limit",)
    _file(tmp_path, PI, "garbage")
    assert reader.causes() is None


def test_a_pi_with_a_newer_kernel_reports_under_voltage(tmp_path: Path) -> None:
    _file(tmp_path, "sys/class/hwmon/hwmon1/name", "rpi_volt\n")
    _file(tmp_path, "sys/class/hwmon/hwmon1/in0_lcrit_alarm", "1\n")
    assert ThrottleReader(tmp_path).causes() == ("under-voltage",)


def test_only_cooling_that_limits_the_processor_counts(tmp_path: Path) -> None:
    devices = "sys/class/thermal/cooling_device"
    _file(tmp_path, f"{devices}0/type", "pwm-fan")
    _file(tmp_path, f"{devices}0/cur_state", "4")
    _file(tmp_path, f"{devices}1/type", "thermal-cpufreq-0")
    _file(tmp_path, f"{devices}1/cur_state", "0")
    reader = ThrottleReader(tmp_path)
    assert reader.causes() == ()
    _file(tmp_path, f"{devices}1/cur_state", "2")
    assert reader.causes() == ("cooling",)
