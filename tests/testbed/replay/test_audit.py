"""Estimator errors on the selected devices, on the audit sample and on all devices of a replay."""

from pathlib import Path

import pytest

from fairbed.coordinator.report.estimators import compare_estimators, estimates_table
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.replay.run import replay_experiment
from tests.testbed.replay.test_linear_replay import PAPER

ROUNDS = 200


def replayed(folder: Path, *settings: str) -> RunReader:
    experiment = load_experiment(PAPER, [f"rounds={ROUNDS}", *settings], 3)
    replay_experiment(experiment, folder, folder.name, lambda replayed: None)
    return RunReader(folder)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> RunReader:
    folder = tmp_path_factory.mktemp("audit") / "run"
    return replayed(folder, "selection.audit=0.5", "selection.V=50.0")


def test_the_audit_sample_is_as_large_as_it_should_be(reader: RunReader) -> None:
    audits = reader.audits()
    assert 0.35 * ROUNDS < len(audits) < 0.65 * ROUNDS
    assert {t for t, _ in audits} <= set(range(1, ROUNDS + 1))
    assert summarise_run(reader).audits == len(audits)


def test_propensities_are_those_of_the_cohort(reader: RunReader) -> None:
    for t in (1, 17, ROUNDS):
        rows = reader.selections(t)
        there = [row for row in rows if row.is_available]
        selected = [row for row in rows if row.is_selected]
        assert sum(row.propensity or 0.0 for row in rows) == pytest.approx(len(selected))
        assert {row.propensity for row in rows if not row.is_available} == {0.0}
        least = min(row.propensity or 0.0 for row in there)
        assert least == pytest.approx(0.5 / len(there))


def test_every_sample_has_errors_and_the_noise_floor_is_the_least(reader: RunReader) -> None:
    found = compare_estimators(reader)
    assert list(found)[-1] == "noise floor"
    floor = found.pop("noise floor")
    assert floor.all_devices is None, "the noise floor knows the truth"
    assert floor.audit is not None
    # tau = c . theta (1 +- 10 %, uniform): half of that is the median of the unpredictable part
    assert floor.median_ape == pytest.approx(0.05, abs=0.01)
    for errors in found.values():
        assert errors.audit is not None
        assert errors.all_devices is not None
        assert errors.median_ape is not None
        assert floor.median_ape is not None
        assert errors.median_ape > floor.median_ape
        assert errors.count > errors.audit.count > 0.25 * ROUNDS
        assert errors.all_devices.count > 0.9 * 40 * ROUNDS


def test_the_audit_sample_shows_errors_that_the_selected_devices_hide(reader: RunReader) -> None:
    """A policy selects devices that it underestimates: errors on the others are larger."""
    ridge = compare_estimators(reader)["ridge"]
    assert ridge.audit is not None
    assert ridge.all_devices is not None
    on_selected, on_audit, on_all = (
        errors.bias or 0.0 for errors in (ridge, ridge.audit, ridge.all_devices)
    )
    assert on_all < on_selected - 0.01
    assert abs(on_audit - on_all) < abs(on_selected - on_all) + 0.01


def test_the_table_has_the_three_samples(reader: RunReader) -> None:
    table = estimates_table(compare_estimators(reader))
    heads = [line.split("  ")[0] for line in table.splitlines() if " p95 " in line]
    assert heads == ["on exchanges", "on the audit sample", "on all devices"]


def test_without_an_audit_there_is_no_audit_sample_and_no_other_choice(tmp_path: Path) -> None:
    plain = replayed(tmp_path / "plain", "rounds=30")
    off = replayed(tmp_path / "off", "rounds=30", "selection.audit=0.0")
    chosen = [[(x.round, x.device, x.tau_s) for x in one.exchanges()] for one in (plain, off)]
    assert chosen[0] == chosen[1]
    ridge = compare_estimators(plain)["ridge"]
    assert ridge.audit is None
    assert ridge.all_devices is not None
    assert plain.audits() == set()
    assert {row.propensity for row in plain.selections(30)} == {0.0, 1.0}
