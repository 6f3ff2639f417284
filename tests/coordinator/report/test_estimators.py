"""Errors of estimators on the exchanges of a run; those of its own are as in the run."""

from pathlib import Path

import pytest

from fairbed.coordinator.report.estimators import compare_estimators, estimates_table
from fairbed.coordinator.report.quantities import MISSING
from fairbed.coordinator.store import RunReader
from tests.coordinator.store.fake_run import fake_run


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> RunReader:
    return RunReader(fake_run(tmp_path_factory.mktemp("runs") / "run-1"))


BASELINES = ["last value", "device mean", "global mean"]


def test_every_estimator_learns_from_the_same_exchanges(reader: RunReader) -> None:
    found = compare_estimators(reader)
    assert list(found) == ["ridge", "phases", "mixture", *BASELINES]
    assert len({errors.count for errors in found.values()}) == 1
    valid = [x for x in reader.exchanges() if x.outcome == "done" and x.is_valid]
    assert found["ridge"].count == len(valid) - len({x.device for x in valid})


def test_only_the_global_mean_ignores_differences_between_devices(reader: RunReader) -> None:
    found = compare_estimators(reader)
    best = found["device mean"].median_ape, found["phases"].median_ape
    worst = found["global mean"].median_ape
    assert worst is not None
    assert all(ape is not None and ape < worst / 2 for ape in best)


def test_the_table_has_a_line_for_each(reader: RunReader) -> None:
    lines = estimates_table(compare_estimators(reader)).splitlines()
    assert [line.split("  ")[0] for line in lines[1:7]] == [
        "ridge",
        "phases",
        "mixture",
        *BASELINES,
    ]


def test_a_run_without_exchanges_has_no_errors(tmp_path: Path) -> None:
    with RunReader(fake_run(tmp_path / "run-2", rounds=0)) as reader:
        found = compare_estimators(reader)
    assert {errors.count for errors in found.values()} == {0}
    assert all(line.endswith(MISSING) for line in estimates_table(found).splitlines()[1:6])
