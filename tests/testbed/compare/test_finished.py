"""Runs that exist are compared as the cells of a grid would be."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fairbed.coordinator.report.markup import HtmlCell
from fairbed.coordinator.store.connection import DATABASE
from fairbed.testbed.compare.comparison import Comparison
from fairbed.testbed.compare.finished import MAX_ARM_NAME, as_grid, name_arms, read_runs
from fairbed.testbed.compare.side_by_side import side_by_side
from fairbed.testbed.experiment.file import ExperimentError
from tests.coordinator.store.fake_run import FakeRun

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a run of a few rounds; `text` is added to its experiment."""

    def made(
        name: str,
        seed: int,
        *,
        replace: tuple[str, str] = ("", ""),
        rounds: int = 3,
        status: str = "done",
    ) -> Path:
        run = FakeRun(tmp_path / name, devices=4, rounds=max(rounds, 1), seed=seed)
        run.play(rounds)
        folder = run.finish(status)
        path = folder / "experiment.toml"
        text = path.read_text().replace("seed = 7", f"seed = {seed}")
        path.write_text(text.replace(*replace))
        return folder

    return made


UNIFORM = ('policy = "rbcs-f"', 'policy = "uniform"')


def compared(folders: list[Path]) -> Comparison:
    return as_grid(read_runs(folders)).compare()


def test_runs_that_differ_in_the_seed_are_one_arm(make: Make) -> None:
    folders = [make(f"a{seed}", seed) for seed in (1, 2)]
    folders += [make(f"b{seed}", seed, replace=UNIFORM) for seed in (1, 2)]
    found = as_grid(read_runs(folders))
    assert found.arms == (("policy-rbcs-f",) * 2 + ("policy-uniform",) * 2)
    assert found.grid.seeds == (1, 2)
    assert found.grid.baseline == "policy-rbcs-f"


def test_differences_are_paired_by_seed(make: Make) -> None:
    folders = [make(f"a{seed}", seed) for seed in (1, 2, 3)]
    folders += [make(f"b{seed}", seed, replace=UNIFORM, rounds=4) for seed in (3, 2, 9)]
    comparison = compared(folders)
    baseline, other = comparison.arms
    times = {(cell.arm, cell.seed): cell.values["virtual_s"] for cell in comparison.cells}
    ratios = [
        (times[other.name, seed] or 0.0) / (times[baseline.name, seed] or 1.0) for seed in (2, 3)
    ]
    gap = other.differences["virtual_s"]
    assert gap.n == 2
    assert gap.mean == pytest.approx((ratios[0] * ratios[1]) ** 0.5 - 1.0)
    assert any("3 to 4 rounds" in line for line in comparison.warnings)


def test_experiments_with_own_names_name_their_arms(make: Make) -> None:
    folders = [
        make("a", 1),
        make("b", 1, replace=('name = "digits-12"', 'name = "other"')),
    ]
    assert len(set(name_arms(read_runs(folders)))) == 1  # a name alone is no difference
    folders[1] = make("c", 1, replace=UNIFORM)
    path = folders[1] / "experiment.toml"
    path.write_text(path.read_text().replace("digits-12", "other"))
    assert name_arms(read_runs(folders)) == ["digits-12", "other"]


def test_a_replay_and_a_live_run_are_two_arms(make: Make) -> None:
    folders = [make("live", 1), make("replayed", 1)]
    with closing(sqlite3.connect(folders[1] / DATABASE)) as connection:
        connection.execute("UPDATE run SET clock = 'virtual'")
        connection.commit()
    assert name_arms(read_runs(folders)) == ["kind-live", "kind-replay"]


def test_of_many_keys_the_first_few_that_differ_name_the_arms(make: Make) -> None:
    folders = [make("a", 1), make("b", 1, replace=UNIFORM)]
    path = folders[1] / "experiment.toml"
    more = "epochs = 3\nbatch_size = 7\nlearning_rate = 0.3\nmomentum = 0.5\nweight_decay = 0.1"
    path.write_text(f"{path.read_text()}\n[training]\n{more}\n")
    names = name_arms(read_runs(folders))
    assert len(set(names)) == 2
    assert max(map(len, names)) <= MAX_ARM_NAME
    assert all("-" in name for name in names)


