"""A column of the exchange is declared once: messages, store and all readers follow."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_what_is_declared_travels_is_stored_and_is_shown(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.coordinator.declared_column", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
