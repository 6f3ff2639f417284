"""`fairbed reproduce`: what is run, what is kept, what is run again, and the pages."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from fairbed.coordinator.store.connection import RunLock
from fairbed.testbed.cli.main import main
from fairbed.testbed.compare.grid import RUNS
from fairbed.testbed.errors import RunError
from fairbed.testbed.inputs import product
from fairbed.testbed.progress import Bar
from fairbed.testbed.reproduction.claims import Verdict
from fairbed.testbed.reproduction.options import NAMES
from fairbed.testbed.reproduction.page import claims_csv, html, markdown, rows_csv
from fairbed.testbed.reproduction.record import CellRecord, DeviceScores, write_record
from fairbed.testbed.reproduction.results import result_of
from fairbed.testbed.reproduction.running import WORK, Plan, make_plan, run_plan
from fairbed.testbed.reproduction.study import Claim, Panel, Row, Run, Size, Study, load_study

SELECTION = 7
"""Cells of the smoke run of RBCS-F that need no data."""


@pytest.fixture(autouse=True)
def _no_data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "with_data" not in request.fixturenames:
        monkeypatch.delenv("FAIRBED_DATA", raising=False)


@pytest.fixture
def with_data() -> None:
    """Leave FAIRBED_DATA as it is."""


def small(**more: Any) -> Study:
    """Return a study of two runs without training."""
    group = {"model": "linear", "count": 4, "availability": 1.0}
    group |= {"theta": [1.0, 0.0, 0.0]}
    values: dict[str, Any] = {
        "title": "Small",
        "source": "Nobody, 2026.",
        "settings": "Made up.",
        "experiment": {
            "rounds": 3,
            "selection": {"policy": "uniform", "per_round": 2},
            "fleet": [group],
        },
        "run": (Run(name="a"), Run(name="b", set={"selection.policy": "rbcs-f"})),
        "panel": (
            Panel(
                name="p",
                title="Panel",
                metrics=("total", "jain"),
                row=(
                    Row(label="A", run="a", published={"total": 12.0}, spread={"total": 0.5}),
                    Row(label="B", run="b"),
                ),
            ),
        ),
        "claim": (Claim(panel="p", metric="total", of="A", kind="more", than=("B",)),),
        "deviations": ("All of it.",),
        "smoke": Size(seeds=1),
        "full": Size(seeds=2),
    }
    return Study(**(values | more))


def planned(study: Study, out: Path) -> Plan:
    return make_plan({"small": study}, "full", out)


def finished(plan: Plan, out: Path, **more: Any) -> None:
    """Write a result file for each cell of a plan, without a run."""
    for cell in plan.cells:
        values: dict[str, Any] = {
            "fairbed": product(),
            "depends": cell.depends,
            "seconds": 2.0,
            "devices": [],
            "malicious": [],
            "models": {},
            "run": {"total_s": 10.0 + cell.seed, "jain": None},
        }
        write_record(cell.path(out), CellRecord(**(values | more)))


def left(plan: Plan) -> int:
    return len(plan.left)


def test_a_finished_cell_is_not_run_again(tmp_path: Path) -> None:
    plan = planned(small(), tmp_path)
    assert left(plan) == 4
    finished(plan, tmp_path)
    again = planned(small(), tmp_path)
    assert (left(again), again.notes) == (0, [])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: s.experiment.update(rounds=4), "rounds"),
        (lambda s: s.experiment["selection"].update(per_round=3), "selection.per_round"),
        (lambda s: s.experiment["fleet"][0].update(noise=0.5), "fleet.0.noise"),
        (lambda s: s.experiment["fleet"][0].update(count=5), "fleet.0.count"),
    ],
)
def test_a_changed_dependency_is_run_again_and_named(
    tmp_path: Path, change: Callable[[Study], None], named: str
) -> None:
    finished(planned(small(), tmp_path), tmp_path)
    study = small()
    change(study)
    again = planned(study, tmp_path)
    assert left(again) == 4
    (line,) = again.notes
    assert line == f"small: {named} changed since: 4 cells to run again"


def test_one_changed_run_leaves_the_others(tmp_path: Path) -> None:
    finished(planned(small(), tmp_path), tmp_path)
    runs = (Run(name="a"), Run(name="b", set={"selection.policy": "rbcs-f", "selection.V": 5.0}))
    again = planned(small(run=runs), tmp_path)
    assert [cell.run.name for cell in again.left] == ["b", "b"]


def test_another_version_of_what_computes_is_run_again(tmp_path: Path) -> None:
    plan = planned(small(), tmp_path)
    older = {**plan.cells[0].depends, "version of numpy": "1.0"}
    finished(plan, tmp_path, depends=older)
    assert "version of numpy" in planned(small(), tmp_path).notes[0]


def test_a_newer_revision_warns_and_keeps_the_cells(tmp_path: Path) -> None:
    finished(planned(small(), tmp_path), tmp_path, fairbed="0.0.9 (source 12345678)")
    again = planned(small(), tmp_path)
    assert left(again) == 0
    (line,) = again.notes
    assert line.startswith("warning: 4 finished cells of Fairbed 0.0.9 (source 12345678), this is ")


def test_a_key_that_a_revision_adds_at_its_default_changes_nothing(tmp_path: Path) -> None:
    plan = planned(small(), tmp_path)
    for cell in plan.cells:
        kept = {k: v for k, v in cell.depends.items() if k not in ("selection.V", "fleet.0.mu")}
        finished(Plan(plan.studies, "full", [cell]), tmp_path, depends=kept)
    assert left(planned(small(), tmp_path)) == 0
    for cell in plan.cells:
        other = {**cell.depends, "selection.removed": 7}
        finished(Plan(plan.studies, "full", [cell]), tmp_path, depends=other)
    assert "selection.removed" in planned(small(), tmp_path).notes[0]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{}",
        b'{"fairbed": 3}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_result_file_is_run_again(tmp_path: Path, damage: bytes) -> None:
    plan = planned(small(), tmp_path)
    finished(plan, tmp_path)
    plan.cells[0].path(tmp_path).write_bytes(damage)
    again = planned(small(), tmp_path)
    assert left(again) == 1
    assert "must be a result file" in again.notes[0]
    assert again.notes[0].endswith("; the cell is run again")


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"malicious": [2]}, "malicious: must be numbers of its 2 devices"),
        ({"models": {"global": DeviceScores(n=[1, 2, 3])}}, "a score for each of 2 devices"),
        (
            {"models": {"global": DeviceScores(n=[1, 2], accuracy=[0.5])}},
            "models.global: must have a score for each of 2 devices",
        ),
        ({"models": {"global": DeviceScores(n=[1, 0])}}, "devices must have held-out examples"),
    ],
)
def test_a_result_file_that_contradicts_itself_is_run_again(
    tmp_path: Path, more: dict[str, Any], line: str
) -> None:
    finished(planned(small(), tmp_path), tmp_path, devices=["d-1", "d-2"], **more)
    again = planned(small(), tmp_path)
    assert left(again) == 4
    assert line in again.notes[0]


def test_scores_of_malicious_devices_do_not_count() -> None:
    record = CellRecord(
        fairbed="x",
        depends={},
        seconds=1.0,
        devices=["d-1", "d-2", "d-3"],
        malicious=[1],
        models={"global": DeviceScores(n=[5, 6, 7], accuracy=[0.1, None, 0.3])},
        run={},
    )
    scores = record.scores("global", record)
    assert scores.n.tolist() == [5.0, 7.0]
    assert scores.columns["accuracy"].tolist() == [0.1, 0.3]
    assert record.scores("personal", None).columns == {}


def test_the_time_is_that_of_finished_cells_of_the_run(tmp_path: Path) -> None:
    plan = planned(small(), tmp_path)
    assert plan.cost_s(plan.cells[0]) == pytest.approx(60.5)
    finished(Plan(plan.studies, "full", plan.cells[:1]), tmp_path)
    again = planned(small(), tmp_path)
    assert [again.cost_s(cell) for cell in again.left] == pytest.approx([60.5, 60.5, 2.0])


def test_two_commands_do_not_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / WORK).mkdir()
    lock = RunLock(tmp_path / WORK)
    try:
        with pytest.raises(RunError, match="another process uses it"):
            run_plan(planned(small(), tmp_path), tmp_path, 1, Bar(4, "cells", "x", sys.stderr))
    finally:
        lock.release()


def test_a_page_has_the_published_rows_beside_ours(tmp_path: Path) -> None:
    plan = planned(small(), tmp_path)
    finished(plan, tmp_path)
    plan = planned(small(), tmp_path)
    found = result_of("small", small(), "full", "fairbed reproduce small", plan.finished("small"))
    page = markdown(found)
    assert "| A | source | 12 ± 0.5 | – |" in page
    assert "|  | here | 10 [4, 17] | – |" in page
    assert "| B | here | 10 [4, 17] | – |" in page
    assert "no power: a verdict needs 6 seeds, got 2" in page
    assert "- All of it." in page
    assert "fairbed reproduce small\n```" in page
    numbers = list(csv.DictReader(rows_csv(found).splitlines()))
    assert numbers[0]["published"] == "12"
    assert (numbers[0]["mean"], numbers[0]["seeds"]) == ("10.5", "2")
    assert numbers[1]["missing"] == "the run has no jain"
    assert next(csv.DictReader(claims_csv(found).splitlines()))["verdict"] == "no power"
    assert "A has more than B" in html(found, None)


def test_a_panel_without_data_is_skipped_by_name(tmp_path: Path) -> None:
    plan = make_plan({"corefed": load_study("corefed")}, "full", tmp_path)
    assert plan.cells == []
    panels = ("adult", "mnist", "cifar10", "vgg-11")
    assert set(plan.problems) == {("corefed", name) for name in panels}
    found = result_of("corefed", plan.studies["corefed"], "full", "x", plan.finished("corefed"))
    assert {claim.verdict for claim in found.claims} == {"not run: no data"}
    assert "Not run: no data: mnist" in markdown(found)


@pytest.mark.full
def test_a_killed_command_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "rbcs-f", "--smoke", "--jobs", "1", "--out", str(tmp_path)]
    cells = tmp_path / "cells" / "rbcs-f" / "selection"
    begun = subprocess.Popen(
        [sys.executable, "-m", "fairbed.testbed.cli.main", *command],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        while not list(cells.glob("*.json")) and begun.poll() is None:
            time.sleep(0.01)
    finally:
        begun.send_signal(signal.SIGKILL)
        begun.wait()
    kept = {path: path.stat().st_mtime_ns for path in cells.glob("*.json")}
    assert 1 <= len(kept) < SELECTION
    assert main(command) == 0
    lines = capsys.readouterr()
    assert f"{len(kept)} of {SELECTION} cells are finished" in lines.err
    assert "accuracy: not run: no data: fashion-mnist" in lines.err
    assert len(list(cells.glob("*.json"))) == SELECTION
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert not (tmp_path / WORK / RUNS).exists()
    assert main(["reproduce", "rbcs-f", "--smoke", "--out", str(tmp_path), "--json"]) == 0
    lines = capsys.readouterr()
    assert f"{SELECTION} of {SELECTION} cells are finished\n" in lines.err
    (found,) = json.loads(lines.out)
    assert found["name"] == "rbcs-f"
    assert {claim["verdict"] for claim in found["claims"]} == {"no power", "not run: no data"}


def test_a_failed_cell_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    runs = (Run(name="a"), Run(name="b", set={"selection.policy": "no_such.module:Selector"}))
    plan = planned(small(run=runs, full=Size(seeds=1)), tmp_path)
    failed, is_whole = run_plan(plan, tmp_path, 1, Bar(2, "cells", "x", sys.stderr))
    assert is_whole
    (line,) = failed
    assert re.match(r"small\.p\.b, seed 0: failed: .*no_such", line)
    found = result_of("small", plan.studies["small"], "full", "x", plan.finished("small"))
    (claim,) = found.claims
    assert (claim.verdict, claim.reason) == ("no judgement", "B, seed 0: not finished")


@pytest.mark.full
@pytest.mark.usefixtures("with_data")
def test_the_smoke_run_of_all_sources_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Absent data are skipped by name; with all data it takes half a minute on two cores."""
    assert main(["reproduce", "all", "--smoke", "--out", str(tmp_path), "--json"]) == 0
    lines = capsys.readouterr()
    studies = json.loads(lines.out)
    assert [study["name"] for study in studies] == list(NAMES)
    for study in studies:
        for panel in study["panels"]:
            assert panel["problem"] or panel["finished"] == panel["cells"], panel["name"]
            if panel["problem"]:
                assert f"{study['name']}: {panel['name']}: not run: no data" in lines.err
        assert {claim["verdict"] for claim in study["claims"]} <= set(get_args(Verdict))
        for suffix in (".md", ".html", ".csv", "-claims.csv"):
            assert Path(tmp_path, f"{study['name']}{suffix}").stat().st_size > 0
    sizes = [os.path.getsize(path) for path in tmp_path.rglob("*.json")]
    assert max(sizes) < 50_000