def test_the_primary_metric_is_what_the_runs_have(make: Make) -> None:
    folders = [make("a", 1), make("b", 1, replace=UNIFORM)]
    assert compared(folders).primary == "accuracy_mean"
    for folder in folders:
        with closing(sqlite3.connect(folder / DATABASE)) as connection:
            connection.execute("DELETE FROM metric")
            connection.commit()
    comparison = compared(folders)
    assert comparison.primary == "virtual_s"
    assert comparison.budget_metric == "updates"


def test_two_runs_of_one_experiment_and_seed_cannot_be_paired(make: Make) -> None:
    folders = [make("a", 1), make("b", 1)]
    with pytest.raises(ExperimentError, match=r"distinct seeds.*got seed 1 in .*a, too"):
        as_grid(read_runs(folders))
    page = side_by_side(folders)
    assert page.tables == []
    assert len(page.notes) == 1
    assert "No differences were tested" in page.notes[0]


def test_a_run_that_is_not_done_is_named(make: Make) -> None:
    folders = [make("a", 1), make("b", 1, replace=UNIFORM, status="stopped")]
    comparison = compared(folders)
    assert any("b is not done but stopped" in line for line in comparison.warnings)
    assert any(line.endswith("add runs with other seeds") for line in comparison.warnings)


def test_a_run_without_rounds_has_no_numbers(make: Make) -> None:
    folders = [make("a", 1), make("b", 1, replace=UNIFORM, rounds=0)]
    comparison = compared(folders)
    (problem,) = comparison.problems
    assert problem.problem == "b has no closed round"
    assert comparison.arms[1].values == {}


def test_an_experiment_of_another_version_is_no_obstacle_for_the_page(make: Make) -> None:
    folders = [make("a", 1), make("b", 2)]
    path = folders[1] / "experiment.toml"
    path.write_text(path.read_text() + "\n[no_such_section]\nkey = 1\n")
    page = side_by_side(folders)
    assert page.arms == ["", ""]
    assert "no_such_section" in page.notes[0]


def test_the_page_says_the_difference_of_the_primary_metric_in_words(make: Make) -> None:
    folders = [make(f"a{seed}", seed) for seed in (1, 2)]
    folders += [make(f"b{seed}", seed, replace=UNIFORM) for seed in (1, 2)]
    page = side_by_side(folders)
    sentence = page.sentences[0]
    assert sentence.startswith("Final accuracy of policy-uniform:")
    assert "over 2 shared seeds: no power: a verdict needs 6 shared seeds." in sentence
    (table,) = page.tables
    headings = [column.heading for column in table.columns]
    assert headings == ["", "policy-rbcs-f", "policy-uniform", "policy-uniform - policy-rbcs-f"]
    assert any(str(row[0]).endswith("*") for row in table.rows)


def test_the_page_has_the_seeds_of_a_metric_that_some_runs_lack(make: Make) -> None:
    """Neither a sentence nor a cell of the table hides that one seed has no prediction."""
    folders = [make(f"a{seed}", seed) for seed in (1, 2)]
    folders += [make(f"b{seed}", seed, replace=UNIFORM) for seed in (1, 2)]
    with closing(sqlite3.connect(folders[3] / DATABASE)) as connection:
        connection.execute("UPDATE exchange SET tau_hat_s = NULL")
        connection.commit()
    page = side_by_side(folders)
    rows = {str(row[0]): row for row in page.tables[0].rows}
    _, own, other, gap = rows["mean error of predictions"]
    assert "n=" not in str(own)
    assert str(other).endswith(" n=1/2")
    assert isinstance(gap, HtmlCell)
    assert gap.text.endswith(" n=1 no verdict")
    (note,) = [
        line for line in page.notes if line.startswith("Undefined: mean error of predictions")
    ]
    assert "1 of 2 seeds of policy-uniform (too few timed exchanges with a prediction)" in note
