"""`--json`: where a command prints a table, it prints the same as JSON."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairbed.testbed.cli import EXAMPLES
from fairbed.testbed.cli.main import main, make_parser
from fairbed.testbed.experiment.file import load_experiment

WITHOUT_TABLE = {
    "completion": "prints code for a shell",
    "devices rename": "prints one line",
    "devices revoke": "prints one line",
    "init": "writes a file",
    "lab config": "prints a file",
    "lab down": "prints one line",
    "lab init": "writes a folder",
    "lab up": "runs until it is stopped",
    "lab wheelhouse": "writes files",
    "logs": "prints lines as they were written",
    "new": "writes files",
    "profiles fit": "writes a file",
    "profiles import": "writes files",
    "profiles import-log": "writes files",
    "profiles plot": "draws",
    "report": "writes a file",
    "rm": "prints one line",
    "schema": "prints JSON anyway",
    "shape": "prints what the command prints; --json FILE has the report",
    "stop": "prints one line",
    "watch": "is a screen",
}
"""Commands without `--json`, and why."""


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, bool]]:
    """Yield each command of the tree, and whether it has `--json`."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for child, its_parser in action.choices.items():
            yield from commands(its_parser, f"{name} {child}".strip())
    if name and not below:
        yield name, any("--json" in action.option_strings for action in parser._actions)


def test_every_command_that_prints_a_table_has_json() -> None:
    without = {name for name, has_json in commands(make_parser()) if not has_json}
    assert without <= set(WITHOUT_TABLE)


def found(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_config_has_value_and_origin_of_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / "quickstart.toml"
    keys = found(capsys, "config", str(path), "--set", "selection.V=9", "--seed", "5")
    assert keys["selection.V"] == {"value": 9, "origin": "--set"}
    assert keys["seed"] == {"value": 5, "origin": "--seed"}
    assert keys["rounds"] == {"value": load_experiment(path).rounds, "origin": str(path)}
    assert keys["data.folder"] == {"value": None, "origin": "default"}
    main(["config", str(path)])
    lines = [x for x in capsys.readouterr().out.splitlines() if x and not x.startswith("[")]
    assert len(lines) == len(keys)


def test_examples_are_listed_with_their_first_comment(capsys: pytest.CaptureFixture[str]) -> None:
    texts = found(capsys, "examples")
    names = {path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*")}
    apps = {path.parent.name for path in EXAMPLES.glob("*/pyproject.toml")}
    files = {path for path in names if path.suffix in (".toml", ".py", ".ipynb")}
    assert texts.keys() == apps | {x.as_posix() for x in files if x.parts[0] not in apps}
    assert all(texts.values())


def test_data_sets_are_listed_and_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (listed,) = found(capsys, "data", "list", "digits")
    assert (listed["name"], listed["n"], listed["is_available"]) == ("digits", 1797, True)
    assert found(capsys, "data", "verify", "digits") == [listed]
    missing = str(tmp_path / "none.npz")
    (status,) = found(capsys, "data", "verify", missing, code=1)
    assert (status["name"], status["is_available"]) == (missing, False)
    assert status["what_to_do"]


def test_profiles_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"checked": 1, "problems": [], "warnings": []}
    assert found(capsys, "profiles", "check", "n100") == expected
    (tmp_path / "bad.toml").write_text("x = 1\n")
    result = found(capsys, "profiles", "check", str(tmp_path / "bad.toml"), code=1)
    assert result["checked"] == 1
    assert all("bad.toml" in problem for problem in result["problems"])


def test_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    texts = found(capsys, "bench")
    assert texts["selection"].endswith(".")
