"""Constants chosen by real replays: by validation examples alone, and all that was tried."""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.compare.cell import CellOutcome, CellResult
from fairbed.testbed.compare.folder import grid_folder
from fairbed.testbed.compare.grid import Grid, GridCell, load_grid
from fairbed.testbed.compare.pool import run_cells_here
from fairbed.testbed.compare.table import tuning_csv
from fairbed.testbed.compare.tuning_runs import folder_of, tuned, tuning_grid
from fairbed.testbed.errors import RunError
from fairbed.testbed.experiment import shards
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.experiment.shards import FleetData
from fairbed.wire.shard import strata
from tests.testbed.compare.results import result

GRID = """
seeds = 1
primary = "accuracy_mean"
[[arm]]
name = "one"
[tune]
seeds = 2
[[tune.space]]
axes = {{ "training.learning_rate" = [0.003, 0.3] }}
[experiment]
rounds = 3
[experiment.data]
{data}
test_fraction = 0.4
validation_fraction = 0.3
[experiment.seeds]
data = 0
[experiment.model]
name = "softmax"
[experiment.selection]
per_round = 3
[[experiment.fleet]]
profile = "raspberry-pi-4b"
count = 4
"""

OWN = 'source = "own.npz"'
SOME = 'dataset = "digits"\nmax_examples = 100'
Change = Callable[[Dataset, Sequence[np.ndarray[Any, Any]]], Dataset]


def grid_in(folder: Path, data: str = SOME, **changes: str) -> Grid:
    text = GRID.format(data=data)
    for old, new in changes.items():
        text = text.replace(old, new)
    path = folder / "grid.toml"
    path.write_text(text, encoding="utf-8")
    return load_grid(path)


def search(grid: Grid, out: Path) -> Grid:
    trials = tuning_grid(grid)

    def run(cells: Sequence[GridCell]) -> list[CellResult]:
        found = list[CellResult]()
        run_cells_here(trials, folder_of(out), found.append, cells)
        return found

    with grid_folder(folder_of(out), trials):
        chosen = tuned(grid, trials, run)
    assert chosen is not None
    assert chosen.tuned is not None
    return chosen


def write(path: Path, changed: np.ndarray[Any, Any] | None = None) -> None:
    """Write examples of ten classes that a linear model can learn; x of some rows is wrong."""
    dice = np.random.default_rng(0)
    y = np.arange(200) % 10
    x = (dice.normal(size=(200, 64)) + 2.0 * np.eye(10, 64)[y]).astype(np.float32)
    if changed is not None:
        x[changed] = 1e3 * dice.normal(size=(len(changed), 64))
    np.savez(path, x=x, y=y)


def test_other_test_examples_in_the_file_change_no_byte_of_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the final runs measure changes; other validation examples change the search, too."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own.npz")
    grid = grid_in(tmp_path, OWN)
    experiment = grid.arms[0].experiment
    rows, finals = {}, {}
    for part in ("test", "validation"):
        config = experiment.data
        if part == "validation":
            config = tuning_grid(grid).arms[0].experiment.data
        dataset = shards.load_examples(experiment, {})
        found = FleetData(dataset, config, devices=4, seed=0, fold=10_000)
        if part == "test":
            rows[part] = np.concatenate(found.test_rows)
        else:  # without test examples the rows have other numbers: look for their x
            x = found.dataset.x[np.concatenate(found.test_rows)]
            rows[part] = np.flatnonzero((dataset.x[:, None] == x[None]).all(axis=2).any(axis=1))
    assert not set(rows["test"]) & set(rows["validation"])
    searches = {}
    for name, changed in (("clean", None), *rows.items()):
        write(tmp_path / "own.npz", changed)
        out = tmp_path / name
        chosen = search(grid, out)
        assert chosen.tuned is not None
        searches[name] = (tuning_csv(chosen.tuned), chosen.tuned, chosen.arms[0].experiment.hash())
        results = list[CellResult]()
        run_cells_here(replace(chosen, tuned=None), out, results.append)
        measured = results[0].outcome.measured
        assert measured is not None
        finals[name] = measured.values["accuracy_mean"]
    assert searches["clean"] == searches["test"]
    assert searches["clean"][0] != searches["validation"][0]
    assert finals["clean"] != finals["test"]


