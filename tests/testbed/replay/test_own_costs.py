"""A replay with the costs of a live run takes what the emulated devices of that run take."""

import os
from pathlib import Path

import msgspec
import pytest

from fairbed.coordinator.report.summary import summarise_run, summary_table
from fairbed.coordinator.store import RunReader
from fairbed.testbed.emulation.cpu import PacedSection
from fairbed.testbed.emulation.device import EmulatedDevice
from fairbed.testbed.emulation.work import StepCost, WorkCosts
from fairbed.testbed.experiment.file import Experiment, FleetConfig, load_experiment
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.run_folder import WORK

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.toml"
COSTS = WorkCosts(
    train=StepCost(fixed_s=0.004, per_example_s=0.0003),
    evaluate=StepCost(fixed_s=0.002, per_example_s=0.0001),
    load_s=2.0,
)
"""As a live run measures them on its machine, one of whose cores is 1.5 of the reference's."""


def live_train_s(device: EmulatedDevice, experiment: Experiment, n_k: int) -> float:
    """Return how long an emulated device trains, step by step, on a clock that only it moves."""
    section = PacedSection(device.speed_ratio, None, now=0.0, cpu=0.0)
    now, size = 0.0, experiment.training.batch_size
    for _ in range(experiment.training.epochs):
        for start in range(0, n_k, size):
            charged_s = section.cpu + COSTS.train.seconds(min(size, n_k - start))
            now += section.advance(now, charged_s)
    return now + section.finish(now, section.cpu)


def live_load_s(device: EmulatedDevice) -> float:
    """Return how long an emulated device opens a session, without reading its storage."""
    section = PacedSection(device.speed_ratio, None, now=0.0, cpu=0.0)
    now = section.advance(0.0, COSTS.load_s)
    return now + section.finish(now, section.cpu)


def test_a_replay_with_the_costs_of_a_run_trains_as_long_as_its_devices(tmp_path: Path) -> None:
    fleet = tuple(
        FleetConfig(profile=name, count=2) for name in ("raspberry-pi-zero-2w", "raspberry-pi-4b")
    )
    settings = ["rounds=4", "selection.policy=uniform", "replay.training=false"]
    live = msgspec.structs.replace(load_experiment(QUICKSTART, settings), fleet=fleet)
    run = tmp_path / "run"
    run.mkdir()
    (run / "experiment.toml").write_text(live.resolved_toml())
    (run / WORK).write_bytes(msgspec.json.encode(COSTS))
    own = msgspec.structs.replace(live.replay, costs_from=str(run))
    replayed = msgspec.structs.replace(live, replay=own)
    replay_experiment(replayed, tmp_path / "replay", "replay", lambda played: None)
    devices = {planned.spec.name: planned.spec.device for planned in plan_fleet(live, os.environ)}
    with RunReader(tmp_path / "replay") as reader:
        exchanges, summary = reader.exchanges(), summarise_run(reader)
    assert len({x.device for x in exchanges}) == 4
    for x in exchanges:
        device = devices[x.device]
        assert device is not None
        assert x.train_s == pytest.approx(live_train_s(device, live, x.n_k), rel=1e-6)
    assert all(x.was_cold == ((x.load_s or 0.0) > 0.0) for x in exchanges)
    for x in (x for x in exchanges if x.was_cold):
        device = devices[x.device]
        assert device is not None
        assert x.load_s == pytest.approx(live_load_s(device), rel=0.02), "it reads few bytes"
    assert f"costs      of training as measured in {run}" in summary_table(summary)
