"""examples/torch-script.toml: a plain torch script, alone, in a live run and in a replay."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the script trains with torch")

from examples import torch_script
from fairbed.coordinator.report.summary import RunSummary, summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.data import data_config
from fairbed.testbed.experiment.datasets import load

EXAMPLES = Path(torch_script.__file__).parent
CHANCE = 0.1


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user with the script and its experiment."""
    for name in ("torch_script.py", "torch-script.toml"):
        (tmp_path / name).write_bytes((EXAMPLES / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "torch-script.toml"
    sys.modules.pop("torch_script", None)


def result_of(path: Path, command: str, *settings: str) -> RunSummary:
    folder = path.parent / command
    options = [part for setting in settings for part in ("--set", setting)]
    options += ["--headless"] if command == "run" else []
    assert main([command, str(path), "--out", str(folder), *options]) == 0
    with RunReader(folder) as reader:
        assert reader.final_model() is not None
        return summarise_run(reader)


def test_the_script_runs_without_fairbed(capsys: pytest.CaptureFixture[str]) -> None:
    torch_script.main(epochs=2)
    match = re.fullmatch(r"accuracy (0\.\d+) of 359 pictures\n", capsys.readouterr().out)
    assert match is not None
    assert float(match[1]) > 4 * CHANCE


def test_its_data_are_those_of_its_function(script: Path) -> None:
    data = load(data_config("torch_script:load"), 0, {})
    pictures = torch_script.load()
    np.testing.assert_array_equal(data.x[7], pictures[7][0].numpy())
    assert (data.n, data.y[7], data.classes) == (len(pictures), int(pictures[7][1]), 10)


@pytest.mark.full
def test_it_trains_in_a_live_run_and_in_a_replay(script: Path) -> None:
    fleet = "fleet=[{name='pi', count=3}]"
    live = result_of(script, "run", "rounds=3", fleet)
    replayed = result_of(script, "replay", "rounds=3")
    for summary in (live, replayed):
        assert summary.accuracy is not None
        assert summary.accuracy.mean is not None
        assert summary.accuracy.mean > 3 * CHANCE
        assert sum(summary.selected.values()) == 2 * 3
    expected = load(data_config("torch_script:load"), 0, {}).sha256
    assert live.provenance.data_sha256 == replayed.provenance.data_sha256 == expected
