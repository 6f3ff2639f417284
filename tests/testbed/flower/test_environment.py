"""Interpreters of apps: what is in them, and what is wrong with them."""

import os
import sys
from pathlib import Path

import pytest

from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.flower.environment import (
    environment_of,
    find_interpreter,
    line_for_experiment,
    look_at,
    set_up,
)
from fairbed.testbed.flower.reading import FlowerApp, read_app
from fairbed.wire.text import toml_of


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the environments of a test in a folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def app_with(*dependencies: str) -> FlowerApp:
    """Return an app that needs packages."""
    return FlowerApp(Path("/app"), "small", "a:app", "b:app", {}, dependencies)


def test_an_interpreter_with_flower_is_found(flower_python: str, examples: Path) -> None:
    found = find_interpreter(read_app(examples / "flower-numpy"), flower_python)
    assert found.flwr.startswith("1.")
    assert found.missing == ()
    lacks = look_at(Path(flower_python), app_with("flwr>=1.21", "no-such-package"))
    assert lacks.missing == ("no-such-package",)
    with pytest.raises(UsageError, match="the app needs flwr>=90"):
        look_at(Path(flower_python), app_with("flwr>=90"))


def test_what_is_no_interpreter_with_flower_is_said_with_the_command(tmp_path: Path) -> None:
    app = app_with("flwr>=1.21,<2")
    with pytest.raises(UsageError, match="got none; make one with: fairbed flower setup /app"):
        find_interpreter(app)
    with pytest.raises(UsageError, match="must be a Python interpreter with flwr, got /none"):
        find_interpreter(app, "/none")
    with pytest.raises(UsageError, match="must be a Python interpreter, got no answer"):
        look_at(Path("/bin/true"), app)
    with pytest.raises(UsageError, match=r"must have flwr, got none; run: .* -m pip install 'flwr"):
        look_at(Path(sys.executable), app)


def test_a_slow_interpreter_is_no_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbed.testbed.flower.environment.PROBE_S", 0.1)
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 100\n")
    slow.chmod(0o755)
    with pytest.raises(UsageError, match="must be a Python interpreter, got no answer"):
        look_at(slow, app_with())


def test_an_environment_is_made_and_named(
    flower_python: str, own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    app = app_with("flwr>=1.21")
    ran: list[str] = []
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RunError, match=r"flower setup: -m pip install failed: ERROR: .*flwr"):
        set_up(app, sys.executable, ran.append)
    made = environment_of(app)
    assert made.parent == own_state / "fairbed" / "flower"
    assert (made / "bin" / "python").is_file()
    assert [line.split()[1:3] for line in ran] == [["-m", "venv"], ["-m", "pip"]]
    assert ran[1].split()[-2:] == ["flwr>=1.21", "numpy"]
    line = line_for_experiment(made / "bin" / "python")
    assert toml_of(line) == {"flower": {"python": os.fspath(made / "bin" / "python")}}
