"""Sensors of real boards: files and values that their owners published, one recording per board.

The sources are quoted for facts alone: paths, labels and numbers. A file whose reading failed on
the board with EAGAIN or EIO is a pipe here without data, whose reading fails with EAGAIN.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairbed.device_agent.power import WHOLE_RAILS, rails_reader
from fairbed.device_agent.sensors import RealSensors

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs named pipes")

FAILS = None
"""Text of a file that could not be read: a powered-down zone, a disabled channel."""


@dataclass(frozen=True)
class Recording:
    """Files of a board, and what the agent must make of them."""

    source: str
    files: dict[str, str | None]
    """Text by path below /sys/class."""
    celsius: float | None
    """None: no zone is recorded."""
    throttled: tuple[str, ...] | None = None
    """None: the files do not tell."""
    rails: tuple[str, ...] = WHOLE_RAILS
    watts: float | None = None
    """Sum of the rails; None: the board has none of them."""


def _zones(*zones: tuple[str, float | None]) -> dict[str, str | None]:
    """Return the files of thermal zones, from types and degrees Celsius; None cannot be read."""
    files: dict[str, str | None] = {}
    for number, (kind, celsius) in enumerate(zones):
        folder = f"thermal/thermal_zone{number}"
        files[f"{folder}/type"] = kind
        files[f"{folder}/temp"] = FAILS if celsius is None else str(round(1000 * celsius))
    return files


BOARDS = {
    "jetson-agx-orin": Recording(
        source="documentation of fastnvmetrics, docs/adding_a_board.md, JetPack 6.0",
        files={
            **_zones(
                ("cpu-thermal", 47.5),
                ("gpu-thermal", 42.0),
                ("cv0-thermal", None),
                ("cv1-thermal", None),
                ("cv2-thermal", None),
                ("soc0-thermal", 46.0),
                ("soc1-thermal", 44.0),
                ("soc2-thermal", 46.5),
                ("tj-thermal", 47.5),
                ("tboard-thermal", 37.5),
                ("tdiode-thermal", 39.75),
            ),
            "hwmon/hwmon3/name": "ina3221",
            "hwmon/hwmon3/in1_label": "VDD_GPU_SOC",
            "hwmon/hwmon3/in1_input": "843",
            "hwmon/hwmon3/curr1_input": "6170",
            "hwmon/hwmon3/in2_label": "VDD_CPU_CV",
            "hwmon/hwmon3/in2_input": "780",
            "hwmon/hwmon3/curr2_input": "3437",
            "hwmon/hwmon3/in3_label": "VIN_SYS_5V0",
            "hwmon/hwmon3/in3_input": "4968",
            "hwmon/hwmon3/curr3_input": "953",
            "hwmon/hwmon4/name": "ina3221",
            # labels: jetson_stats, issue 381; the failed readings: alumet, issue 212
            "hwmon/hwmon4/in1_label": "NC",
            "hwmon/hwmon4/in1_input": FAILS,
            "hwmon/hwmon4/curr1_input": FAILS,
            "hwmon/hwmon4/in2_label": "VDDQ_VDD2_1V8AO",
            "hwmon/hwmon4/in2_input": "1800",
            "hwmon/hwmon4/curr2_input": "341",
            "hwmon/hwmon4/in3_label": "NC",
            "hwmon/hwmon4/in3_input": FAILS,
            "hwmon/hwmon4/curr3_input": FAILS,
        },
        celsius=47.5,
        rails=("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),
        watts=0.843 * 6.170 + 0.780 * 3.437 + 4.968 * 0.953,
    ),
    "jetson-agx-orin without GPU power": Recording(
        source="laminair/jetson_stats_node_exporter, issue 29, JetPack 6.4.7",
        files=_zones(("cpu-thermal", 47.4), ("gpu-thermal", -256.0)),
        celsius=47.4,
    ),
    "jetson-agx-thor": Recording(
        source="ThorFAN, development notes of 22 September 2026, L4T R38.4.0",
        files={
            **_zones(("tj-thermal", 59.8), ("gpu-thermal", None)),
            "hwmon/hwmon5/name": "ina3221",
            "hwmon/hwmon5/in1_label": "VDD_GPU",
            "hwmon/hwmon5/in1_input": "12040",
            "hwmon/hwmon5/curr1_input": "640",
            "hwmon/hwmon5/in2_label": "VDD_CPU_SOC_MSS",
            "hwmon/hwmon5/in2_input": "12040",
            "hwmon/hwmon5/curr2_input": "960",
            "hwmon/hwmon5/in3_label": "VIN_SYS_5V0",
            "hwmon/hwmon5/in3_input": "5088",
            "hwmon/hwmon5/curr3_input": "1740",
            "hwmon/hwmon5/in7_label": "sum of shunt voltages",
            "thermal/cooling_device0/type": "cpufreq-cpu0",
            "thermal/cooling_device0/cur_state": "0",
            "thermal/cooling_device8/type": "cpu-throttle-alert",
            "thermal/cooling_device8/cur_state": "0",
            "thermal/cooling_device9/type": "gpu-throttle-alert",
            "thermal/cooling_device9/cur_state": "1",
            "thermal/cooling_device12/type": "devfreq-gpu-gpc-0",
            "thermal/cooling_device12/cur_state": "18",
        },
        celsius=59.8,
        throttled=(),  # the GPU is slowed down, and the agent trains on the processor
        rails=("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"),
        watts=12.040 * 0.640 + 12.040 * 0.960 + 5.088 * 1.740,
    ),
    "jetson-nano": Recording(
        source="huataihuang/cloud-atlas, jetson_pcie_err.rst; its PMIC-Die always reads 100",
        files=_zones(
            ("AO-therm", 41.5),
            ("CPU-therm", 34.0),
            ("GPU-therm", 31.0),
            ("PLL-therm", 31.5),
            ("PMIC-Die", 100.0),
            ("thermal-fan-est", 33.0),
            ("iwlwifi", 39.0),
        ),
        celsius=34.0,
    ),
    "jetson-tx2": Recording(
        source="bblr001/TX2_jetson_stats_monitor, README.md, 2023-05-06 15:04:30",
        files=_zones(
            ("BCPU-therm", 40.5),
            ("MCPU-therm", 40.5),
            ("GPU-therm", 39.0),
            ("PLL-therm", 40.5),
            ("Tboard_tegra", 38.0),
            ("Tdiode_tegra", 39.25),
            ("PMIC-Die", 50.0),
            ("thermal-fan-est", 39.4),
        ),
        celsius=40.5,
    ),
    "raspberry-pi-4b": Recording(
        source="gokrazy/kernel, pull request 273, 2020",
        files={
            **_zones(("cpu-thermal", 62.322)),
            "hwmon/hwmon0/name": "cpu_thermal",
            "hwmon/hwmon1/name": "rpi_volt",
            "hwmon/hwmon1/in0_lcrit_alarm": "0",
        },
        celsius=62.322,
        throttled=(),
    ),
    "raspberry-pi-4b with a fan": Recording(
        source="raspberrypi/Raspberry-Pi-OS-64bit, issue 135, 23 Feb 2021",
        files={
            **_zones(("cpu-thermal", 74.01)),
            "thermal/cooling_device0/type": "gpio-fan",
            "thermal/cooling_device0/cur_state": "1",
            "thermal/cooling_device0/max_state": "1",
        },
        celsius=74.01,
        throttled=None,  # a fan that turns limits nothing
    ),
    "laptop": Recording(
        source="intel/thermal_daemon, issue 219",
        files={
            "thermal/cooling_device5/type": "Processor",
            "thermal/cooling_device5/max_state": "3",
            "thermal/cooling_device5/cur_state": "0",
        },
        celsius=None,
        throttled=(),
    ),
}


@pytest.fixture(params=BOARDS)
def recording(request: pytest.FixtureRequest) -> Recording:
    return BOARDS[request.param]


@pytest.fixture
def root(recording: Recording, tmp_path: Path) -> Iterator[Path]:
    writers = []
    for name, text in recording.files.items():
        path = tmp_path / "sys/class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is FAILS:
            os.mkfifo(path)
            writers.append(os.open(path, os.O_RDWR))  # a pipe without a writer reads as empty
        else:
            path.write_text(f"{text}\n")
    yield tmp_path
    for writer in writers:
        os.close(writer)


def test_the_temperature_is_that_of_the_processor(recording: Recording, root: Path) -> None:
    celsius = RealSensors(root).temperature_celsius()
    assert celsius == (None if recording.celsius is None else pytest.approx(recording.celsius))


def test_only_what_limits_the_processor_is_throttling(recording: Recording, root: Path) -> None:
    assert RealSensors(root).throttled() == recording.throttled


def test_the_power_is_the_sum_of_the_rails(recording: Recording, root: Path) -> None:
    read = rails_reader(root, recording.rails)
    watts = None if read is None else read()
    assert watts == (None if recording.watts is None else pytest.approx(recording.watts))
    if recording.rails is not WHOLE_RAILS:
        assert rails_reader(root, WHOLE_RAILS) is None
