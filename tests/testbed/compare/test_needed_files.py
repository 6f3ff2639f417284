"""Which files a grid reads, and what another host lacks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.testbed.compare.needed_files import first_missing, needed_files
from fairbed.testbed.experiment.file import Experiment, make_experiment

PROFILE = Path(__file__).parents[3] / "profiles" / "devices" / "raspberry-pi-4b.toml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRBED_DATA", str(tmp_path / "data"))
    return tmp_path


def experiment(folder: Path, **more: Any) -> Experiment:
    """Return an experiment with an own data set, profile and selector."""
    rng = np.random.default_rng(0)
    (folder / "data").mkdir(exist_ok=True)
    np.savez(folder / "data" / "own.npz", x=rng.normal(size=(200, 60)), y=np.arange(200) % 10)
    (folder / "mine.toml").write_text(PROFILE.read_text())
    (folder / "mine.py").write_text(
        "from fairbed.coordinator.algorithms.selection.uniform import Uniform\n"
        "class Mine(Uniform): pass\n"
    )
    document = {
        "name": "own",
        "rounds": 1,
        "data": {"source": str(folder / "data" / "own.npz")},
        "model": {"name": "softmax"},
        "selection": {"policy": "mine:Mine", "per_round": 1},
        "fleet": [{"profile": str(folder / "mine.toml"), "count": 2}],
        **more,
    }
    return make_experiment(document, "experiment", (), None)


def test_own_data_profiles_and_plug_ins_are_needed_and_missed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = needed_files([experiment(folder)] * 3)
    found = {(file.path, file.is_data) for file in files}
    own = {(str(folder / name), False) for name in ("mine.toml", "mine.py")}
    assert found == {("own.npz", True), *own}
    assert first_missing(files) is None
    (folder / "mine.toml").write_text("name = 1")
    assert first_missing(files) == (
        f"{folder}/mine.toml must be the file of this machine, got another content; copy it there"
    )
    monkeypatch.setenv("FAIRBED_DATA", str(folder / "elsewhere"))
    data = [file for file in files if file.is_data]
    assert first_missing(data) == (
        f"{folder}/elsewhere/own.npz must be the file of this machine, got none; copy it there"
    )


@pytest.mark.full
def test_an_experiment_that_cannot_be_set_up_needs_what_it_opened(folder: Path) -> None:
    selection = {"policy": "json:JSONDecoder", "per_round": 1}
    files = needed_files([experiment(folder, selection=selection)])
    assert any(file.path == "own.npz" for file in files)
