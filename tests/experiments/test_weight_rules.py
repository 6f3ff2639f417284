"""The figure of the weights of each rule."""

from pathlib import Path

import numpy as np
import pytest

from experiments.weight_rules import LOSSES, main, weights


def test_a_larger_loss_never_has_a_smaller_share() -> None:
    for name, shares in weights().items():
        assert shares.sum() == pytest.approx(1.0)
        assert (np.diff(shares) >= -1e-12).all(), name
        if not name.startswith("fedavg"):
            assert shares[-1] > 1.0 / len(LOSSES), name


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    assert main([str(tmp_path)]) == 0
    assert "</svg>" in (tmp_path / "weight-rules.svg").read_text(encoding="utf-8")
