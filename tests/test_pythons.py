"""Which Pythons `just test-pythons` finds, and what it states of those that are missing."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools import pythons, roots

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder of a machine that is searched for interpreters; there is no pyenv."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_version_that_is_nowhere_is_skipped_with_its_reason(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pythons.main(["3.12", "3.14", "--folder", str(bare / "roots")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "test-pythons: 3.12",
        "test-pythons: 3.14",
        "test-pythons: 3.12: skipped, no such Python is installed (0 s)",
        "test-pythons: 3.14: skipped, no such Python is installed; "
        "root and mmdebstrap would make a Debian (0 s)",
    ]


def test_an_interpreter_is_taken_from_pyenv_if_it_runs(bare: Path) -> None:
    for number, target in (("4", sys.executable), ("5", "/bin/false")):
        folder = bare / ".pyenv" / "versions" / f"{HERE}.{number}" / "bin"
        folder.mkdir(parents=True)
        (folder / f"python{HERE}").symlink_to(target)
    found = list(pythons.interpreters(HERE))
    assert found == [str(bare / ".pyenv" / "versions" / f"{HERE}.4" / "bin" / f"python{HERE}")]


def test_failed_tests_fail_the_command_after_all_versions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    def run_tests(version: str, tests: Sequence[str], folder: Path) -> str:
        asked.append((version, tuple(tests)))
        if version == "3.10":
            raise roots.StepError("status 1")
        return "passed"

    monkeypatch.setattr(pythons, "run_tests", run_tests)
    assert pythons.main(["3.10", "3.11", "--", "tests/wire", "-q"]) == 1
    assert asked == [(version, ("tests/wire", "-q")) for version in ("3.10", "3.11")]
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "test-pythons: 3.10: FAILED: status 1 (0 s)",
        "test-pythons: 3.11: passed (0 s)",
    ]


def test_an_unknown_version_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pythons.main(["3.9"])
    problem = "a version must be one of 3.10, 3.11, 3.12, 3.13, 3.14; got 3.9"
    assert problem in capsys.readouterr().err


def test_every_version_of_the_metadata_is_tested() -> None:
    text = (roots.ROOT / "pyproject.toml").read_text()
    assert all(
        f'"Programming Language :: Python :: {version}"' in text for version in pythons.SUITES
    )
