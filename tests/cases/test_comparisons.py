"""Cases of comparisons: benign devices of a clean baseline, and warnings that runs have."""

import json
from pathlib import Path

import pytest

from fairbed.coordinator.report.html import write_report
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main

ATTACK = """
name = "attacked"
rounds = 4
[data]
dataset = "digits"
max_examples = 400
[model]
name = "softmax"
[selection]
policy = "uniform"
per_round = 4
[[fleet]]
profile = "raspberry-pi-4b"
count = 8
malicious = { kind = "label-poisoning", share = 0.25 }
"""

GRID = """
experiment = "attack.toml"
seeds = [3]
primary = "benign_accuracy_mean"
[[arm]]
name = "clean"
set = { "fleet.0.malicious.share" = 0.0 }
[[arm]]
name = "too-few"
set = { "fleet.0.malicious.share" = 0.1 }
[[arm]]
name = "attacked"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_malicious_device_all_are_benign(folder: Path) -> None:
    (folder / "attack.toml").write_text(ATTACK)
    (folder / "grid.toml").write_text(GRID)
    assert main(["compare", "grid.toml", "--no-figures", "--jobs", "1"]) == 0
    found = json.loads((folder / "comparisons" / "grid" / "compare.json").read_bytes())
    by_arm = {cell["arm"]: cell["values"] for cell in found["cells"]}
    clean, attacked = by_arm["clean"], by_arm["attacked"]
    for key in ("accuracy_mean", "accuracy_worst10", "accuracy_variance"):
        assert clean[f"benign_{key}"] == pytest.approx(clean[key])
    assert (clean["malicious_selections"], clean["malicious_weight"]) == (0.0, 0.0)
    assert {**clean, "wall_s": 0.0} == {**by_arm["too-few"], "wall_s": 0.0}
    assert attacked["benign_accuracy_mean"] < clean["benign_accuracy_mean"]
    with RunReader(folder / "comparisons" / "grid" / "runs" / "clean" / "3") as reader:
        summary = summarise_run(reader)
        write_report([reader], folder / "page.html", None, has_figures=False)
    assert summary.attackers is not None
    assert summary.attackers.kinds == {}
    lines = summary_table(summary).splitlines()
    assert (
        "malicious  none: 0.0 % of the devices, 0.0 % of the selections, 0.0 % of the weight"
        in (lines)
    )
    assert any(line.startswith("benign     accuracy: mean 0.") for line in lines)
    assert "Malicious devices:" not in (folder / "page.html").read_text()


def test_runs_without_any_attack_have_no_metrics_of_one(folder: Path) -> None:
    plain = ATTACK.replace('malicious = { kind = "label-poisoning", share = 0.25 }', "")
    (folder / "attack.toml").write_text(plain)
    arms = '[[arm]]\nname = "one"\n[[arm]]\nname = "two"\nset = { "training.epochs" = 2 }\n'
    (folder / "grid.toml").write_text(f'experiment = "attack.toml"\nseeds = 1\n{arms}')
    assert main(["compare", "grid.toml", "--no-figures", "--jobs", "1"]) == 0
    found = json.loads((folder / "comparisons" / "grid" / "compare.json").read_bytes())
    keys = {metric["key"] for metric in found["metrics"]}
    assert "accuracy_mean" in keys
    assert not any("benign" in key or "malicious" in key for key in keys)


WEIGHTED = """
name = "weighted"
rounds = 3
[data]
dataset = "digits"
max_examples = 400
[model]
name = "softmax"
[aggregation]
rule = "corefed"
M = 1.0
[selection]
policy = "uniform"
per_round = 4
[[fleet]]
profile = "raspberry-pi-4b"
count = 8
"""

TWICE = """
experiment = "weighted.toml"
seeds = 2
[[arm]]
name = "plain"
[[arm]]
name = "twice"
set = { "selection.policy" = "weighted", "aggregation.weights" = "n", "aggregation.M" = 30.0 }
"""


def test_warnings_of_runs_reach_the_comparison_with_their_number(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "weighted.toml").write_text(WEIGHTED)
    (folder / "grid.toml").write_text(TWICE)
    assert main(["compare", "grid.toml", "--no-figures", "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    (losses,) = [line for line in printed.splitlines() if line.startswith("warning: losses ")]
    (twice,) = [line for line in printed.splitlines() if line.startswith("warning: counted-twice ")]
    assert losses.startswith("warning: losses in 2 of 4 runs (plain): ")
    assert twice.startswith("warning: counted-twice in 2 of 4 runs (twice): ")
    out = folder / "comparisons" / "grid"
    found = json.loads((out / "compare.json").read_bytes())["warnings"]
    assert losses.removeprefix("warning: ") in found
    runs = [str(out / "runs" / arm / "0") for arm in ("plain", "twice")]
    assert main(["report", *runs, "--out", "page.html", "--no-figures"]) == 0
    page = (folder / "page.html").read_text()
    assert "losses in 1 of 2 runs" in page
    assert "counted-twice in 1 of 2 runs" in page
