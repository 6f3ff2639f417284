"""An interpreter with Flower: that of `FAIRBED_FLOWER_PYTHON`, or a new environment."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = "1.42.0"
INSTALL_S = 300


@pytest.fixture(scope="session")
def flower_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter with flwr and numpy, one for all processes of this run of tests."""
    named = os.environ.get("FAIRBED_FLOWER_PYTHON")
    if named:
        return named
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = base / "flower", base / "flower-ready"
    python = folder / "bin" / "python"
    with open(base / "flower-lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # at most INSTALL_S, twice
        if not done.exists():
            done.write_text(_problem_with(folder, python))
    if problem := done.read_text():
        pytest.skip(f"{problem}; set FAIRBED_FLOWER_PYTHON")
    return str(python)


def _problem_with(folder: Path, python: Path) -> str:
    """Make an environment; return why that is not possible, empty if it is."""
    for argv in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", f"flwr=={VERSION}", "numpy"],
    ):
        try:
            ended = subprocess.run(argv, capture_output=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            return "flwr cannot be installed here in time"
        if ended.returncode:
            return "flwr cannot be installed here"
    return ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the first test wait until flwr is installed."""
    for item in items:
        if "flower_python" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(2 * INSTALL_S + 120))


@pytest.fixture(scope="session")
def examples() -> Path:
    """Return the folder of the examples."""
    return Path(__file__).parents[3] / "examples"
