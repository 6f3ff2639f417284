"""What a grid depends on, which files it reads, and what another host lacks."""

import hashlib
import py_compile
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fairbed.testbed.compare.cell import CellOutcome, CellResult
from fairbed.testbed.compare.grid import Grid, make_grid
from fairbed.testbed.compare.measures import RunCurves, RunMeasures
from fairbed.testbed.compare.needed_files import (
    GridInputs,
    NeededFile,
    Needs,
    first_missing,
    inputs_of_grid,
    reads_files,
)
from tests.testbed.compare.results import SIZE

PROFILE = Path(__file__).parents[3] / "profiles" / "devices" / "raspberry-pi-4b.toml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRBED_DATA", str(tmp_path / "data"))
    return tmp_path


def grid_of(folder: Path, **more: Any) -> Grid:
    """Return a grid of two arms with an own data set, profile and selector."""
    rng = np.random.default_rng(0)
    (folder / "data").mkdir(exist_ok=True)
    np.savez(folder / "data" / "own.npz", x=rng.normal(size=(200, 60)), y=np.arange(200) % 10)
    (folder / "mine.toml").write_text(PROFILE.read_text())
    (folder / "weights.txt").write_text("1.0")
    (folder / "mine.py").write_text(
        "from fairbed.coordinator.algorithms.selection.uniform import Uniform\n"
        "WEIGHT = float(open('weights.txt').read())\n"
        "class Mine(Uniform): pass\n"
    )
    experiment = {
        "name": "own",
        "rounds": 1,
        "data": {"source": str(folder / "data" / "own.npz")},
        "model": {"name": "softmax"},
        "selection": {"policy": "mine:Mine", "per_round": 1},
        "fleet": [{"profile": str(folder / "mine.toml"), "count": 2}],
        **more,
    }
    arms = [{"name": "a"}, {"name": "b", "set": {"training.epochs": 2}}]
    document = {"experiment": experiment, "seeds": 2, "arm": arms}
    return make_grid(document, folder / "grid", (), None)


def test_own_data_profiles_parts_and_their_files_are_inputs_and_needed_on_hosts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = grid_of(folder)
    monkeypatch.setattr(sys, "pycache_prefix", str(folder / "compiled"))
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(folder / "compiled"))
    assert py_compile.compile(str(folder / "mine.py"), doraise=True)
    inputs = inputs_of_grid(grid)
    assert inputs.of_arm["a"] == inputs.of_arm["b"]
    assert set(inputs.of_arm["a"]) == {
        "fairbed",
        "mine.py",
        "mine.toml",
        "weights.txt",
        f"data {folder}/data/own.npz",
    }
    found = {(file.path, file.is_data) for file in inputs.files}
    own = {(str(folder / name), False) for name in ("mine.toml", "mine.py", "weights.txt")}
    assert found == {("own.npz", True), *own}
    assert first_missing(inputs.files) is None
    (folder / "mine.toml").write_text("name = 1")
    assert first_missing(inputs.files) == (
        f"{folder}/mine.toml must be the file of this machine, got another content; copy it there"
    )
    monkeypatch.setenv("FAIRBED_DATA", str(folder / "elsewhere"))
    data = [file for file in inputs.files if file.is_data]
    assert first_missing(data) == (
        f"{folder}/elsewhere/own.npz must be the file of this machine, got none; copy it there"
    )


@pytest.mark.full
def test_an_experiment_that_cannot_be_set_up_needs_what_it_opened(folder: Path) -> None:
    selection = {"policy": "json:JSONDecoder", "per_round": 1}
    inputs = inputs_of_grid(grid_of(folder, selection=selection))
    assert any(file.path == "own.npz" for file in inputs.files)
    assert {"mine.toml", f"data {folder}/data/own.npz"} < set(inputs.of_arm["a"])


def test_a_grid_of_parts_that_ship_asks_no_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.run", None)
    shipped: dict[str, Any] = {
        "data": {"dataset": "digits"},
        "selection": {"policy": "uniform", "per_round": 1},
    }
    group = {"profile": "raspberry-pi-4b", "count": 2}
    grid = grid_of(folder, **shipped, fleet=[{**group, "link": "lte-driving"}])
    assert set(inputs_of_grid(grid).of_arm["a"]) == {"fairbed"}
    traced = grid_of(folder, **shipped, fleet=[{**group, "link": "trace-lte-att"}])
    assert reads_files(traced.arms[0].experiment)


def test_a_cell_during_which_a_file_changed_has_failed_and_leaves_no_run(folder: Path) -> None:
    file, run = folder / "a.csv", folder / "runs" / "a" / "0"
    file.write_text("1")
    run.mkdir(parents=True)
    sha = hashlib.sha256(b"1").hexdigest()
    needed = NeededFile(path=str(file), is_data=False, sha256=sha)
    inputs = GridInputs({"a": Needs(inputs={}, files=[needed]), "b": Needs(inputs={})})
    curves = RunCurves(
        rounds=(),
        closed_s=(),
        device_s=(),
        updates=(),
        queue_total=(),
        evaluated=(),
        evaluated_s=(),
        evaluated_device_s=(),
        scores={},
    )
    outcome = CellOutcome(measured=RunMeasures(values={}, missing={}, size=SIZE, curves=curves))
    result = CellResult(arm="a", seed=0, folder="runs/a/0", outcome=outcome)
    assert inputs.checked(result, folder) is result
    file.touch()
    assert inputs.checked(result, folder) is result
    file.write_text("2")
    problem = inputs.checked(result, folder).outcome.problem
    assert problem == "a.csv has changed while the grid ran; run it again"
    assert not run.exists()
    other = msgspec.structs.replace(result, arm="b")
    assert inputs.checked(other, folder) is other
