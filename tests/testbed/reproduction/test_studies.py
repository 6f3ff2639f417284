"""The studies as data: they load, their cells are experiments, their claims are the sources'."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairbed.testbed.experiment.data import NAMES as DATASETS
from fairbed.testbed.reproduction.options import NAMES
from fairbed.testbed.reproduction.results import published_agrees
from fairbed.testbed.reproduction.running import dataset_of
from fairbed.testbed.reproduction.study import FOLDER, SizeName, Study, load_study

STUDIES = {name: load_study(name) for name in NAMES}


def test_each_source_has_a_file_and_each_file_a_source() -> None:
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(NAMES)


@pytest.mark.parametrize("size", ["smoke", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_each_cell_is_an_experiment(name: str, size: SizeName) -> None:
    study, texts = STUDIES[name], set[str]()
    for panel in study.panel:
        if dataset_of(study, panel) not in (None, *DATASETS):
            continue
        for run in study.runs_of(panel):
            experiment = study.experiment_of(name, panel, run, size, 3)
            assert experiment.seed == 3
            texts.add(msgspec.structs.replace(experiment, name="x").resolved_toml())
    cells = sum(
        len(study.runs_of(panel))
        for panel in study.panel
        if dataset_of(study, panel) in (None, *DATASETS)
    )
    assert len(texts) == cells, "two runs of a study are one experiment"


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_of_a_source_agree_with_its_claims(name: str) -> None:
    """A row that is typed wrong would contradict the claim that the source makes about it."""
    study = STUDIES[name]
    panels = {panel.name: panel for panel in study.panel}
    for claim in study.claim:
        agrees = published_agrees(claim, panels[claim.panel])
        assert agrees is not bool(claim.published_fails), (claim.panel, claim.of, claim.metric)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_run_can_judge_each_primary_claim(name: str) -> None:
    study = STUDIES[name]
    panels = {panel.name: panel for panel in study.panel}
    for claim in study.claim:
        rows = {row.label: row for row in panels[claim.panel].row}
        for label in (claim.of, *claim.than):
            of = panels[rows[label].panel or claim.panel]
            assert study.seeds(of, "full") >= 6
        assert study.seeds(panels[claim.panel], "full") >= 6


@pytest.mark.parametrize("name", NAMES)
def test_each_panel_with_rules_of_other_steps_has_one_of_equal_steps(name: str) -> None:
    """A claim about a rule that sets the length of its step is made once at equal steps."""
    study = STUDIES[name]
    runs = {run.name: run for run in study.run}
    for panel in study.panel:
        rows = {row.label: runs[row.run] for row in panel.row}
        own = [claim for claim in study.claim if claim.panel == panel.name]
        for claim in own:
            rule = rows[claim.of].set.get("aggregation.rule", "")
            rule = rule or study.experiment.get("aggregation", {}).get("rule", "")
            if rule in ("q-fedavg", "corefed") and not panel.not_comparable:
                assert any(other.treatment == "equal" for other in own), claim


def broken(change: Any) -> str:
    raw = msgspec.json.decode(msgspec.json.encode(STUDIES["q-ffl"]))
    change(raw)
    return msgspec.toml.encode(_without_none(raw)).decode()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(child) for key, child in value.items() if child is not None}
    if isinstance(value, list | tuple):
        return [_without_none(child) for child in value]
    return value


def test_a_study_survives_its_own_text(tmp_path: Path) -> None:
    Path(tmp_path, "mine.toml").write_text(broken(lambda raw: None))
    found: Study = load_study("mine", tmp_path)
    assert found == STUDIES["q-ffl"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda r: r["panel"][0]["row"][0].update(run="q-9"), "q = 0: unknown run 'q-9'"),
        (lambda r: r["panel"][0]["row"][0].update(panel="x"), "q = 0: unknown panel 'x'"),
        (lambda r: r["panel"][0]["metrics"].append("mean"), "unknown metric 'mean'"),
        (lambda r: r["panel"][0].update(reference="x"), "unknown reference 'x'"),
        (
            lambda r: r["panel"][0]["row"][0].update(label="q = 1"),
            "labels of rows must be distinct",
        ),
        (lambda r: r["panel"][0]["row"][0]["published"].update(least=1.0), "'least' is no column"),
        (lambda r: r["claim"][0].update(panel="x"), "claim: unknown panel 'x'"),
        (lambda r: r["claim"][0].update(of="q = 2"), "claim: synthetic: no row 'q = 2'"),
        (lambda r: r["claim"][0].update(metric="x"), "claim: unknown metric 'x'"),
        (lambda r: r["claim"][0].update(margin=1.0), "claim: q = 1: margin is for"),
        (lambda r: r["claim"][0].update(than=[]), "claim: q = 1: than must name a row"),
        (lambda r: r.update(colour="red"), "colour"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(tmp_path: Path, change: Any, line: str) -> None:
    Path(tmp_path, "mine.toml").write_text(broken(change))
    with pytest.raises(ValueError, match=f"mine.toml: .*{line}"):
        load_study("mine", tmp_path)
