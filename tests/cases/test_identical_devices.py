"""Devices with one distribution of data: "worst 10 %" is noise of the tests, with a warning."""

from pathlib import Path

import msgspec
import pytest

from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main

GRID = """
seeds = 2
baseline = "fedavg"
primary = "accuracy_worst10"

[[arm]]
name = "fedavg"

[[arm]]
name = "term"
set = { "aggregation.rule" = "term" }

[experiment]
rounds = 10
data = { dataset = "digits", partition = { kind = "iid" } }
model = { name = "softmax" }
training = { epochs = 5, batch_size = 20, learning_rate = 0.1 }
selection = { policy = "uniform", per_round = 10 }
evaluation = { every = 10 }

[[experiment.fleet]]
profile = "raspberry-pi-4b"
count = 30
"""


def test_thirty_devices_with_twelve_tests_are_mostly_noise_in_grid_and_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "alike.toml").write_text(GRID, encoding="utf-8")
    out = tmp_path / "out"
    assert main(["compare", str(tmp_path / "alike.toml"), "--out", str(out), "--no-figures"]) == 0
    report = msgspec.json.decode((out / "compare.json").read_bytes())
    (warning,) = [line for line in report["warnings"] if "noise" in line]
    assert warning.startswith("test-noise in 4 of 4 runs (all arms): for example mostly noise of ")
    assert warning in capsys.readouterr().out
    with RunReader(out / "runs" / "fedavg" / "0") as reader:
        summary = summarise_run(reader)
    accuracy, noise = summary.accuracy, summary.accuracy.noise
    assert noise is not None
    assert (noise.examples_min, noise.examples_max) == (12, 12)
    assert {"worst 10 %", "variance"} <= set(noise.mostly_noise)
    assert accuracy.worst10 is not None
    assert noise.worst10_shrunken is not None
    assert accuracy.pooled is not None
    assert abs(noise.worst10_shrunken - accuracy.pooled) < 0.08 < accuracy.pooled - accuracy.worst10
    assert any(note.startswith("mostly noise") for note in summary.evaluation_notes)
