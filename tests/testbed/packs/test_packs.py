"""A colleague without sources and data checks a pack, and runs its replays again."""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.store.same import differences
from fairbed.testbed.cli.main import main
from fairbed.testbed.packs.rerun import MOVED

ROOT = Path(__file__).parents[3]
PROFILE = ROOT / "profiles" / "devices" / "raspberry-pi-4b.toml"

SELECTOR = """
from pathlib import Path
from fairbed.coordinator.algorithms.selection.uniform import Uniform
WEIGHT = float(Path("packed_weights.txt").read_text())
class Mine(Uniform): pass
"""

EXPERIMENT = """
name = "own"
rounds = 2
[data]
source = "{data}/mine.npz"
[model]
name = "softmax"
[selection]
policy = "packed_selector:Mine"
per_round = 2
[[fleet]]
profile = "near.toml"
count = 2
[[fleet]]
profile = "{far}/far.toml"
count = 2
[replay.task_costs]
step_s = 1e-4
example_s = 1e-6
evaluation_step_s = 1e-5
evaluation_example_s = 1e-7
load_s = 1e-3
"""


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a person who has run and packed a replay, with sources, files, data."""
    folder = tmp_path_factory.mktemp("author")
    work, far, data = folder / "project", folder / "far", folder / "data"
    for each in (work, far, data):
        each.mkdir()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 60)).astype(np.float32)
    np.savez(data / "mine.npz", x=x, y=np.arange(200) % 10)
    (work / "packed_selector.py").write_text(SELECTOR)
    (work / "packed_weights.txt").write_text("1.0")
    for path in (work / "near.toml", far / "far.toml"):
        path.write_text(PROFILE.read_text())
    (work / "e.toml").write_text(EXPERIMENT.format(data=data, far=far))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setenv("FAIRBED_DATA", str(data))
        assert main(["replay", "e.toml", "--out", "run"]) == 0
        assert main(["pack", "run", "-o", "../hashes.tar.zst"]) == 0
        assert main(["pack", "run", "--with-data", "-o", "../all.tar.zst"]) == 0
    return folder


def answer(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> Any:
    """Return what a command prints as JSON."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def problem(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the line by which a command is refused."""
    capsys.readouterr()
    assert main(list(map(str, words))) == 2
    return capsys.readouterr().err.strip()


