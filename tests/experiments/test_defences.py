"""The figure of the defences."""

from pathlib import Path

import pytest

from experiments.defences import DEFENCES, MALICIOUS, distance, main


@pytest.mark.parametrize("name", [name for name in DEFENCES if name != "none"])
def test_a_large_malicious_update_moves_a_defended_model_little(name: str) -> None:
    honest, attacked = (distance(DEFENCES[name], number, 1e6) for number in (0, MALICIOUS))
    assert attacked < max(2.0 * honest, 1.0)
    assert distance(DEFENCES["none"], MALICIOUS, 1e6) > 1e5


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    assert main([str(tmp_path)]) == 0
    assert "</svg>" in (tmp_path / "defences.svg").read_text(encoding="utf-8")
