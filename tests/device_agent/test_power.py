"""Power readings from folders that describe machines, and energy against sums by hand."""

import logging
import math
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import numpy as np
import pytest
from msgspec import structs

from fairbed.device_agent.config import PowerConfig, load_config
from fairbed.device_agent.errors import ConfigError
from fairbed.device_agent.power import (
    SensedPower,
    StatedPower,
    command_reader,
    energy_meter,
    file_reader,
    rails_reader,
)
from fairbed.wire.messages import UploadDone
from fairbed.wire.shard import encode_shard
from tests.device_agent.clock import ManualClock
from tests.device_agent.conftest import AgentSetup
from tests.device_agent.softmax import N_VALUES, examples, softmax_task

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

ORIN = "sys/class/hwmon/hwmon1"
NANO = "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0"


def _files(root: Path, folder: str, **texts: str) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (root / folder / name).write_text(f"{text}\n", encoding="utf-8")


@pytest.fixture
def orin_nano(tmp_path: Path) -> Path:
    """Return a tree as JetPack 6 shows a Jetson Orin Nano: 5.04 V x 1.2 A into the module."""
    _files(tmp_path, "sys/class/hwmon/hwmon0", name="pwmfan", in1_label="VDD_IN")
    _files(tmp_path, ORIN, name="ina3221")
    _files(tmp_path, ORIN, in1_label="VDD_IN", in1_input="5040", curr1_input="1200")
    _files(tmp_path, ORIN, in2_label="VDD_CPU_GPU_CV", in2_input="5000", curr2_input="300")
    _files(tmp_path, ORIN, in3_label="VDD_SOC", in3_input="5000", curr3_input="280")
    return tmp_path


def watts_of(root: Path, *rails: str) -> float | None:
    """Return a reading of the rails; None, too, if there are none."""
    read = rails_reader(root, rails or ("VDD_IN", "POM_5V_IN"))
    return None if read is None else read()


def test_the_rail_of_the_module_is_read_and_not_its_parts(orin_nano: Path) -> None:
    assert watts_of(orin_nano) == pytest.approx(6.048)


def test_named_rails_are_added(orin_nano: Path) -> None:
    assert watts_of(orin_nano, "VDD_CPU_GPU_CV", "VDD_SOC") == pytest.approx(2.9)


def test_an_older_jetson_has_milliwatts(tmp_path: Path) -> None:
    _files(tmp_path, NANO, rail_name_0="POM_5V_IN", in_power0_input="2475")
    _files(tmp_path, NANO, rail_name_1="POM_5V_GPU", in_power1_input="41")
    assert watts_of(tmp_path) == pytest.approx(2.475)


def test_other_machines_have_no_rail(tmp_path: Path) -> None:
    assert rails_reader(tmp_path, ("VDD_IN",)) is None
    assert energy_meter(PowerConfig(), ManualClock(), tmp_path) is None


@pytest.mark.parametrize("text", ["", "n/a", "5040 mV?"])
def test_a_rail_that_cannot_be_read_gives_no_power(orin_nano: Path, text: str) -> None:
    _files(orin_nano, ORIN, curr1_input=text)
    assert watts_of(orin_nano) in (None, pytest.approx(5.04 * 5.04))
    (orin_nano / ORIN / "curr1_input").unlink()
    assert watts_of(orin_nano) is None


@pytest.mark.parametrize(
    ("text", "unit", "watts"),
    [("3.5\n", "W", 3.5), ("3500 mW", "mW", 3.5), ("3500000", "uW", 3.5), ("", "W", None)],
)
def test_a_file_begins_with_a_power(
    tmp_path: Path, text: str, unit: str, watts: float | None
) -> None:
    path = tmp_path / "power"
    path.write_text(text)
    assert file_reader(path, unit)() == (watts if watts is None else pytest.approx(watts))
    assert file_reader(tmp_path / "none", unit)() is None


def test_a_command_prints_a_power() -> None:
    assert command_reader((sys.executable, "-Sc", "print('4.25 W')"), "W")() == 4.25
    assert command_reader((sys.executable, "-Sc", "print('none')"), "W")() is None
    assert command_reader((sys.executable, "-Sc", "raise SystemExit(1)"), "W")() is None
    assert command_reader(("/no/such/meter",), "W")() is None


class Sensor:
    """A sensor that tests set."""

    def __init__(self, watts: float | None) -> None:
        self.watts = watts
        self.readings = 0

    def __call__(self) -> float | None:
        self.readings += 1
        return self.watts


def test_power_is_linear_between_readings() -> None:
    clock, sensor = ManualClock(), Sensor(2.0)
    meter = SensedPower(sensor, clock, 0.5)
    meter.begin(clock.now_s)
    clock.now_s += 1.0
    sensor.watts = 4.0
    meter.sample()
    clock.now_s += 2.0
    sensor.watts = 6.0
    assert meter.lap("download", 3.0) == pytest.approx(0.5 * (2 + 4) * 1.0 + 0.5 * (4 + 6) * 2.0)
    clock.now_s += 0.5
    assert meter.lap("train", 0.5) == pytest.approx(6.0 * 0.5)


@pytest.mark.parametrize("fault", [None, math.nan, -1.0, 1e6])
def test_a_phase_with_a_failed_reading_has_no_energy_and_the_next_one_has(
    fault: float | None,
) -> None:
    clock, sensor = ManualClock(), Sensor(2.0)
    meter = SensedPower(sensor, clock, 0.5)
    meter.begin(clock.now_s)
    clock.now_s, sensor.watts = clock.now_s + 1.0, fault
    meter.sample()
    clock.now_s, sensor.watts = clock.now_s + 1.0, 3.0
    assert meter.lap("download", 2.0) is None
    clock.now_s += 1.0
    assert meter.lap("train", 1.0) == pytest.approx(3.0)


