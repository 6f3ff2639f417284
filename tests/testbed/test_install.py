import sys
from pathlib import Path

import pytest

from fairbed.testbed.install import install_command

FIGURES = "fairbed[figures]"


@pytest.mark.parametrize(
    ("marker", "command"),
    [
        ("pipx_metadata.json", "pipx runpip env install 'fairbed[figures]'"),
        ("uv-receipt.toml", "uv pip install --python {prefix} 'fairbed[figures]'"),
    ],
)
def test_an_environment_of_a_tool_is_extended_by_that_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str, command: str
) -> None:
    prefix = tmp_path / "env"
    prefix.mkdir()
    (prefix / marker).touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    assert install_command(FIGURES) == command.format(prefix=prefix)


def test_an_active_environment_is_extended_by_its_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_command("torch") == "pip install torch"


def test_an_environment_that_is_not_active_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_command("torch") == f"{tmp_path}/bin/python -m pip install torch"
