"""examples/attacks.toml: malicious devices, live and replayed, with and without a defence."""

from pathlib import Path

import pytest

from fairbed.coordinator.report.summary import RunSummary, summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main

ATTACKS = Path(__file__).parents[2] / "examples" / "attacks.toml"
MALICIOUS = {"pi-4": "model-replacement", "pi-5": "model-replacement"}


def summary_of(folder: Path, command: str, *settings: str) -> RunSummary:
    options = [part for setting in settings for part in ("--set", setting)]
    options += ["--headless"] if command == "run" else []
    assert main([command, str(ATTACKS), "--out", str(folder), *options]) == 0
    with RunReader(folder) as reader:
        return summarise_run(reader)


def benign_accuracy(summary: RunSummary) -> float:
    assert summary.attackers is not None
    assert summary.attackers.accuracy_mean is not None
    return summary.attackers.accuracy_mean


@pytest.mark.full
def test_the_defence_keeps_the_accuracy_that_the_attack_destroys(tmp_path: Path) -> None:
    honest = summary_of(tmp_path / "honest", "replay", "fleet.0.malicious.share=0.0")
    undefended = summary_of(tmp_path / "undefended", "replay", "aggregation.defence=none")
    defended = summary_of(tmp_path / "defended", "replay")
    assert honest.attackers is not None
    assert honest.attackers.kinds == {}
    assert honest.accuracy.mean is not None
    assert benign_accuracy(honest) == honest.accuracy.mean
    assert {d.name: d.malicious for d in defended.fleet if d.malicious} == MALICIOUS
    assert benign_accuracy(undefended) < 0.6
    assert benign_accuracy(defended) > honest.accuracy.mean - 0.03
    assert defended.attackers is not None
    assert defended.attackers.left_out == defended.attackers.aggregated == 40
    assert defended.attackers.weight_share == 0.0


@pytest.mark.full
def test_a_live_run_has_the_attack_of_its_replay(tmp_path: Path) -> None:
    settings = ("rounds=3", "aggregation.defence=none")
    live = summary_of(tmp_path / "live", "run", *settings)
    replayed = summary_of(tmp_path / "replay", "replay", *settings)
    assert {d.name: d.malicious for d in live.fleet if d.malicious} == MALICIOUS
    assert benign_accuracy(live) == pytest.approx(benign_accuracy(replayed), abs=0.01)
    assert live.attackers is not None
    assert replayed.attackers is not None
    assert live.attackers.loss_mean == pytest.approx(replayed.attackers.loss_mean, rel=1e-3)
    honest = summary_of(tmp_path / "honest", "replay", "rounds=3", "fleet.0.malicious.share=0.0")
    assert honest.loss.mean is not None
    assert replayed.attackers.loss_mean is not None
    assert replayed.attackers.loss_mean > 1.3 * honest.loss.mean
