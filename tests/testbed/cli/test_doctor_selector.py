"""`fairbed doctor --selector` and plug-ins in runs, with correct and broken selectors."""

import json
import sys
from pathlib import Path

import pytest

from fairbed.coordinator.algorithms.selection.contract import PROPERTIES
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from tests.testbed.cli.test_mistakes import error_of

EXAMPLE = "examples.longest_waiting:LongestWaiting"

LINEAR = """
name = "plugged"
rounds = 8
[selection]
per_round = 2
[[fleet]]
model = "linear"
count = 5
theta = [1.0, 0.5, 0.2]
"""

PARTIAL = '''
import numpy as np
from examples.longest_waiting import LongestWaiting

class Greedy(LongestWaiting):
    """Selects one device too many from round 4 on, if `is_greedy`."""

    def __init__(self, is_greedy=True):
        super().__init__()
        self.is_greedy = is_greedy

    def select(self, candidates, k, rng):
        return super().select(candidates, k + (self.is_greedy and candidates.round >= 4), rng)

class Querying(LongestWaiting):
    """Queries the losses of all devices."""

    sample = "all"

    def candidates(self, fleet, k, rng):
        return np.flatnonzero(fleet.is_available)

def make(**options):
    from pathlib import Path
    return Greedy(is_greedy=not Path(__file__).with_name("mended").exists())
'''


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A replay, and a plug-in that breaks the contract until the file `mended` exists."""
    (tmp_path / "greedy_of_test.py").write_text(PARTIAL, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "greedy_of_test", raising=False)
    path = tmp_path / "plugged.toml"
    path.write_text(LINEAR, encoding="utf-8")
    return path


def test_a_correct_selector_has_a_line_for_each_property(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--selector", EXAMPLE, "--option", "patience=3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[: len(PROPERTIES)]] == ["ok"] * len(PROPERTIES)
    assert [line[8:48].rstrip() for line in lines[: len(PROPERTIES)]] == list(PROPERTIES)
    assert lines[-1] == f"selector {EXAMPLE}: satisfies the contract"


def test_a_broken_selector_is_reported_with_exit_code_1(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--selector", "greedy_of_test:make", "--json"]) == 1
    found = {line["name"]: line for line in json.loads(capsys.readouterr().out)}
    assert list(found) == list(PROPERTIES)
    broken = found["only available devices, each once"]
    assert not broken["is_ok"]
    assert "must return at most" in broken["found"]
    assert found["queues are finite and a copy"]["is_ok"]


def test_built_in_policies_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--selector", "power-of-choice", "--option", "variant=pow-d"]
    assert main(["doctor", *arguments, "--option", "candidates=4"]) == 0
    assert "NaN or infinity are not selected" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ["--selector", "nowhere"],
            "selector nowhere: must be one of 'app', 'fastest-known', 'fedcs'",
        ),
        (["--selector", "no.mod:Policy"], "must be importable as package.module:Name"),
        (["--selector", EXAMPLE, "--option", "patience=0"], "patience must be >= 1, got 0"),
        (["--selector", EXAMPLE, "--option", "patience"], "--option patience: must be KEY=VALUE"),
        (["--selector", "rbcs-f", "--option", "V=-1"], "--option: Expected `float` >= 0"),
    ],
)
def test_a_selector_that_cannot_be_checked_is_one_line(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *arguments]) == 2
    assert why in error_of(capsys)


def test_a_plug_in_chooses_in_a_replay(experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    chosen = ["--set", f"selection.policy={EXAMPLE}", "--set", "selection.options.patience=2"]
    assert main(["replay", str(experiment), "--out", str(out), "--json", *chosen]) == 0
    with RunReader(out) as reader:
        assert {x.device for x in reader.exchanges()} == {f"linear-1-{i}" for i in range(1, 6)}
        assert "patience = 2" in reader.experiment_toml


def test_a_broken_plug_in_ends_a_replay_that_resumes_after_a_fix(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    chosen = ["--set", "selection.policy=greedy_of_test:make"]
    assert main(["replay", str(experiment), "--out", str(out), *chosen]) == 1
    line = error_of(capsys)
    assert "selector greedy_of_test:make: select() of round 4 must return at most 2 devices" in line
    with RunReader(out) as reader:
        assert reader.run().status == "failed"
        assert "greedy_of_test:make" in reader.run().row.reason
    (tmp_path / "mended").touch()
    assert main(["replay", str(out)]) == 0
    with RunReader(out) as reader:
        assert (reader.run().status, len(reader.rounds())) == ("done", 8)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (
            "selection.policy=nowhere",
            "selection.policy: must be one of 'app', 'fastest-known', 'fedcs'",
        ),
        ("selection.policy=no.mod:Policy", "selector no.mod:Policy: must be importable"),
        ("selection.options.patience=1", "selection.options: only a plug-in has options"),
        ("selection.audit=1.5", "selection.audit: must be a number <= 1, got 1.5"),
        ("selection.variant=pow", "selection.variant: must be one of"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "run"])
def test_an_impossible_policy_is_refused_before_the_run(
    experiment: Path,
    tmp_path: Path,
    setting: str,
    why: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert main([command, str(experiment), "--out", str(out), "--set", setting]) == 2
    assert why in error_of(capsys)
    assert not out.exists()


@pytest.mark.parametrize("command", ["replay", "run"])
def test_a_loss_query_is_refused_where_rounds_overlap(
    experiment: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    chosen = ["--set", "selection.policy=greedy_of_test:Querying", "--set", "round.mode=async"]
    assert main([command, str(experiment), "--out", str(out), *chosen]) == 2
    assert (
        'selector greedy_of_test:Querying: must select without losses with round.mode = "async", '
        "got one that queries devices for them"
    ) in error_of(capsys)
    assert not out.exists()


def test_a_loss_query_is_refused_by_a_replay_without_training(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--set", "selection.policy=power-of-choice", "--set", "selection.variant=pow-d"]
    out = tmp_path / "out"
    assert main(["replay", str(experiment), "--no-training", "--out", str(out), *chosen]) == 2
    assert "got 'power-of-choice' in a replay without training" in error_of(capsys)
    assert not out.exists()