def test_a_search_reads_no_test_label_and_no_test_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the division, which is by class, every test example is NaN with another label."""
    grid, divide, poisoned = grid_in(tmp_path), FleetData.__init__, list[int]()
    clean = search(grid, tmp_path / "clean").tuned

    def divide_poisoned(data: FleetData, dataset: Dataset, config: Any, **options: Any) -> None:
        plain = FleetData.__new__(FleetData)
        tests = msgspec.structs.replace(config, evaluated="test")
        divide(plain, dataset, tests, **options)
        rows = np.concatenate(plain.test_rows)
        classes, x, y = strata(dataset.y), dataset.x.astype(np.float32), dataset.y.copy()
        x[rows], y[rows] = np.nan, (y[rows] + 1) % dataset.classes
        poisoned.append(len(rows))
        monkeypatch.setattr(shards, "strata", lambda _: classes)
        divide(data, replace(dataset, x=x, y=y), config, **options)
        monkeypatch.setattr(shards, "strata", strata)
        if config.evaluated == "test":
            assert np.isnan(data.dataset.x[np.concatenate(data.test_rows)]).all()
        else:
            assert not np.isnan(data.dataset.x).any()

    monkeypatch.setattr(FleetData, "__init__", divide_poisoned)
    found = search(grid, tmp_path / "poisoned").tuned
    assert found is not None
    assert clean is not None
    assert tuning_csv(found) == tuning_csv(clean)
    assert found == clean
    assert len(poisoned) == 4
    assert min(poisoned) == 40


def test_the_command_tunes_resumes_and_reports_all_that_was_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = grid_in(tmp_path)
    out = tmp_path / "out"
    search(grid, out)
    stores = sorted(out.glob("tuning/runs/*/*/run.db"))
    assert len(stores) == 4
    before = [store.stat().st_mtime_ns for store in stores]
    call = ["compare", str(tmp_path / "grid.toml"), "--out", str(out), "--no-figures", "--jobs"]
    assert main([*call, "1"]) == 0
    shown = capsys.readouterr()
    assert [store.stat().st_mtime_ns for store in stores] == before, "these runs are not repeated"
    assert "tune: 4 runs, for each of 1 arms 2 with 2 seeds; the comparison has 1 more" in shown.err
    assert "power: none with 1 seed: a verdict needs 6" in shown.err
    constants = (
        "Constants were tuned: 2 points of each arm, 4 runs with 2 other seeds, chosen by "
        "accuracy_pooled on validation examples alone: one: training.learning_rate = 0.3"
    )
    assert constants in shown.out
    assert "tune: one: training.learning_rate = 0.3 is the largest of 2 values" in shown.out
    report = json.loads((out / "compare.json").read_text(encoding="utf-8"))
    (arm,) = report["tuning"]["arms"]
    assert [point["is_chosen"] for point in arm["points"]] == [False, True]
    assert (report["tuning"]["folded"], report["tuning"]["without"]) == (4, 0)
    with (out / "tuning.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["point"], row["seed"]) for row in rows] == [
        (point, seed) for point in "12" for seed in ("10000", "10001")
    ]
    assert "chosen by accuracy\\_pooled on validation examples alone" in (
        out / "compare.tex"
    ).read_text(encoding="utf-8")
    with RunReader(out / "runs" / "one" / "0") as reader:
        assert "learning_rate = 0.3" in reader.experiment_toml
        assert 'evaluated = "test"' in reader.experiment_toml
    with RunReader(next((out / "tuning" / "runs").glob("*/10000"))) as reader:
        assert 'evaluated = "validation"' in reader.experiment_toml
    assert main(["show", str(next((out / "tuning" / "runs").glob("*/10000")))]) == 0
    assert "all scores are of validation examples" in " ".join(capsys.readouterr().out.split())


def test_an_untuned_grid_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid_in(tmp_path)
    path = tmp_path / "grid.toml"
    text = path.read_text(encoding="utf-8")
    start, end = text.index("[tune]"), text.index("[experiment]")
    path.write_text(text[:start] + text[end:], encoding="utf-8")
    out = tmp_path / "out"
    call = ["compare", str(path), "--out", str(out), "--no-figures", "--jobs", "1"]
    assert main(call) == 0
    assert "Constants were not tuned: every arm has those" in capsys.readouterr().out
    assert "Constants were not tuned" in (out / "compare.tex").read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    assert main(call) == 2
    assert "got [tune] after cells without it" in capsys.readouterr().err


def test_a_failed_tuning_run_chooses_nothing(tmp_path: Path) -> None:
    grid = grid_in(tmp_path)
    trials = tuning_grid(grid)
    failed = CellOutcome(problem="no memory")

    def run(cells: Sequence[GridCell]) -> list[CellResult]:
        return [CellResult(arm=c.arm.name, seed=c.seed, folder="", outcome=failed) for c in cells]

    with pytest.raises(RunError, match=r"got 4 of 4 that failed, such as one_learning_rate-0\.003"):
        tuned(grid, trials, run)
    assert tuned(grid, trials, lambda cells: None) is None


OWN_METRIC = """[experiment.evaluation]
metrics = ["perplexity", "top3"]
[[experiment.fleet]]"""


@pytest.mark.parametrize(
    ("criterion", "chosen"), [("metric.perplexity", 0), ("metric.top3.worst10", 1)]
)
def test_the_criterion_may_be_a_metric_by_name_with_its_own_side(
    tmp_path: Path, criterion: str, chosen: int
) -> None:
    """The second point has more of both: of a perplexity, less is better."""
    grid = grid_in(
        tmp_path,
        **{
            "seeds = 2\n": f'seeds = 2\ncriterion = "{criterion}"\n',
            "[[experiment.fleet]]": OWN_METRIC,
        },
    )
    sides = {"perplexity": "less", "top3": "more"}

    def run(cells: Sequence[GridCell], sides: dict[str, str] = sides) -> list[CellResult]:
        found = list[CellResult]()
        for cell in cells:
            rate = cell.arm.experiment.training.learning_rate
            values: dict[str, Any] = {criterion: 1.0 + rate}
            base = result(cell.arm.name, cell.seed, slope=0.1, **values)
            measured = base.outcome.measured
            assert measured is not None
            outcome = CellOutcome(measured=msgspec.structs.replace(measured, named=sides))
            found.append(msgspec.structs.replace(base, outcome=outcome))
        return found

    done = tuned(grid, tuning_grid(grid), run)
    assert done is not None
    assert done.tuned is not None
    assert done.tuned.better == ("less", "more")[chosen]
    assert done.arms[0].experiment.training.learning_rate == (0.003, 0.3)[chosen]
    assert f"chosen by {criterion} on validation examples" in done.tuned.line

    def undefined(cells: Sequence[GridCell]) -> list[CellResult]:
        return [
            msgspec.structs.replace(
                one,
                outcome=CellOutcome(
                    measured=msgspec.structs.replace(
                        one.outcome.measured, values={}, named={}, missing={criterion: "no value"}
                    )
                ),
            )
            for one in run(cells)
            if one.outcome.measured is not None
        ]

    with pytest.raises(
        RunError, match=rf"must have {criterion} in every seed, got none \(no value"
    ):
        tuned(grid, tuning_grid(grid), undefined)


def test_a_metric_by_name_as_criterion_is_one_of_every_arm_with_one_side(tmp_path: Path) -> None:
    two = '[[arm]]\nname = "one"\n[[arm]]\nname = "two"\nset = { "evaluation.metrics" = [] }'
    changes = {
        "seeds = 2\n": 'seeds = 2\ncriterion = "metric.top3"\n',
        "[[experiment.fleet]]": OWN_METRIC,
    }
    with pytest.raises(
        ExperimentError, match=r"tune\.criterion: must be a metric of every run, got"
    ):
        grid_in(tmp_path, **{'[[arm]]\nname = "one"': two}, **changes)
    both = two.replace('"evaluation.metrics" = []', '"training.epochs" = 2')
    grid = grid_in(tmp_path, **{'[[arm]]\nname = "one"': both}, **changes)

    def run(cells: Sequence[GridCell]) -> list[CellResult]:
        found = list[CellResult]()
        for cell in cells:
            values: dict[str, Any] = {"metric.top3": 0.5}
            base = result(cell.arm.name, cell.seed, slope=0.1, **values)
            assert base.outcome.measured is not None
            side = "more" if cell.arm.name.startswith("one") else "less"
            measured = msgspec.structs.replace(base.outcome.measured, named={"top3": side})
            found.append(msgspec.structs.replace(base, outcome=CellOutcome(measured=measured)))
        return found

    with pytest.raises(RunError, match=r"metric\.top3 must have one better side in all arms"):
        tuned(grid, tuning_grid(grid), run)
