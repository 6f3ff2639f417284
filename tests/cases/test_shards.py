"""The shard of a device follows its name, not the order of joining."""

import itertools
import logging
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from fairbed.testbed.experiment.data import DataConfig, Dirichlet
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.datasets.loading import load
from fairbed.testbed.experiment.file import Experiment, FleetConfig
from fairbed.testbed.experiment.fleet import fleet_names, plan_fleet
from fairbed.testbed.experiment.shards import FleetData, preferred_shards
from fairbed.testbed.recording.whole_run import _renamed

BOARDS = ("pi-1", "pi-2", "pi-3", "pi-4")
DIGITS: Dataset = load(DataConfig(dataset="digits"), 0, {})
ALIASES: Mapping[str, list[str]] = {"kitchen": ["pi-3"]}


def data(
    names: Sequence[str] = (),
    planned: Sequence[str] = (),
    assignments: Mapping[str, int] | None = None,
    devices: int = 4,
) -> FleetData:
    return FleetData(
        DIGITS,
        DataConfig(dataset="digits", partition=Dirichlet(alpha=0.3)),
        devices=devices,
        seed=0,
        names=names,
        planned=planned,
        earlier_names=lambda name: ALIASES.get(name, []),
        assignments=assignments,
    )


def sizes(fleet: FleetData, order: Sequence[str]) -> dict[str, int]:
    shards = {name: fleet.shard(name) for name in order}
    return {name: shard.n for name, shard in shards.items() if shard is not None}


@pytest.mark.parametrize("order", list(itertools.permutations(BOARDS)))
def test_the_order_of_joining_has_no_effect(order: Sequence[str]) -> None:
    in_replay = sizes(data(BOARDS), BOARDS)
    assert len(set(in_replay.values())) == 4, "the sizes tell the shards apart"
    assert sizes(data(), order) == in_replay
    assert sizes(data(planned=BOARDS), order) == in_replay


@pytest.mark.parametrize("order", list(itertools.permutations(("attic", "pi-9", "cellar"))))
def test_devices_of_a_planned_fleet_have_their_places_in_any_order(order: Sequence[str]) -> None:
    planned = ("cellar", "attic", "pi-9")
    fleet = data(planned=planned, devices=3)
    sizes(fleet, order)
    assert fleet.assignments() == {"cellar": 0, "attic": 1, "pi-9": 2}


def test_another_device_leaves_the_places_of_the_fleet_to_it() -> None:
    fleet = data(planned=("cellar", "attic"))
    sizes(fleet, ("pi-1", "board", "attic", "cellar"))
    assert fleet.assignments()["cellar"] == 0
    assert fleet.assignments()["attic"] == 1


def test_a_device_that_joins_late_gets_a_shard_from_name_and_seed() -> None:
    late = [data(BOARDS[:3], devices=8) for _ in range(2)]
    for fleet in late:
        fleet.shard("garage")
    assert late[0].assignments() == late[1].assignments()
    assert sorted(preferred_shards("garage", BOARDS[:3], 8, 0)) == list(range(8))
    drawn = {preferred_shards("garage", (), 8, seed)[0] for seed in range(20)}
    assert len(drawn) > 1


def test_a_name_whose_shard_is_taken_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    fleet = data()
    with caplog.at_level(logging.WARNING):
        sizes(fleet, BOARDS[:2])
        assert not caplog.messages
        fleet.shard("nano-1")
    assert "nano-1: gets shard" in caplog.text
    assert "because pi-1 joined first" in caplog.text
    assert "fleet.physical" in caplog.text


@pytest.mark.parametrize("names", [(), BOARDS])
def test_a_renamed_device_keeps_its_shard(names: Sequence[str]) -> None:
    before = data(names)
    n_k = sizes(before, BOARDS)["pi-3"]
    resumed = data(names, assignments=before.assignments())
    assert sizes(resumed, ("kitchen", "pi-1")) == {
        "kitchen": n_k,
        "pi-1": sizes(before, BOARDS)["pi-1"],
    }
    assert "pi-3" not in resumed.assignments()
    again = data(names, assignments=resumed.assignments())
    assert sizes(again, ("kitchen",)) == {"kitchen": n_k}


def test_a_device_that_was_renamed_before_the_run_has_the_place_of_its_old_name() -> None:
    n_k = sizes(data(BOARDS), BOARDS)["pi-3"]
    assert sizes(data(BOARDS), ("kitchen",)) == {"kitchen": n_k}
    assert sizes(data(planned=BOARDS), ("kitchen",)) == {"kitchen": n_k}


def test_a_recorded_run_has_a_renamed_device_in_the_place_of_its_old_name() -> None:
    shards = {"pi-1": 0, "kitchen": 2, "garage": 3}
    physical = ("pi-1", "pi-2", "pi-3")
    assert _renamed(physical, shards, physical) == {"pi-3": "kitchen"}
    assert _renamed(physical, shards, ()) == {}


def test_the_names_of_a_fleet_are_those_that_a_plan_gives() -> None:
    groups = (
        FleetConfig(profile="raspberry-pi-4b", count=2),
        FleetConfig(physical=("cellar",)),
        FleetConfig(name="pi", profile="raspberry-pi-4b"),
        FleetConfig(profile="raspberry-pi-4b"),
    )
    experiment = Experiment(name="mine", fleet=groups)
    settings = experiment.emulation
    planned = Experiment(
        name="mine",
        fleet=groups,
        emulation=type(settings)(host_core_speed=1.0),
    )
    assert fleet_names(experiment) == [x.spec.name for x in plan_fleet(planned, {})]
    assert np.unique(fleet_names(experiment)).size == 5
