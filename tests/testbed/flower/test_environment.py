"""Interpreters of apps: what is in them, and what is wrong with them."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fairbed.testbed.cli.main import main
from fairbed.testbed.errors import UsageError
from fairbed.testbed.flower.environment import environment_of, find_interpreter, look_at
from fairbed.testbed.flower.reading import FlowerApp, read_app
from fairbed.wire.text import toml_of
from tests.testbed.flower.small_apps import write_app


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


def write_wheel(folder: Path, name: str, version: str) -> None:
    """Write a package with an empty module, as pip installs it."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{file},,\n" for file in files)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)


def test_an_environment_is_made_completed_and_found(
    tmp_path: Path,
    own_state: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, wheels = write_app(tmp_path / "app"), tmp_path / "wheels"
    file = folder / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"flwr>=1.21"', '"flwr>=1.21,<2", "augment"'), encoding="utf-8")
    wheels.mkdir()
    for name, version in (("flwr", "1.42.0"), ("flwr", "2.1.0"), ("numpy", "2.2.0")):
        write_wheel(wheels, name, version)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    app = read_app(folder)
    made = environment_of(app)
    assert main(["flower", "setup", str(folder)]) == 1
    *commands, line = capsys.readouterr().err.splitlines()
    assert "flower setup: -m pip install failed: ERROR: " in line
    assert "augment" in line
    assert made.parent == own_state / "fairbed" / "flower"
    assert [x.split()[2:4] for x in commands] == [["-m", "venv"], ["-m", "pip"]]
    assert commands[1].split()[-3:] == ["flwr>=1.21,<2", "augment", "numpy"]
    write_wheel(wheels, "augment", "3.0")
    assert main(["flower", "setup", str(folder)]) == 0
    shown, err = capsys.readouterr()
    assert [x.split()[2:4] for x in err.splitlines()] == [["-m", "pip"]], "no second environment"
    python = made / "bin" / "python"
    assert toml_of(shown) == {"flower": {"python": os.fspath(python)}}
    found = find_interpreter(app)
    assert (found.path, found.flwr, found.missing) == (python, "1.42.0", ())
    subprocess.run([str(python), "-c", "import augment"], check=True, timeout=60)