def test_the_time_that_readings_take_belongs_to_the_phases() -> None:
    """A round of a few milliseconds lost a tenth of its energy to its first reading."""
    clock = ManualClock()

    def read() -> float:
        clock.now_s += 0.25
        return 2.0

    meter, started_s = SensedPower(read, clock, 0.5), clock.now_s
    clock.now_s += 0.5
    meter.begin(started_s)
    joules = 0.0
    for phase in ("download", "train"):
        clock.now_s += 1.0
        joules += meter.lap(phase, 1.25) or 0.0
    assert joules == pytest.approx(2.0 * (clock.now_s - started_s))


def test_a_slow_sensor_is_not_read_at_the_end_of_a_phase() -> None:
    clock, sensor = ManualClock(), Sensor(2.0)
    meter = SensedPower(sensor, clock, 0.5, is_slow=True)
    meter.sample()
    sensor.watts = 5.0
    meter.begin(clock.now_s)
    clock.now_s += 1.0
    assert meter.lap("download", 1.0) == pytest.approx(2.0)
    assert sensor.readings == 1


def test_the_time_between_rounds_does_not_count() -> None:
    clock, sensor = ManualClock(), Sensor(2.0)
    meter = SensedPower(sensor, clock, 0.5)
    meter.begin(clock.now_s)
    clock.now_s += 1.0
    meter.lap("download", 1.0)
    meter.end()
    clock.now_s += 100.0
    meter.begin(clock.now_s)
    clock.now_s += 1.0
    assert meter.lap("download", 1.0) == pytest.approx(2.0)


async def test_a_sensor_is_read_in_rounds_only() -> None:
    sensor = Sensor(2.0)
    clock = ManualClock()
    meter = SensedPower(sensor, clock, 0.5)
    async with anyio.create_task_group() as group:
        group.start_soon(meter.run)
        await anyio.sleep(60.0)
        assert sensor.readings == 1
        meter.begin(clock.now_s)
        await anyio.sleep(2.2)
        assert sensor.readings == 1 + 1 + 5
        meter.begin(clock.now_s)
        meter.end()
        await anyio.sleep(2.0)
        assert sensor.readings == 1 + 1 + 5 + 1 + 4, "a round is still on"
        meter.end()
        await anyio.sleep(60.0)
        assert sensor.readings <= 1 + 1 + 5 + 1 + 4 + 1
        group.cancel_scope.cancel()


async def test_the_energy_of_each_phase_is_offered_and_that_of_the_upload_follows(
    setup: AgentSetup,
) -> None:
    setup.host = replace(setup.host, energy=StatedPower(2.0, 3.0, (1.0, 5.0)))
    async with setup.running() as (_, coordinator):
        await coordinator.join(softmax_task(), encode_shard(examples(40)))
        offer, _ = await coordinator.run_round(1, np.zeros(N_VALUES, np.float32))
        done = coordinator.seen[UploadDone][0]
    assert offer.phases.energy is not None
    assert offer.phases.energy.download_j == pytest.approx(2.0 * offer.phases.download_s)
    assert offer.phases.energy.train_j == pytest.approx(3.0 * offer.phases.train_s)
    assert offer.phases.energy.load_j == pytest.approx(3.0 * offer.phases.load_s)
    assert isinstance(done, UploadDone)
    assert done.measured["upload_j"] > 0.0
    energy = structs.asdict(offer.phases.energy)
    transfers_j = energy.pop("download_j") + done.measured["upload_j"]
    others_j = sum(energy.values())
    assert done.measured["energy_low_j"] == pytest.approx(0.5 * transfers_j + others_j)
    assert done.measured["energy_high_j"] == pytest.approx(2.5 * transfers_j + others_j)


def test_an_interval_of_energy_follows_from_those_of_the_powers() -> None:
    joules = {"download": 4.0, "train": 30.0, "upload": 2.0}
    wide = StatedPower(2.0, 3.0, (1.0, 4.0), (2.0, 6.0))
    assert wide.range_j(joules) == (0.5 * 6.0 + 20.0, 2.0 * 6.0 + 60.0)
    assert StatedPower(0.0, 3.0, None, (2.0, 6.0)).range_j({"download": 0.0}) == (0.0, 0.0)
    assert StatedPower(2.0, 3.0).range_j(joules) is None


async def test_a_device_without_a_working_sensor_offers_no_energy(setup: AgentSetup) -> None:
    broken = SensedPower(Sensor(None), setup.host.clock, 0.5)
    for energy in (None, broken):
        setup.host = replace(setup.host, energy=energy)
        async with setup.running() as (_, coordinator):
            await coordinator.join(softmax_task(), encode_shard(examples(40)))
            offer, _ = await coordinator.run_round(1, np.zeros(N_VALUES, np.float32))
            done = coordinator.seen[UploadDone][0]
        assert offer.phases.energy is None
        assert isinstance(done, UploadDone)
        assert done.measured == {}


def test_a_configured_source_without_a_reading_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        config = PowerConfig(file=str(tmp_path / "none"))
        assert energy_meter(config, ManualClock(), tmp_path) is not None
    assert [record.message[:9] for record in caplog.records] == ["[power]: "]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('file = "a"\ncommand = ["b"]', "power: must name one source: rails, file, command, or "),
        ('wats = "a"', "power.wats: unknown key; valid keys are rails, file, command, unit, "),
        ('unit = "kW"\nfile = "a"', "power.unit: "),
        ("compute_w = -1.0", "power.compute_w: "),
    ],
)
def test_a_wrong_source_gives_one_line(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(f'broker_url = "mqtt://b"\nname = "pi"\n[power]\n{text}\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)
