"""The examples are experiments whose fleets can be planned, or replayed."""

from pathlib import Path

import pytest

from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.experiment.fleet import MAX_EMULATED, plan_fleet
from fairbed.testbed.replay.setup import linear_fleet_of
from fairbed.testbed.replay.vector_fleet import is_vector_fleet, vector_fleet_of

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_fleet_of_an_example_can_be_planned(path: Path) -> None:
    experiment = load_experiment(path, ["emulation.host_core_speed=4.0"])
    if is_vector_fleet(experiment):
        experiment = load_experiment(path, [f"fleet.0.count={MAX_EMULATED + 1}"])
        names = list(vector_fleet_of(experiment).names)
    elif any(group.model is not None for group in experiment.fleet):
        names = list(linear_fleet_of(experiment).names)
    else:
        names = [device.spec.name for device in plan_fleet(experiment, {})]
    assert len(names) == experiment.devices > 0
    assert len(set(names)) == len(names)
