"""Profiles recorded from a run, and a replay with them that predicts the run."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.file import Experiment, FleetConfig, load_experiment
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.replay.run import replay_experiment
from tests.testbed.replay.fleets import QUICKSTART


def median_tau_s(folder: Path) -> dict[str, float]:
    with RunReader(folder) as reader:
        rows = [row for row in reader.exchanges() if row.was_cold and row.tau_s is not None]
        names = [device.name for device in reader.devices()]
    taus = {name: [row.tau_s or 0.0 for row in rows if row.device == name] for name in names}
    return {name: float(np.median(tau_s)) for name, tau_s in taus.items()}


def recorded(of: Experiment, run: Path, folder: Path) -> Experiment:
    """Return the experiment with the profile of each device that was recorded from the run."""
    groups = []
    for device in plan_fleet(of, os.environ):
        name, profile = device.spec.name, device.profile
        assert profile is not None
        words = ["--run", str(run), "--like", profile.name, "--out", str(folder)]
        assert main(["record", name, *words]) == 0
        groups.append(FleetConfig(profile=str(folder / f"{name}.toml"), name=name[:20]))
    return msgspec.structs.replace(of, fleet=tuple(groups))


@pytest.mark.full
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_recorded_profiles_predict_the_run_that_they_were_recorded_from(
    tmp_path: Path, noise: float, capsys: pytest.CaptureFixture[str]
) -> None:
    of = load_experiment(
        QUICKSTART, ["rounds=80", "selection.policy=uniform", "replay.training=false"]
    )
    noisy = msgspec.structs.replace(of.replay, noise=noise)
    run = tmp_path / "run"
    replay_experiment(msgspec.structs.replace(of, replay=noisy), run, "run", lambda replayed: None)
    again = msgspec.structs.replace(of.replay, costs_from=str(run))
    predicted = msgspec.structs.replace(recorded(of, run, tmp_path / "profiles"), replay=again)
    replay_experiment(predicted, tmp_path / "predicted", "predicted", lambda replayed: None)
    measured, replayed = median_tau_s(run), median_tau_s(tmp_path / "predicted")
    errors = [
        abs(one / other - 1.0)
        for one, other in zip(measured.values(), replayed.values(), strict=True)
    ]
    assert len(errors) == 12
    assert np.median(errors) < 0.002 + 0.5 * noise
    assert max(errors) < 0.005 + noise
    capsys.readouterr()
