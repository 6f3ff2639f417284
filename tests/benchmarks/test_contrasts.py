"""The benchmark of contrasts: effects that are not there have few verdicts, drawn and trained."""

import json
from pathlib import Path

import pytest

from benchmarks import contrasts
from fairbed.testbed.errors import UsageError

GRID = """
seeds = 6
baseline = "uniform_rule-fedavg"
primary = "accuracy_mean"
[axes]
"aggregation.rule" = ["fedavg", "q-fedavg"]
[[arm]]
name = "uniform"
set = { "selection.policy" = "uniform" }
[[arm]]
name = "rbcs-f"
set = { "selection.policy" = "rbcs-f" }
[[contrast]]
name = "fair"
factors = {"selection.policy" = ["uniform","rbcs-f"], "aggregation.rule" = ["fedavg","q-fedavg"]}
[tune]
seeds = 1
[[tune.space]]
axes = { "training.learning_rate" = [0.1, 0.2] }
[experiment]
rounds = 2
[experiment.seeds]
data = 0
[experiment.data]
dataset = "digits"
max_examples = 120
test_fraction = 0.4
validation_fraction = 0.3
[experiment.model]
name = "softmax"
[experiment.selection]
per_round = 2
[[experiment.fleet]]
profile = "raspberry-pi-4b"
count = 4
"""


def test_tuned_arms_that_are_the_same_have_few_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    arguments = ["--draws", "20", "--tuned", str(path), "--runs", "28", "--grids", "20"]
    assert contrasts.main([*arguments, "--jobs", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["tuned"]
    assert (row["seeds"], row["grids"]) == (6, 20)
    assert row["from"] <= row["any verdict"] <= row["to"]
    assert row["any verdict"] < row["without correction"], "many tests, and some are below 5 %"
    assert 0.0 < row["constants"] <= 1.0, "equal arms may be given other constants"


def test_a_grid_without_a_search_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    head, _, rest = GRID.partition("[tune]")
    path.write_text(head + rest[rest.index("[experiment]") :])
    with pytest.raises(UsageError, match=r"--tuned: must be a grid with \[tune\]"):
        contrasts.main(["--draws", "1", "--tuned", str(path)])
