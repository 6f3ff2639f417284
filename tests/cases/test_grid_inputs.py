"""Cases of grids whose parts change between two calls: no arm mixes two experiments."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fairbed.testbed.cli.main import main

CASES = Path(__file__).parent / "grids"
PROFILE = Path(__file__).parents[2] / "profiles" / "devices" / "raspberry-pi-4b.toml"

EXPERIMENT = """
name = "own"
rounds = 2
[data]
source = "inputs_data:load"
[model]
name = "softmax"
[selection]
policy = "inputs_part:Mine"
per_round = 2
[replay]
costs_from = "base"
[[fleet]]
profile = "mine.toml"
link = "wifi-board"
trace = "link.csv"
count = 4
"""
PART = """
import numpy as np
from inputs_helper import order
from fairbed.coordinator.algorithms.selection.uniform import Uniform
class Mine(Uniform):
    def select(self, candidates, k, rng):
        return super().select(candidates, k, rng)
"""
DATA = """
import numpy as np
def load():
    rng = np.random.default_rng(1)
    y = np.arange(200) % 10
    return np.loadtxt("x.csv", dtype=np.float32), y
"""
GRID = """
experiment = "own.toml"
seeds = 1
[[arm]]
name = "mine"
[[arm]]
name = "plain"
set = { "selection.policy" = "uniform" }
"""


def grid(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Run the grid; return what it prints."""
    capsys.readouterr()
    assert main(["compare", "grid.toml", "--no-figures", "--jobs", "1", *options]) == 0
    found = capsys.readouterr()
    return found.out + found.err


def edited(name: str, before: str, after: str) -> None:
    path = Path(name)
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory with a grid of own parts, data, profile, trace and costs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # edits may be as quick as a clock's tick
    rng = np.random.default_rng(0)
    np.savetxt("x.csv", rng.normal(size=(200, 60)) + (np.arange(200) % 10)[:, None])
    shutil.copy(PROFILE, "mine.toml")
    rows = "\n".join(f"{t},{4 + t % 3},{2 + t % 3}" for t in range(60))
    Path("link.csv").write_text(f"t_s,down_mbps,up_mbps\n{rows}\n")
    Path("own.toml").write_text(EXPERIMENT)
    Path("inputs_part.py").write_text(PART)
    Path("inputs_helper.py").write_text("order = 1\n")
    Path("inputs_data.py").write_text(DATA)
    Path("grid.toml").write_text(GRID)
    base = ["replay", "own.toml", "--set", "replay.costs_from=shipped", "--out", "base"]
    assert main([*base, "--set", "selection.policy=uniform"]) == 0
    return tmp_path


BOTH, ONE = ("2 of 2 cells are done again, because {} changed", "1 of 2 cells are done again")


@pytest.mark.full
def test_a_change_of_any_input_does_its_cells_again_and_no_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "done again" not in grid(capsys)
    out = folder / "comparisons" / "grid"
    costs = "costs of softmax from base"
    manifest = json.loads((out / "grid.json").read_bytes())["inputs"]
    assert set(manifest["plain"]) == {
        "fairbed",
        "inputs_data.py",
        "mine.toml",
        "link.csv",
        "data inputs_data:load",
        costs,
    }
    assert set(manifest["mine"]) - set(manifest["plain"]) == {"inputs_part.py", "inputs_helper.py"}
    before = (out / "compare.json").read_bytes()
    assert "done again" not in grid(capsys)
    assert (out / "compare.json").read_bytes() == before

    edited("inputs_helper.py", "1", "2")
    assert "1 of 2 cells are done again, because inputs_helper.py changed" in grid(capsys)
    assert (out / "replaced" / "mine" / "0").is_dir()
    edits: list[tuple[Callable[[], None], str]] = [
        (lambda: edited("x.csv", "e+00", "e+01"), "data inputs_data:load"),
        (lambda: edited("mine.toml", "[", "# a remark\n["), "mine.toml"),
        (lambda: edited("link.csv", "0,4,2", "0,5,2"), "link.csv"),
        (lambda: edited("base/experiment.toml", "step_s = ", "step_s = 1"), costs),
    ]
    for edit, _ in edits:
        edit()
    printed = grid(capsys)
    assert "2 of 2 cells are done again" in printed
    runs = [json.loads((out / "grid.json").read_bytes())["inputs"][arm] for arm in manifest]
    for own, old in zip(runs, manifest.values(), strict=True):
        assert {name for _, name in edits} <= {name for name in own if own[name] != old[name]}


@pytest.mark.full
def test_a_run_that_began_between_two_edits_is_not_continued(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after: the grid was killed, an edit was undone."""
    grid(capsys)
    edited("inputs_helper.py", "1", "2")
    options = ["--set", "rounds=2", "--out", "comparisons/grid/runs/mine/0"]
    shutil.rmtree("comparisons/grid/runs/mine/0")
    replay = ["-m", "fairbed.testbed.cli.main", "replay", "comparisons/grid/arms/mine.toml"]
    subprocess.run([sys.executable, *replay, *options], check=True, stdout=subprocess.DEVNULL)
    edited("inputs_helper.py", "2", "1")
    assert "1 of 2 cells are done again, because inputs_helper.py changed" in grid(capsys)


def test_runs_that_differ_in_an_input_are_compared_with_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        run = ["replay", "own.toml", "--out", f"r{seed}", "--seed", str(seed)]
        assert main([*run, "--set", "selection.policy=uniform"]) == 0
        edited("x.csv", "e+00", "e+01")
    capsys.readouterr()
    assert main(["compare", "r1", "r2", "--no-figures", "--out", "found"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "differs between" in x]
    assert line.startswith("warning: data inputs_data:load differs between the runs: ")
    assert line.count(" in own with seed ") == 2
    assert main(["report", "r1", "r2", "--no-figures", "--out", "page.html"]) == 0
    assert "data inputs_data:load differs between the runs" in Path("page.html").read_text()


@pytest.mark.full
def test_a_cell_of_a_grid_is_shown_with_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As long as a grid whose inputs changed was interrupted before all cells were done again."""
    grid(capsys)
    cell = Path("comparisons/grid/runs/mine/0")
    shutil.rmtree(cell)
    edited("x.csv", "e+00", "e+01")
    assert main(["replay", "comparisons/grid/arms/mine.toml", "--out", str(cell)]) == 0
    capsys.readouterr()
    assert main(["show", str(cell)]) == 0
    found = capsys.readouterr()
    assert "fairbed: warning: data inputs_data:load differs between the runs: " in found.err
    assert "inputs_part.py " in found.out
