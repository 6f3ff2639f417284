"""The study of the noise of test sets, and that shipped grids have enough test examples."""

from pathlib import Path

import numpy as np
import pytest

from experiments.sampling_noise import (
    experiments_of,
    last_evaluation,
    main,
    noises_of,
    recovery,
    rmse,
)
from fairbed.coordinator.algorithms.sampling_noise import HALF

GRIDS = Path(__file__).parents[2] / "examples" / "grids"
SEEDS = {"equal-weights": 1, "fair": 1}
"""Seeds of the grids with many devices; the others have four."""
ALIKE = "noise of the tests"
"""Words in the head of a grid whose devices end alike, so that no number of tests is enough."""


def test_the_study_reports_smaller_errors_after_the_corrections() -> None:
    found = recovery((17.0, 3.0), 30, (12, 12), 60, seed=0)
    raw, shrunken = rmse(found.worst10)
    assert shrunken < raw
    raw, corrected, unfloored = rmse(found.variance)
    assert corrected <= unfloored < raw
    again = recovery((17.0, 3.0), 30, (12, 12), 60, seed=0)
    assert np.array_equal(again.worst10, found.worst10)


def test_a_file_has_a_line_with_its_test_examples(capsys: pytest.CaptureFixture[str]) -> None:
    grid = GRIDS / "live-digits.toml"
    assert main(["shipped", str(grid), "--seeds", "1", "--set", "rounds=2"]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    name, model, sizes, shares = (cell.strip() for cell in line.strip("|").split("|"))
    assert (name, model) == ("`live-digits.toml`", "global")
    assert 100 < int(sizes.split(", ")[0]) < int(sizes.split(", ")[2])
    assert shares.count(" %") == 3


@pytest.mark.parametrize("path", sorted(GRIDS.glob("*.toml")), ids=lambda path: path.stem)
def test_a_shipped_grid_is_not_mostly_noise_or_its_head_has_the_reason(path: Path) -> None:
    """The baseline's last evaluation, mean over seeds; the model is the one of `primary`."""
    experiments = experiments_of(path, SEEDS.get(path.stem, 4), [])
    if not all(x.trains_in_replay and x.evaluation.every for x in experiments):
        pytest.skip("the grid has no evaluation")
    if ALIKE in path.read_text(encoding="utf-8").partition("seeds = ")[0].replace("\n# ", " "):
        return
    found = [list(noises_of(last_evaluation(x)).values())[-1] for x in experiments]
    for name in ("worst 10 %", "variance"):
        shares = [share for noise in found if (share := noise.shares[name]) is not None]
        assert np.mean(shares) < HALF, (name, shares)
