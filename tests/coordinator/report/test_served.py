"""The models that devices serve: personal ones where there are some, and the numbers over them."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fairbed.coordinator.report.html import read_page, report_page
from fairbed.coordinator.report.summary import RunSummary, summarise_run, summary_table
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.tables import PersonalScoreRow
from fairbed.testbed.compare.measures import measure
from tests.coordinator.store.fake_run import FakeRun

DITTO = 'rule = "fedavg"\n[personalisation]\nmethod = "ditto"\n'


def personal(folder: Path, accuracies: dict[int, float], trained: tuple[int, ...] = ()) -> Path:
    """Return a run whose devices have personal models with these accuracies, by row.

    The devices of `trained` have trained one, too, whether there is a score of it or not.
    """
    run = FakeRun(folder, aggregation=DITTO)
    run.play(3)
    for row, accuracy in accuracies.items():
        name = run.names[row]
        run.store.add(PersonalScoreRow(round=3, device=name, n=20, accuracy=accuracy, loss=0.5))
    run.finish()
    with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
        for row in trained:
            connection.execute(
                "UPDATE exchange SET personal_s = 0.5 WHERE device = ?", (run.names[row],)
            )
    return folder


def summary_of(folder: Path) -> RunSummary:
    with RunReader(folder) as reader:
        return summarise_run(reader)


def numbers(summary: RunSummary) -> dict[str, float | None]:
    assert summary.measures
    return {
        key.removeprefix("served_"): found.value
        for key, found in summary.measures.items()
        if key.startswith("served_")
    }


def test_a_device_serves_its_personal_model_and_else_the_global_one(tmp_path: Path) -> None:
    own = {0: 1.0, 1: 0.0, 2: 0.95}
    summary = summary_of(personal(tmp_path / "r", own))
    found = numbers(summary)
    shared = [device.accuracy for device in summary.fleet]
    served = [own.get(row, value) for row, value in enumerate(shared)]
    known = sorted(value for value in served if value is not None)
    assert found["accuracy_mean"] == pytest.approx(sum(known) / len(known), abs=0.02)
    assert found["accuracy_worst10"] == 0.0
    assert found["accuracy_best10"] == 1.0
    assert found["personal"] == 3
    assert found["rmse_mean"] is None
    text = summary_table(summary)
    mean = f"served accuracy {found['accuracy_mean']:.3f}"
    assert f"\nserved     {mean}; served worst 10 % 0.000" in text
    assert "RMSE" not in text
    assert summary.accuracy.mean != found["accuracy_mean"]
    with RunReader(tmp_path / "r") as reader:
        page = report_page([read_page(reader, has_figures=False)])
    assert "served models, worst 10&nbsp;%" in page


def test_a_run_without_personal_models_serves_the_global_one_and_does_not_state_it(
    tmp_path: Path,
) -> None:
    run = FakeRun(tmp_path / "r")
    run.play(3)
    summary = summary_of(run.finish())
    found = numbers(summary)
    for part in ("mean", "worst10", "pooled"):
        assert found[f"accuracy_{part}"] == pytest.approx(getattr(summary.accuracy, part), abs=0.02)
    assert found["personal"] == 0
    assert "served" not in summary_table(summary)


def test_a_personal_model_without_a_score_is_no_global_one(tmp_path: Path) -> None:
    """Of twelve devices three have a score; two others trained a model that nobody tested."""
    summary = summary_of(personal(tmp_path / "r", {0: 1.0, 1: 1.0, 2: 1.0}, trained=(0, 4, 5)))
    counted = [d.accuracy for at, d in enumerate(summary.fleet) if at not in (0, 1, 2, 4, 5)]
    mean = (3.0 + sum(value or 0.0 for value in counted)) / 10
    assert numbers(summary)["accuracy_mean"] == pytest.approx(mean, abs=0.02)
    (note,) = [line for line in summary.evaluation_notes if "personal model" in line]
    assert note.startswith("2 devices trained a personal model without a score of it")
    none = summary_of(personal(tmp_path / "none", {}, trained=(0,)))
    assert set(numbers(none).values()) == {None}
    assert none.measures
    why = "devices train personal models, and no score of one is known"
    assert none.measures["served_accuracy_mean"].why_none == why
    assert measure(tmp_path / "none").missing["served_accuracy_mean"] == why


def test_malicious_devices_serve_nothing(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "r", malicious={0: "free-rider", 1: "free-rider"})
    run.play(3)
    summary = summary_of(run.finish())
    assert summary.attackers is not None
    assert numbers(summary)["accuracy_mean"] == pytest.approx(summary.attackers.accuracy_mean)
