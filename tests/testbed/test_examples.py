"""The examples are experiments whose fleets can be planned."""

from pathlib import Path

import pytest

from testbed.experiment import load_experiment
from testbed.fleet import plan_fleet

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_fleet_of_an_example_can_be_planned(path: Path) -> None:
    experiment = load_experiment(path, ["emulation.host_core_speed=4.0"])
    devices = plan_fleet(experiment, {})
    assert len(devices) == experiment.devices > 0
    assert len({device.spec.name for device in devices}) == len(devices)
