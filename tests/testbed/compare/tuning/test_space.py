"""`[tune]` of a grid file: its points, and what is refused in one line."""

from pathlib import Path
from typing import Any

import pytest

from fairbed.testbed.compare.grid import Grid, load_grid
from fairbed.testbed.compare.tuning.space import edges
from fairbed.testbed.compare.tuning_runs import tuning_grid
from fairbed.testbed.experiment.file import ExperimentError

GRID = """
seeds = 2
[[arm]]
name = "plain"
[[arm]]
name = "fair"
set = { "aggregation.rule" = "q-fedavg" }
[tune]
seeds = 2
[[tune.space]]
axes = { "training.learning_rate" = [0.01, 0.02, 0.05, 0.1] }
[[tune.space]]
where = { "aggregation.rule" = "q-fedavg" }
axes = { "training.learning_rate" = [0.05, 0.1], "aggregation.q" = [0.1, 1.0] }
[experiment]
rounds = 2
[experiment.data]
validation_fraction = 0.25
[experiment.seeds]
data = 0
[experiment.selection]
per_round = 2
[[experiment.fleet]]
profile = "raspberry-pi-4b"
count = 4
"""
RATES = 'axes = { "training.learning_rate" = [0.01, 0.02, 0.05, 0.1] }'
FAIR = 'axes = { "training.learning_rate" = [0.05, 0.1], "aggregation.q" = [0.1, 1.0] }'


def grid_of(folder: Path, text: str = GRID, seeds: int | None = None) -> Grid:
    path = folder / "grid.toml"
    path.write_text(text, encoding="utf-8")
    return load_grid(path, seeds=seeds)


def test_each_arm_has_the_points_of_the_spaces_that_it_fits(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    plain, fair = grid.arms
    assert [dict(point.setting) for point in plain.points] == [
        {"training.learning_rate": rate} for rate in (0.01, 0.02, 0.05, 0.1)
    ]
    assert len(fair.points) == 4
    assert fair.points[1].experiment.aggregation.q == 1.0
    assert fair.points[1].experiment.training.learning_rate == 0.05
    assert grid.tuning is not None
    assert (grid.tuning.criterion, grid.tuning.better) == ("accuracy_pooled", "more")
    assert grid.tuning.seeds == (10_000, 10_001)


def test_a_tuning_run_evaluates_on_validation_examples_alone(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    trials = tuning_grid(grid)
    assert trials.seeds == (10_000, 10_001)
    assert [arm.name for arm in trials.arms][::4] == [
        "plain_learning_rate-0.01",
        "fair_learning_rate-0.05_q-0.1",
    ]
    assert {arm.experiment.data.evaluated for arm in trials.arms} == {"validation"}
    assert {arm.experiment.data.evaluated for arm in grid.arms} == {"test"}
    assert {arm.experiment.seeds.data for arm in trials.arms} == {0}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "[0.01, 0.02, 0.05, 0.1]",
            "[0.01, 0.02]",
            "tune.space: arms must have as many points, got 2 in plain and 4 in fair",
        ),
        ("[0.01, 0.02, 0.05, 0.1]", "[0.1, 0.1, 0.2, 0.3]", "values must be distinct, got 0.1 twi"),
        (
            "[0.01, 0.02, 0.05, 0.1]",
            "[0.01, 0.02, 0.05, -1.0]",
            "training.learning_rate = -1.0: arm",
        ),
        (
            RATES,
            RATES.replace("learning", "learnin"),
            "training.learnin_rate: unknown key; did you mean",
        ),
        (FAIR, 'axes = { "data.test_fraction" = [0.1, 0.2] }', "must be a constant of a method"),
        (
            "seeds = 2\n[[tune",
            "seeds = [1, 7]\n[[tune",
            "must be no seeds of the comparison, got 1",
        ),
        ("seeds = 2\n[[tune", "seeds = [7, 7]\n[[tune", "must be distinct"),
        ("seeds = 2\n[[tune", "max_runs = 10\n[[tune", "need at most 10 runs (max_runs), got 24"),
        ("seeds = 2\n[[tune", 'criterion = "virtuals"\n[[tune', "tune.criterion: must be a metric"),
        ("validation_fraction = 0.25", "", "data.validation_fraction must be above 0, got 0"),
        ("\ndata = 0", "\ninit = 0", "seeds.data must be set, got none"),
        ("[experiment.data]", '[experiment.data]\nevaluated = "validation"', "must be 'test'"),
        (
            'name = "fair"',
            'name = "fair"\naxes = { "aggregation.q" = [0.5] }',
            "aggregation.q: must be no axis of arm 'fair_q-0.5'",
        ),
        ("rounds = 2", "rounds = 2\n[experiment.replay]\ntraining = false", "for a grid that trai"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert GRID.count(old) == 1
    with pytest.raises(ExperimentError) as caught:
        grid_of(tmp_path, GRID.replace(old, new))
    line = str(caught.value)
    assert words in line
    assert "\n" not in line


def test_a_tuned_key_is_no_factor_of_a_contrast(tmp_path: Path) -> None:
    contrast = """
[[contrast]]
name = "rates"
factors = { "training.learning_rate" = [0.05, 0.1] }
[tune]"""
    text = GRID.replace("[tune]", contrast, 1)
    text = text.replace(
        'name = "fair"\nset = {', 'name = "fair"\nset = { "training.learning_rate" = 0.1,'
    )
    text = text.replace(
        'name = "plain"', 'name = "plain"\nset = { "training.learning_rate" = 0.05 }'
    )
    with pytest.raises(ExperimentError, match="learning_rate: must be no factor of a contrast"):
        grid_of(tmp_path, text)


def test_more_seeds_of_the_comparison_may_not_reach_those_of_the_search(tmp_path: Path) -> None:
    text = GRID.replace("seeds = 2\n[[tune", "seeds = [2, 3]\n[[tune")
    grid_of(tmp_path, text)
    with pytest.raises(ExperimentError, match="no seeds of the comparison, got 2, 3 in both"):
        grid_of(tmp_path, text, seeds=5)


def test_a_choice_at_the_end_of_its_values_is_an_edge() -> None:
    space: dict[str, list[Any]] = {
        "lr": [0.1, 0.3, 1.0],
        "q": [2, 1],
        "rule": ["a", "b"],
        "nesterov": [True, False],
    }
    chosen = (("lr", 0.1), ("q", 2), ("rule", "a"), ("nesterov", True))
    assert list(edges(chosen, space)) == [
        "lr = 0.1 is the smallest of 3 values; try smaller ones",
        "q = 2 is the largest of 2 values; try larger ones",
    ]
    assert list(edges((("lr", 0.3),), space)) == []
