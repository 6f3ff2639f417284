"""The figure of personal accuracy over lambda."""

from pathlib import Path

import pytest

from experiments.personal_models import main
from fairbed.testbed.cli.main import main as fairbed

GRID = Path(__file__).parents[2] / "examples" / "grids" / "ditto.toml"


def test_the_figure_is_drawn_from_a_grid(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    arguments = ["compare", str(GRID), "--out", str(tmp_path), "--seeds", "2", "--no-figures"]
    assert fairbed([*arguments]) == 0
    assert main([str(tmp_path), str(tmp_path)]) == 0
    assert "</svg>" in (tmp_path / "personal-models.svg").read_text(encoding="utf-8")