@pytest.fixture
def colleague(author: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return an empty folder of another person, for whom the author's folders do not exist."""
    away = author.with_name(f"{author.name}-away")
    author.rename(away)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRBED_DATA", raising=False)
    for name in ("hashes.tar.zst", "all.tar.zst"):
        shutil.copy(away / name, tmp_path)
    yield tmp_path
    away.rename(author)


def test_a_replay_has_no_difference_elsewhere(
    colleague: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = answer(capsys, "unpack", "all.tar.zst", "--verify")
    assert about == {"files": 13, "runs": 1, "problems": [], "notes": []}
    assert {path.name for path in colleague.iterdir()} == {"hashes.tar.zst", "all.tar.zst"}
    answer(capsys, "unpack", "all.tar.zst", "--to", "here")
    line = problem(capsys, "unpack", "here", "--rerun")
    assert line == (
        "fairbed: unpack: here: has code of its author (selection.policy = "
        "packed_selector:Mine), which can do all that you can; read it, then add --allow-code"
    )
    assert not (colleague / "here" / "again").exists()
    again = answer(capsys, "unpack", "here", "--rerun", "--allow-code")
    assert again == [{"folder": "run", "outcome": "equal", "lines": []}]
    assert "must not exist, got the runs of an earlier --rerun" in problem(
        capsys, "unpack", "here", "--rerun", "--allow-code"
    )
    store = sqlite3.connect(colleague / "here" / "again" / "run" / "run.db")
    assert store.execute("SELECT count(*) FROM exchange").fetchone() == (4,)
    with store:
        store.execute("UPDATE exchange SET train_s = train_s + 1e-9 WHERE round = 2")
    store.close()
    here = colleague / "here"
    found = list(differences(here / "run", here / "again" / "run", MOVED))
    assert len(found) == 1
    assert found[0].startswith("table exchange: the row of round 2, attempt 0, device ")
    assert " has train_s " in found[0]


def test_a_pack_without_data_says_what_is_missing(
    colleague: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(capsys, "unpack", "hashes.tar.zst", "--to", "here")
    about = answer(capsys, "unpack", "here", "--verify")
    assert about["problems"] == []
    [note] = about["notes"]
    assert note.startswith("needs data/mine.npz in FAIRBED_DATA or the folder of the pack, ")
    assert "data/mine.npz" in (colleague / "here" / "README.md").read_text()
    [again] = answer(capsys, "unpack", "here", "--rerun", "--allow-code", code=1)
    assert again["outcome"] == "failed"
    assert "mine.npz" in again["lines"][0]
    (colleague / "here" / "work" / "packed_selector.py").write_text("changed = True")
    about = answer(capsys, "unpack", "here", "--verify", code=1)
    assert about["problems"] == [
        "here/work/packed_selector.py must be the file of the pack, got another content"
    ]
    shutil.rmtree(colleague / "here" / "again")
    line = problem(capsys, "unpack", "here", "--rerun", "--allow-code")
    assert line.endswith("got another content; unpack it again")


def test_what_has_changed_since_the_run_is_not_packed(
    author: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(author / "project")
    monkeypatch.setenv("FAIRBED_DATA", str(author / "data"))
    profile = author / "project" / "near.toml"
    text = profile.read_text()
    profile.write_text(text + "\n# another one\n")
    line = problem(capsys, "pack", "run", "-o", "x.tar.zst")
    profile.write_text(text)
    assert line == (
        "fairbed: pack: run: near.toml must be as the run has read it, got another content; "
        "restore it, or pack in the folder from which you have run it"
    )
    line = problem(capsys, "pack", "run", "-o", "x.tar.zst", "--max-gb", "1e-4")
    assert "the files must have at most 0.0001 GB, got" in line
    about = answer(capsys, "pack", "run", "-o", "x.tar.zst", "--leave-out", "run/models/*")
    assert about["left_out"] == ["data/mine.npz", "run/models/round-00002.safetensors"]
    assert about["code"] is True
    monkeypatch.chdir(author)
    line = problem(capsys, "pack", "project/run", "-o", "x.tar.zst")
    assert line.startswith("fairbed: pack: project/run: ")
    assert not (author / "x.tar.zst").exists()


GRID = """
name = "small"
seeds = 1
cohorts = "fixed"
[experiment]
name = "small"
rounds = 2
[experiment.data]
dataset = "synthetic"
[experiment.model]
name = "softmax"
[experiment.selection]
policy = "uniform"
per_round = 2
[[experiment.fleet]]
profile = "raspberry-pi-4b"
count = 4
[[arm]]
name = "leader"
[[arm]]
name = "follower"
set = { "training.epochs" = 2 }
"""


def test_a_grid_whose_arms_share_cohorts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "author"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "grid.toml").write_text(GRID)
    assert main(["compare", "grid.toml", "--out", "g", "--no-figures"]) == 0
    assert main(["pack", "g", "-o", str(tmp_path / "g.tar.zst")]) == 0
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(work)
    answer(capsys, "unpack", "g.tar.zst")
    (tmp_path / "g" / "work").mkdir()
    for name in ("numpy", "json", "usercustomize"):  # code that no experiment names
        (tmp_path / "g" / "work" / f"{name}.py").write_text("open('../ran', 'w').close()")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", "", os.environ.get("PYTHONPATH", "")]))
    again = answer(capsys, "unpack", "g", "--rerun")
    assert not (tmp_path / "g" / "ran").exists()
    assert again == [
        {"folder": f"grid/runs/{arm}/0", "outcome": "equal", "lines": []}
        for arm in ("follower", "leader")
    ]
    files = {path.relative_to("g").as_posix() for path in Path("g").rglob("*") if path.is_file()}
    assert {"grid/compare.json", "grid/compare.csv", "grid/grid.json", "lock.txt"} <= files
    assert not any(name.rpartition("/")[2] == "lock" for name in files if "again" not in name)
