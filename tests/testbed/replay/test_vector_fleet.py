"""Vector fleets: the devices of a fleet drawn one by one, and small stores."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from fairbed import profiles
from fairbed.coordinator.policy.config import SelectionConfig, TrainingConfig
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import FleetStatsRow
from fairbed.profiles import to_toml
from fairbed.profiles.population import Distributed, EnergyPopulation
from fairbed.testbed.cli.main import main
from fairbed.testbed.emulation.power import phase_power
from fairbed.testbed.emulation.work import TaskCosts
from fairbed.testbed.experiment.file import (
    EmulationConfig,
    Experiment,
    ExperimentError,
    FleetConfig,
    OutageConfig,
    ReplayConfig,
    load_experiment,
)
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.replay.engine.engine import ReplayedRound
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import setup_of
from fairbed.testbed.replay.vector_fleet import vector_fleet_of
from fairbed.testbed.replay.world.columns import MeanConditions, columns_of
from fairbed.testbed.replay.world.profile_world import ProfileWorld

MILLION = Path(__file__).parents[3] / "examples" / "million-phones.toml"
SMALL = ["fleet.0.count=12000", "selection.per_round=40", "rounds=4"]
DAY_S = 86_400.0


def phones(count: int, *, seed: int = 5, **others: object) -> Experiment:
    group = FleetConfig(population="phones-2025", count=count, **others)  # type: ignore[arg-type]
    return Experiment(name="phones", seed=seed, fleet=(group,))


@pytest.mark.parametrize("link", [None, "lte-steady"])
def test_devices_equal_those_of_an_emulated_run(link: str | None) -> None:
    experiment = phones(200, link=link)
    means, _ = columns_of(plan_fleet(experiment, {}))
    fleet = vector_fleet_of(experiment)
    assert list(fleet.names) == [device.spec.name for device in plan_fleet(experiment, {})]
    for column in fields(MeanConditions):
        found, expected = getattr(fleet.means, column.name), getattr(means, column.name)
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=column.name)


def test_devices_of_a_large_fleet_compute_what_fits_into_their_memory() -> None:
    count = 10_001
    costs = TaskCosts(
        step_s=0.1,
        example_s=0.0,
        evaluation_step_s=0.0,
        evaluation_example_s=0.0,
        moved_bytes=1.0,
        memory_bytes=0.25 * 2**30,
        memory_example_bytes=0.061 * 2**30,
        memory_least_bytes=0.25 * 2**30,
    )
    replay = ReplayConfig(examples=40, task_costs=costs)
    training = TrainingConfig(batch_size=20)
    given = structs.replace(with_sections(phones(count), replay), training=training)
    with pytest.raises(
        ExperimentError, match=r"of 10,001 that are too small: phones-2025-\d+: .* set training"
    ):
        setup_of(given)
    auto = structs.replace(given, training=structs.replace(training, micro_batch="auto"))
    world = setup_of(auto).world
    gib = vector_fleet_of(auto).memory_bytes / 2**30
    parts = np.minimum(20, np.floor((0.75 * gib - 0.25) / 0.061))
    assert len(set(parts.tolist())) > 1
    assert isinstance(world, ProfileWorld)
    np.testing.assert_allclose(world._work.train_s, 2 * 0.1 * np.ceil(20 / parts))


def powered(folder: Path) -> Path:
    """Return the file of a population with a power: phones-2025 has none."""
    population = profiles.load_population("phones-2025")
    busy = Distributed(quantiles=((0.1, 2.0), (0.9, 6.0)), tag="literature", source="made up")
    idle = Distributed(value=0.5, tag="literature", source="made up")
    path = folder / "powered.toml"
    energy = EnergyPopulation(idle_w=idle, train_w=busy)
    path.write_text(to_toml(structs.replace(population, energy=energy)), encoding="utf-8")
    return path


def test_the_power_of_devices_equals_that_of_devices_drawn_one_by_one(tmp_path: Path) -> None:
    experiment = phones(50)
    group = structs.replace(experiment.fleet[0], population=str(powered(tmp_path)))
    experiment = structs.replace(experiment, fleet=(group,))
    one_by_one = [phase_power(device.profile) for device in plan_fleet(experiment, {})]
    powers = vector_fleet_of(experiment).powers
    assert len(powers) == 50
    assert len({power.compute_w for power in one_by_one}) > 40
    for found, expected in zip(powers[:], one_by_one, strict=True):
        assert found.transfer_w == expected.transfer_w == 0.5
        assert found.compute_w == pytest.approx(expected.compute_w)


def test_exchanges_of_a_vector_fleet_have_an_energy_if_its_population_has_a_power(
    tmp_path: Path,
) -> None:
    for population, has_energy in (("phones-2025", False), (str(powered(tmp_path)), True)):
        experiment = load_experiment(MILLION, [*SMALL, f'fleet.0.population="{population}"'])
        folder = tmp_path / str(has_energy)
        replay_experiment(experiment, folder, "run", lambda replayed: None)
        with RunReader(folder) as reader:
            assert all((x.energy_j is not None) is has_energy for x in reader.exchanges())


def test_availability_equals_that_of_devices_drawn_one_by_one() -> None:
    experiment = phones(400)
    drawn = [device.tracks.available for device in plan_fleet(experiment, {})]
    availability = vector_fleet_of(experiment).availability
    instants = np.linspace(0.0, DAY_S, 240, endpoint=False)
    there = np.array([availability.at(float(t)) for t in instants])
    one_by_one = np.array([[series.at(float(t)) for series in drawn] for t in instants])
    np.testing.assert_allclose(there.mean(axis=0), one_by_one.mean(axis=0), atol=0.01)
    assert abs(there.mean(axis=1) - one_by_one.mean(axis=1)).max() < 0.1
    assert there.mean(axis=1).std() < 0.03, "devices are spread over the day"


def test_availability_has_a_seed_of_its_own() -> None:
    one, again, other = (vector_fleet_of(phones(50, seed=seed)) for seed in (1, 1, 2))
    assert (
        one.availability.phase.tolist()
        == again.availability.phase.tolist()
        != other.availability.phase.tolist()
    )
    assert one.means.up_bps.tolist() == again.means.up_bps.tolist() != other.means.up_bps.tolist()
    everywhere = vector_fleet_of(phones(50, always_available=True)).availability
    assert not everywhere.varies
    assert everywhere.at(1234.5).all()


def test_the_scaled_down_example_stores_few_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    assert main(["replay", str(MILLION), *settings, "--json", "--out", str(tmp_path / "a")]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["devices"], summary["rounds_completed"]) == (12_000, 4)
    assert summary["fairness"]["invariant_holds"] is True
    assert summary["fairness"]["min_selection_rate"] == 0.0
    assert summary["exchange"]["count"] == 160
    with RunReader(tmp_path / "a") as reader:
        known, stats = reader.devices(), reader.fleet_stats()
        counts = reader.columns(FleetStatsRow, ("round", "selected"), "ORDER BY round")
        assert len(reader.selections(4)) == 40
    assert stats is not None
    assert len(known) == stats.selected == len(summary["selected"]) <= 160
    assert sum(summary["selected"].values()) == 160
    assert [round_id for round_id, _ in counts] == [1, 2, 3, 4]


def test_a_resumed_vector_fleet_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    experiment = load_experiment(MILLION, SMALL)

    def until(last: int) -> Callable[[ReplayedRound], None]:
        def listener(replayed: ReplayedRound) -> None:
            if replayed.choice.round == last:
                raise RuntimeError("cut")

        return listener

    replay_experiment(experiment, tmp_path / "whole", "whole", lambda replayed: None)
    with pytest.raises(RuntimeError, match="cut"):
        replay_experiment(experiment, tmp_path / "cut", "cut", until(2), checkpoint_s=0.0)
    replay_experiment(experiment, tmp_path / "cut", "cut", lambda replayed: None)
    found = []
    for name in ("whole", "cut"):
        with RunReader(tmp_path / name) as reader:
            found.append((reader.fleet_stats(), reader.exchanges(), summarise_run(reader).selected))
    assert found[0] == found[1]


def test_a_linear_world_can_be_a_vector_fleet(tmp_path: Path) -> None:
    group = FleetConfig(model="linear", theta=(1.0, 1.0, 0.2), count=11_000, name="linear")
    experiment = Experiment(
        name="linear",
        rounds=3,
        selection=SelectionConfig(per_round=30, beta=0.001),
        fleet=(group, FleetConfig(model="linear", theta=(4.0, 1.0, 1.4), count=10, name="slow")),
    )
    replay_experiment(experiment, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        summary = summarise_run(reader)
    assert (summary.devices, len(summary.selected)) == (11_010, 90)
    assert summary.fairness.invariant_holds


def test_a_fleet_that_cannot_be_a_vector_fleet_is_refused() -> None:
    many = 10_001
    replay = ReplayConfig(examples=10)
    outage = OutageConfig(start_s=1.0, duration_s=2.0)
    refused = [
        (phones(many), "replay.examples: must be given for 10,001 devices"),
        (
            with_sections(phones(many, trace="x"), replay),
            "must be drawn from a population, without trace",
        ),
        (with_sections(phones(many, outage=(outage,)), replay), "must be drawn from a population"),
        (
            with_sections(phones(many), replay, EmulationConfig(unavailable_as="unplugged")),
            "emulation.unavailable_as: must be unwilling",
        ),
    ]
    for experiment, message in refused:
        with pytest.raises(ExperimentError, match=message):
            setup_of(experiment)
    with pytest.raises(ExperimentError, match="at most 10,000 devices can be emulated, got 10,001"):
        plan_fleet(phones(many), {})


def with_sections(
    experiment: Experiment, replay: ReplayConfig, emulation: EmulationConfig | None = None
) -> Experiment:
    return Experiment(
        name=experiment.name,
        fleet=experiment.fleet,
        replay=replay,
        emulation=emulation or EmulationConfig(),
    )
