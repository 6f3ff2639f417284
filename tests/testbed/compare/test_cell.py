"""The states of a cell's folder when a grid resumes, and their handling."""

import sqlite3
from pathlib import Path

import pytest

from fairbed.coordinator.report.measures.scales import RunSize
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.connection import RunLock
from fairbed.testbed.compare.cell import CellOutcome, state_of
from fairbed.testbed.compare.measures import measure
from fairbed.testbed.compare.worker import CellJob, run_job
from fairbed.testbed.experiment.file import load_experiment
from tests.coordinator.store.fake_run import fake_run

PAPER = Path(__file__).parents[3] / "examples" / "rbcs-f-paper.toml"


def replayed(folder: Path, rounds: int = 3) -> CellOutcome:
    experiment = load_experiment(PAPER, [f"rounds={rounds}"])
    return run_job(CellJob(run_id="cell", folder=str(folder), experiment=experiment))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "uniform" / "0"


def test_a_cell_is_replayed_once(folder: Path) -> None:
    assert state_of(folder) == "new"
    first = replayed(folder)
    assert state_of(folder) == "done"
    again = replayed(folder)
    assert (first.was_done_before, again.was_done_before) == (False, True)
    assert first.measured == again.measured
    assert first.measured is not None
    assert first.measured.curves.rounds == (1, 2, 3)


def test_a_plug_in_that_cannot_be_loaded_fails_its_cell_with_its_own_line(folder: Path) -> None:
    experiment = load_experiment(PAPER, ["selection.estimator=json:JSONDecoder"])
    outcome = run_job(CellJob(run_id="cell", folder=str(folder), experiment=experiment))
    assert outcome.problem.startswith("estimator json:JSONDecoder: must have predict(), observe()")


@pytest.mark.parametrize("content", [b"", b"garbage" * 500])
def test_a_run_that_died_at_its_start_is_started_again(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    (folder / "run.db").write_bytes(content)
    assert state_of(folder) == "damaged"
    assert replayed(folder).problem == ""
    assert state_of(folder) == "done"


def test_an_interrupted_run_is_resumed(folder: Path) -> None:
    whole = replayed(folder)
    with sqlite3.connect(folder / "run.db") as connection:
        connection.execute("UPDATE run SET status = 'running'")
    connection.close()
    assert state_of(folder) == "partial"
    rest = replayed(folder)
    assert whole.measured is not None
    assert rest.measured is not None
    assert rest.measured.curves == whole.measured.curves
    with RunReader(folder) as reader:
        assert reader.run().row.resumes == 1


def test_a_run_of_a_newer_version_is_not_changed(folder: Path) -> None:
    replayed(folder)
    with sqlite3.connect(folder / "run.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert "update Fairbed to open it" in replayed(folder).problem
    assert (folder / "run.db").exists()


def test_a_run_in_use_by_another_process_is_not_changed(folder: Path) -> None:
    replayed(folder)
    lock = RunLock(folder)
    try:
        with pytest.raises(StoreError, match="another process uses this run"):
            state_of(folder)
        assert "another process uses this run" in replayed(folder).problem
    finally:
        lock.release()


def test_an_undefined_metric_has_a_reason_and_a_cell_its_sizes(tmp_path: Path) -> None:
    found = measure(fake_run(tmp_path / "run", rounds=3, devices=4))
    undefined = {key for key, value in found.values.items() if value is None}
    assert found.missing.keys() == undefined
    assert found.missing["epsilon_max"] == "no local noise, or its accountant is not installed"
    assert found.missing["rmse_mean"] == "the task is not regression"
    assert "it was not recorded" not in found.missing.values()
    with RunReader(tmp_path / "run") as reader:
        examples = sum(row.n for row in reader.device_metrics())
        selections = sum(count.selected for count in reader.selection_counts())
    assert found.size == RunSize(rounds=3, devices=4, selections=selections, test_examples=examples)
