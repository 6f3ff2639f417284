"""The folder of a grid refuses other grids and other files, in one line."""

import json
from pathlib import Path

import pytest

from fairbed.testbed.compare.folder import MANIFEST, grid_folder
from fairbed.testbed.compare.grid import Grid, load_grid
from fairbed.testbed.experiment.file import ExperimentError

GRID = """
experiment = { selection = { per_round = 1 }, fleet = [
    { model = "linear", theta = [1.0, 1.0, 0.2], count = 3 },
] }
seeds = 2
"""
ONE = '[[arm]]\nname = "one"\n'
OTHER = '[[arm]]\nname = "other"\nset = { "selection.V" = 3 }\n'


def grid_of(folder: Path, arms: str) -> Grid:
    path = folder / "small.toml"
    path.write_text(GRID + arms, encoding="utf-8")
    return load_grid(path)


def enter(out: Path, grid: Grid) -> str:
    with grid_folder(out, grid) as folder:
        return folder.manifest.grid


def test_the_folder_has_the_experiment_of_each_arm_and_accepts_more_arms(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = enter(out, grid_of(tmp_path, ONE))
    assert enter(out, grid_of(tmp_path, ONE)) == first
    assert enter(out, grid_of(tmp_path, ONE + OTHER)) != first
    assert {path.name for path in (out / "arms").iterdir()} == {"one.toml", "other.toml"}


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        (OTHER, "baseline must be unchanged since the grid began, got other after one"),
        (f'fleet = "run"\n{ONE}', "fleet must be unchanged"),
        (f'primary = "jain"\n{ONE}', "primary must be unchanged .*, got jain after virtual_s"),
        (ONE.replace('"one"', '"one"\nset = { rounds = 3 }'), "'one', seed 0 with another exp"),
    ],
)
def test_a_changed_grid_is_refused_and_changes_nothing(
    tmp_path: Path, arms: str, words: str
) -> None:
    out = tmp_path / "out"
    enter(out, grid_of(tmp_path, ONE))
    before = (out / MANIFEST).read_bytes()
    with pytest.raises(ExperimentError, match=words):
        enter(out, grid_of(tmp_path, arms))
    assert (out / MANIFEST).read_bytes() == before


def test_a_folder_from_before_primary_metrics_is_continued(tmp_path: Path) -> None:
    out, grid = tmp_path / "out", grid_of(tmp_path, ONE)
    enter(out, grid)
    manifest = json.loads((out / MANIFEST).read_bytes())
    del manifest["primary"], manifest["budget_metric"]
    (out / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    enter(out, grid)
    assert json.loads((out / MANIFEST).read_bytes())["primary"] == "virtual_s"


def test_a_damaged_manifest_is_one_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST).write_text("{", encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"grid\.json: must be the manifest") as caught:
        enter(out, grid_of(tmp_path, ONE))
    assert "\n" not in str(caught.value)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ONE)
    with (
        grid_folder(tmp_path / "out", grid),
        pytest.raises(ExperimentError, match="another process uses this grid"),
    ):
        enter(tmp_path / "out", grid)
