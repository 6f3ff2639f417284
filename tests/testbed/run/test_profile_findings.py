"""What a run says about its profiles before it starts: estimated speeds, and powers that differ."""

from fairbed.coordinator.policy.config import ModelConfig
from fairbed.testbed.experiment.file import Experiment, FleetConfig
from fairbed.testbed.run.preflight import energy_interval, mixed_speeds


def experiment(*names: str, model: str = "my.models:Net") -> Experiment:
    fleet = tuple(FleetConfig(profile=name, count=4) for name in names)
    return Experiment(name="boards", fleet=fleet, model=ModelConfig(name=model))


def test_a_fleet_of_measured_and_estimated_speeds_is_named() -> None:
    line = mixed_speeds(experiment("raspberry-pi-3b", "raspberry-pi-4b", "raspberry-pi-3b"))
    assert line is not None
    assert line.startswith("raspberry-pi-3b: some speeds are estimated")
    assert "those of raspberry-pi-4b are measured" in line


def test_a_fleet_of_one_kind_or_of_a_shipped_model_is_not() -> None:
    assert mixed_speeds(experiment("raspberry-pi-5", "raspberry-pi-4b")) is None
    assert mixed_speeds(experiment("raspberry-pi-3b", "raspberry-pi-2b")) is None
    assert mixed_speeds(experiment("raspberry-pi-3b", "raspberry-pi-4b", model="cnn")) is None


def test_powers_that_differ_give_the_interval_of_joules() -> None:
    line = energy_interval(experiment("raspberry-pi-4b", "milk-v-jupiter", "phone-mid"))
    assert line is not None
    assert "raspberry-pi-4b: transfer -39 to +26 %, compute -26 to +21 %" in line
    assert "phone-mid" not in line
    assert energy_interval(experiment("phone-mid")) is None
