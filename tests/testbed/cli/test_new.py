"""`fairbed new`: the files that it writes work as they are, and replace none."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.scaffold import (
    PARTS,
    SCAFFOLD_KINDS,
    ScaffoldKind,
    class_name,
    doctor_command,
)
from tests.testbed.cli.test_mistakes import error_of

ROOT = Path(__file__).parents[3]
NUMBERS = itertools.count()

every_kind = pytest.mark.parametrize("kind", SCAFFOLD_KINDS)


def written(kind: ScaffoldKind, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a plug-in, and make its folder the working directory; return its name."""
    # A process imports a module of a name once.
    name = f"scaffold_{next(NUMBERS)}_of_{kind.replace('-', '_')}"
    words = ["aggregator", "--part", kind] if kind in PARTS else [kind]
    assert main(["new", *words, name, str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{name}.py",
        f"{name}.toml",
        f"test_{name}.py",
    ]
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return name


@every_kind
def test_a_new_plug_in_keeps_the_contract_and_is_replayed(
    kind: ScaffoldKind,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = written(kind, tmp_path / "new folder", monkeypatch)
    out = capsys.readouterr().out
    assert f"cd '{tmp_path / 'new folder'}'; {doctor_command(kind, name)}; fairbed replay" in out
    assert main(doctor_command(kind, name).split()[1:]) == 0
    assert capsys.readouterr().out.endswith(f"{name}:{class_name(name)}: satisfies the contract\n")
    assert main(["replay", f"{name}.toml", "--out", "replayed"]) == 0
    with RunReader(Path("replayed")) as reader:
        assert reader.run().status == "done"
        assert f"{name}:{class_name(name)}" in reader.experiment_toml
        assert [row.aggregated for row in reader.rounds()] == [3] * 5


def test_the_test_of_each_new_plug_in_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [
        f"{kind}/test_{written(kind, tmp_path / kind, monkeypatch)}.py" for kind in SCAFFOLD_KINDS
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60.0,
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= len(files)


@pytest.mark.full
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["selector", "local-rule"])  # on the coordinator; on devices
def test_a_new_plug_in_runs_live(
    kind: ScaffoldKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = written(kind, tmp_path / "here", monkeypatch)
    done = subprocess.run(
        [sys.executable, "-m", "fairbed.testbed.cli.main", "run", f"{name}.toml", "--out", "live"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110.0,
    )
    assert done.returncode == 0, done.stderr
    with RunReader(Path("live")) as reader:
        assert reader.run().status == "done"
        assert len(reader.rounds()) == 5


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "must be 1 to 40 of a-z, 0-9 and _, the first one a letter, got ''"),
        ("My_Rule", "must be 1 to 40 of"),
        ("my-rule", "must be 1 to 40 of"),
        ("2fast", "must be 1 to 40 of"),
        ("../rule", "must be 1 to 40 of"),
        ("a" * 41, "must be 1 to 40 of"),
        ("class", "must not be a keyword of Python, got 'class'"),
        ("match", "must not be a keyword of Python"),
        ("test_rule", "must not begin with test_"),
        ("numpy", "must not be the name of an installed module, got 'numpy'"),
        ("fairbed", "must not be the name of an installed module"),
    ],
)
def test_a_name_that_no_new_module_can_have_is_refused(
    name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "selector", name, str(tmp_path / "folder")]) == 2
    assert f"new: the name of the module {why}" in error_of(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["mine_x.py", "test_mine_x.py", "mine_x.toml"])
def test_no_file_is_replaced(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / file).write_text("kept", encoding="utf-8")
    assert main(["new", "aggregator", "mine_x", str(tmp_path)]) == 2
    assert f"{tmp_path / file}: exists already; choose another name or folder" in error_of(capsys)
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert (tmp_path / file).read_text(encoding="utf-8") == "kept"


def test_a_folder_that_is_a_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["new", "estimator", "mine_x", str(tmp_path / "file")]) == 1
    assert error_of(capsys).strip() == f"fairbed: {tmp_path / 'file'}: File exists"


def test_the_part_of_an_aggregator_is_its_weights_unless_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "aggregator", "mine_w", str(tmp_path)]) == 0
    assert "    def decide(" in (tmp_path / "mine_w.py").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["new", "selector", "mine_x", str(tmp_path), "--part", "weights"]) == 2
    assert "--part: only an aggregator has parts, got 'weights' for selector; remove it" in (
        error_of(capsys)
    )
    assert not (tmp_path / "mine_x.py").exists()
