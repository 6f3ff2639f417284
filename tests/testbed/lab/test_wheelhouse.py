"""The wheelhouse: what pip is called with, and what the lab then has."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairbed.testbed.cli.main import make_parser
from fairbed.testbed.errors import LabError, RunError
from fairbed.testbed.lab.folder import Lab
from fairbed.testbed.lab.wheelhouse import constraints, download_arguments, fill
from tests.testbed.lab.labs import make_lab

ROOT = Path(__file__).parents[3]


class FakePip:
    """Writes a wheel for each call; fails calls that contain a word."""

    def __init__(self, fails: str = "-nothing-") -> None:
        self.fails, self.calls = fails, list[list[str]]()

    def __call__(self, arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        words = list(arguments)
        self.calls.append(words)
        if self.fails in words:
            text = (
                "ERROR: Could not find\nERROR: No matching distribution found for numpy\n\nnotice"
            )
            return subprocess.CompletedProcess(words, 1, "", text)
        folder = Path(words[words.index("-w" if words[0] == "wheel" else "-d") + 1])
        name = "fairbed-0.1.0" if words[0] == "wheel" else f"package{len(self.calls)}-1.0"
        (folder / f"{name}-py3-none-any.whl").write_bytes(b"x")
        return subprocess.CompletedProcess(words, 0, "", "")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


def test_wheels_of_each_python_and_machine_are_added(lab: Lab) -> None:
    pip, lines = FakePip(), list[str]()
    found = fill(lab, ["3.10", "3.13"], ["aarch64"], ROOT, write=lines.append, run=pip)
    assert [call[0] for call in pip.calls] == ["wheel", "download", "download", "download"]
    assert lines[1:] == ["Python 3.10 on aarch64: complete", "Python 3.13 on aarch64: complete"]
    assert len(found) == 4
    assert {path.parent for path in found} == {lab.wheels}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in found)
    fill(lab, ["3.11"], ["x86_64"], ROOT, write=lines.append, run=pip)
    assert set(found) < set(lab.wheels.glob("*.whl"))
    assert not list(lab.folder.glob("wheels-*"))


def test_options_may_be_repeated() -> None:
    words = ["lab", "wheelhouse", "--python=3.13", "--python", "3.11", "3.12", "--platform=x86_64"]
    options = make_parser().parse_args(words)
    assert (options.python, options.platform) == (["3.13", "3.11", "3.12"], ["x86_64"])


def test_pip_downloads_wheels_only_for_that_python_and_machine(tmp_path: Path) -> None:
    words = download_arguments("3.11", "aarch64", tmp_path, tmp_path / "pins.txt")
    text = " ".join(words)
    assert "--only-binary=:all:" in words
    assert "--python-version 3.11 --abi cp311 --abi abi3 --abi none" in text
    assert "--platform manylinux_2_28_aarch64" in text
    assert "x86_64" not in text


def test_pins_are_those_of_the_version_of_the_device() -> None:
    pins = {python: constraints(ROOT, python).splitlines() for python in ("3.10", "3.11", "3.13")}
    for lines in pins.values():
        names = [line.partition("==")[0] for line in lines]
        assert len(names) == len(set(names))
        assert "numpy" in names
    assert pins["3.10"] != pins["3.11"] == pins["3.13"]
    assert constraints(None, "3.11") == ""


@pytest.mark.parametrize(
    ("pythons", "machines", "source", "line"),
    [
        (["3.9"], ["aarch64"], ROOT, "--python: must be 3.10 or newer, as in 3.11, got '3.9'"),
        (["3.11; x"], ["aarch64"], ROOT, "--python: must be 3.10 or newer"),
        (["3.11"], ["armv7l"], ROOT, "--platform: must be aarch64 or x86_64, got 'armv7l'"),
        (["3.11"], ["aarch64"], ROOT / "docs", "--source: must be a checkout of Fairbed, or its"),
    ],
)
def test_bad_usage_is_one_line(
    lab: Lab, pythons: list[str], machines: list[str], source: Path, line: str
) -> None:
    with pytest.raises(LabError) as caught:
        fill(lab, pythons, machines, source, write=print, run=FakePip())
    assert str(caught.value).startswith(line)


def test_a_package_that_is_missing_is_named_and_adds_nothing(lab: Lab) -> None:
    with pytest.raises(RunError) as caught:
        fill(lab, ["3.11"], ["aarch64"], ROOT, write=lambda _: None, run=FakePip("cp311"))
    assert str(caught.value) == (
        "wheelhouse: Python 3.11 on aarch64: pip must find all wheels, got: ERROR: No matching "
        "distribution found for numpy"
    )
    assert list(lab.folder.glob("wheels*/*.whl")) == []
