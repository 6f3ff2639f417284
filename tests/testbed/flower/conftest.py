"""An interpreter with Flower: that of `FAIRBED_FLOWER_PYTHON`, or a new environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = "1.42.0"
INSTALL_S = 300


@pytest.fixture(scope="session")
def flower_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter with flwr and numpy."""
    named = os.environ.get("FAIRBED_FLOWER_PYTHON")
    if named:
        return named
    folder = tmp_path_factory.mktemp("flower") / "venv"
    python = str(folder / "bin" / "python")
    for argv in (
        [sys.executable, "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--quiet", f"flwr=={VERSION}", "numpy"],
    ):
        try:
            ended = subprocess.run(argv, capture_output=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip("flwr cannot be installed here in time; set FAIRBED_FLOWER_PYTHON")
        if ended.returncode:
            pytest.skip("flwr cannot be installed here; set FAIRBED_FLOWER_PYTHON")
    return python


@pytest.fixture(scope="session")
def examples() -> Path:
    """Return the folder of the examples."""
    return Path(__file__).parents[3] / "examples"
