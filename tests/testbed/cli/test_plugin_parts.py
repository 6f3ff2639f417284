"""Plug-in weight rules, pseudo-gradients, server steps and estimators in replays."""

import json
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.weighting import Weights
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import make_aggregator
from fairbed.coordinator.policy.plugins import ESTIMATOR, PSEUDO_GRADIENT, RULE, SERVER_STEP
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from tests.coordinator.algorithms.aggregation.rounds import Reports, merged, vector
from tests.strategies import client_models
from tests.testbed.cli.test_mistakes import error_of
from tests.tiers import examples

TERM = "examples.term:Term"

EXPERIMENT = """
name = "plugged"
rounds = 5
[data]
dataset = "digits"
[model]
name = "softmax"
[selection]
per_round = 2
[[fleet]]
profile = "raspberry-pi-4b"
count = 4
"""

PARTS = '''
from pathlib import Path

import numpy as np

from fairbed.coordinator.algorithms.estimation import Prediction


class Part:
    """Fails in the fourth round, until the file `mended` exists."""

    needs_loss = needs_norms = needs_models = False

    def __init__(self, option=1.0):
        self.rounds, self.option = 0, option

    def fails(self):
        self.rounds += 1
        return self.rounds == 4 and not Path(__file__).with_name("mended").exists()

    def to_state(self):
        return {"rounds": self.rounds}

    def load_state(self, state):
        self.rounds = state["rounds"]


class Rule(Part):
    rescales_step = True

    def decide(self, updates):
        return np.full(len(updates), -1.0 if self.fails() else 0.5)


class NeedsLoss(Rule):
    needs_loss = True


class OfTwelve(Rule):
    max_devices = max_updates = 12


class SmallRounds(Rule):
    max_updates = 10


class Gradient(Part):
    def combine(self, updates, a):
        d = sum(a_k * D_k for a_k, D_k in zip(a, updates.changes))
        return np.full(3, 1.0) if self.fails() else d


class Step(Part):
    def step(self, params, d):
        if self.fails():
            raise RuntimeError("no step")
        return params + self.option * d


class Times(Part):
    def predict(self, context):
        ones = np.ones(len(context))
        return Prediction(ones, ones, ones)

    def observe(self, rows, context, measured):
        if self.fails():
            raise KeyError("row")


class Patient(Part):
    def predict(self, context):
        return Prediction(self.option * context[:, 0], 0.0 * context[:, 0], 0.0 * context[:, 0])

    def observe(self, rows, context, measured):
        pass


class Unplain(Part):
    def decide(self, updates):
        return np.ones(len(updates))

    def to_state(self):
        return {"now": object()}


class WithoutNeeds:
    def decide(self, updates):
        return np.ones(len(updates))

    def to_state(self):
        return {}

    def load_state(self, state):
        pass
'''


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A replay with training, and the module `parts_of_test`."""
    (tmp_path / "parts_of_test.py").write_text(PARTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "parts_of_test", raising=False)
    path = tmp_path / "plugged.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path


def replay(experiment: Path, out: Path, *settings: str) -> int:
    words = [word for setting in settings for word in ("--set", setting)]
    return main(["replay", str(experiment), "--out", str(out), *words])


def model(folder: Path) -> bytes:
    """Return the model after round 5."""
    return (folder / "models" / "round-00005.safetensors").read_bytes()


FAULTS = [
    ("aggregation.rule=parts_of_test:Rule", "decide() of round 4 must return numbers >= 0, got -1"),
    ("aggregation.pseudo_gradient=parts_of_test:Gradient", "combine() of round 4 must return"),
    ("aggregation.server=parts_of_test:Step", "step() must not raise, got RuntimeError: no step"),
    ("selection.estimator=parts_of_test:Times", "observe() must not raise, got KeyError: 'row'"),
]


@pytest.mark.parametrize(("setting", "why"), FAULTS)
def test_a_faulty_part_ends_a_replay_that_resumes_after_a_fix(
    experiment: Path, tmp_path: Path, setting: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert replay(experiment, out, setting) == 1
    line = error_of(capsys)
    assert f"{setting.partition('=')[2]}: {why}" in line
    with RunReader(out) as reader:
        assert reader.run().status == "failed"
        assert why in reader.run().row.reason
    (tmp_path / "mended").touch()
    assert main(["replay", str(out)]) == 0
    with RunReader(out) as reader:
        assert (reader.run().status, len(reader.rounds())) == ("done", 5)
    assert replay(experiment, tmp_path / "whole", setting) == 0
    assert model(out) == model(tmp_path / "whole")  # it stood at its last closed round


def test_options_reach_a_part(experiment: Path, tmp_path: Path) -> None:
    (tmp_path / "mended").touch()
    step = "aggregation.server=parts_of_test:Step"
    for name, *settings_ in (
        ("plain",),
        ("by one", step),
        ("by half", step, "aggregation.server_options.option=0.5"),
        ("plain by half", "aggregation.server_learning_rate=0.5"),
    ):
        assert replay(experiment, tmp_path / name, *settings_) == 0
    assert model(tmp_path / "by half") == model(tmp_path / "plain by half")
    assert model(tmp_path / "by half") != model(tmp_path / "by one")


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("aggregation.rule=nowhere", "aggregation.rule: must be one of 'aaggff-d', "),
        ("aggregation.pseudo_gradient=nowhere", "pseudo_gradient: must be one of 'average', "),
        ("aggregation.server=nowhere", "aggregation.server: must be one of 'plain', "),
        (
            "selection.estimator=nowhere",
            "must be one of 'mixture', 'phases', 'ridge' or package.module:Name",
        ),
        ("aggregation.rule=no.mod:R", "weight rule no.mod:R: must be importable as package.module"),
        ("aggregation.server=json:loads", "server step json:loads: must be made from aggregation."),
        ("selection.estimator=builtins:dict", "estimator builtins:dict: must have predict(), obs"),
        ("aggregation.rule=parts_of_test:WithoutNeeds", "needs_loss must be True or False, got No"),
        (
            "aggregation.rule=parts_of_test:Step",
            "must have decide(), to_state(), load_st",
        ),
        (
            "aggregation.rule=parts_of_test:Unplain",
            "to_state() must be plain numbers and",
        ),
        ("aggregation.rule_options.q=1", "aggregation.rule_options: only a plug-in has options"),
        (
            "aggregation.server_options.q=1",
            "aggregation.server_options: only a plug-in",
        ),
        ("selection.estimator_options.q=1", "selection.estimator_options: only a plug-in has opti"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "run"])
def test_a_part_that_cannot_be_used_is_refused_before_the_run(
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
@pytest.mark.parametrize(
    ("settings_", "why"),
    [
        (
            ("aggregation.rule=parts_of_test:OfTwelve", "fleet.0.count=13"),
            "aggregation.rule must not be 'parts_of_test:OfTwelve' with more than 12 devices, got "
            "13; use another rule, or fewer devices",
        ),
        (
            (
                "aggregation.rule=parts_of_test:OfTwelve",
                "aggregation.max_weight=0.5",
                *("round.mode=async", "round.buffer=4", "fleet.0.count=13"),
            ),
            "must not be 'parts_of_test:OfTwelve' with more than 12 devices, got 13",
        ),
        (
            (
                "aggregation.rule=parts_of_test:SmallRounds",
                *("selection.per_round=11", "fleet.0.count=11"),
            ),
            "rule must not be 'parts_of_test:SmallRounds' with more than 10 updates per round, got "
            "11; use another rule, or lower selection.per_round",
        ),
        (
            ("aggregation.rule=aaggff-s", "fleet.0.count=201"),
            "aggregation.rule must not be 'aaggff-s' with more than 200 devices, got 201",
        ),
    ],
    ids=["devices", "capped", "updates", "aaggff-s"],
)
def test_a_fleet_that_is_too_large_for_the_rule_is_refused_before_the_run(
    experiment: Path,
    tmp_path: Path,
    settings_: tuple[str, ...],
    why: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word for setting in settings_ for word in ("--set", setting)]
    assert main([command, str(experiment), "--out", str(tmp_path / "out"), *words]) == 2
    assert why in error_of(capsys)
    assert not (tmp_path / "out").exists()


def test_a_rule_is_timed_with_the_largest_round_that_it_declares(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mended").touch()
    for name, most in (("aaggff-s", 200), ("fedmgda+", 200), ("parts_of_test:OfTwelve", 12)):
        assert main(["doctor", "--aggregator", name]) == 0
        assert f"s for a round of {most} updates, the most that it declares" in (
            capsys.readouterr().out
        )


@pytest.mark.parametrize("late", ["round.mode=async", "round.late=merge"])
def test_late_updates_need_a_rule_without_losses(
    experiment: Path, tmp_path: Path, late: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mended").touch()
    needs = "aggregation.rule=parts_of_test:NeedsLoss"
    assert replay(experiment, tmp_path / "out", needs, late) == 2
    assert "must need neither losses nor norms nor models where late updates" in error_of(capsys)
    assert replay(experiment, tmp_path / "out", "aggregation.rule=parts_of_test:Rule", late) == 0


def test_installed_parts_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kit_of_test.py").write_text(PARTS, encoding="utf-8")
    info = tmp_path / "kit_of_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: kit-of-test\nVersion: 1.0\n", encoding="utf-8")
    kinds = {RULE: "Rule", PSEUDO_GRADIENT: "Gradient", SERVER_STEP: "Step", ESTIMATOR: "Times"}
    lines = [f"[{kind.group}]\nof-kit = kit_of_test:{name}" for kind, name in kinds.items()]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for kind, name in kinds.items():
        assert type(kind.make("of-kit", {})).__name__ == name
        with pytest.raises(ValueError, match="'of-kit' or package"):
            kind.check_name("nowhere", {})
    (tmp_path / "mended").touch()
    assert main(["doctor", "--estimator", "of-kit"]) == 0
    assert capsys.readouterr().out.endswith("estimator of-kit: satisfies the contract\n")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("median", "pseudo-gradient"),
        ("adam", "server step"),
        ("term", "weight rule"),
        (TERM, "weight rule"),
    ],
)
def test_the_doctor_finds_out_what_a_part_of_an_aggregation_is(
    name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--aggregator", name]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{kind} {name}: satisfies the contract"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--aggregator", "nowhere"], "aggregator nowhere: must be one of 'aaggff-d', "),
        (["--aggregator", "json:JSONDecoder"], "must have decide() (a weight rule), combine() or"),
        (["--aggregator", "json:nope"], "aggregator json:nope: must be importable as"),
        (["--aggregator", TERM, "--option", "tilt=1e9"], "got ValueError: tilt must be from -1000"),
        (["--aggregator", "q-fedavg", "--option", "q=-1"], "--option: Expected `float` >= 0"),
        (
            ["--estimator", "nowhere"],
            "estimator nowhere: must be one of 'mixture', 'phases', 'ridge' or",
        ),
    ],
)
def test_a_part_that_cannot_be_checked_is_one_line(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *arguments]) == 2
    assert why in error_of(capsys)


def test_a_broken_part_is_reported_with_exit_code_1(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--aggregator", "parts_of_test:Rule"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "FAILED  one update alone" not in "\n".join(lines)
    assert any(line.startswith("FAILED  a restored part continues") for line in lines)
    assert lines[-1].startswith("weight rule parts_of_test:Rule: breaks ")


@pytest.fixture
def shown(experiment: Path, tmp_path: Path) -> Path:
    """A replay whose estimators can be compared."""
    (tmp_path / "mended").touch()
    assert replay(experiment, tmp_path / "out") == 0
    return tmp_path / "out"


@pytest.mark.parametrize("is_clone", [True, False])
def test_show_compares_plug_in_estimators_with_the_built_in_ones(
    shown: Path, is_clone: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not is_clone:
        monkeypatch.setitem(sys.modules, "experiments", None)  # as if it could not be imported
    names = "parts_of_test:Patient", "parts_of_test:Times"
    words = [word for name in names for word in ("--estimator", name)]
    capsys.readouterr()
    assert main(["show", str(shown), *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"ridge", "phases", *names} <= found.keys()
    assert len({found[name]["count"] for name in ("ridge", *names)}) == 1
    assert found[names[0]]["mape"] > 0.0
    assert main(["show", str(shown), *words[:2], "--option", "option=1e9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[names[0]]["mape"] > 1e6 > found[names[0]]["mape"]
    assert main(["show", str(shown), *words]) == 0
    table = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert names[0] in [line.split()[0] for line in table]
    counts = {line.index(str(found["ridge"]["count"]) + " ") for line in table[1:]}
    assert len(counts) == 1  # the columns are aligned below the longest name


@pytest.mark.parametrize(
    ("words", "why", "code"),
    [
        (["--estimator", "ridge"], "--estimator: must be a plug-in, got 'ridge'; the built-in", 2),
        (
            ["--estimator", "nowhere"],
            "estimator nowhere: must be one of 'mixture', 'phases', 'ridge' or",
            2,
        ),
        (["--estimator", "json:loads"], "estimator json:loads: must be made from", 2),
        (["--option", "a=1"], "--option: must be for one --estimator, got 0", 2),
        (["--estimator", "parts_of_test:Patient", "--option", "a"], "--option a: must be KEY=", 2),
        (["--estimator", "parts_of_test:Times"], "observe() must not raise, got KeyError", 1),
    ],
)
def test_an_estimator_that_cannot_be_compared_is_one_line(
    shown: Path, words: list[str], why: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown.parent / "mended").unlink()
    assert main(["show", str(shown), *words]) == code
    assert why in error_of(capsys)


@settings(max_examples=examples(60))
@given(
    rounds=st.lists(client_models(), min_size=1, max_size=3),
    tilt=st.floats(-20.0, 20.0),
    factor=st.sampled_from([1.0, 1e3, 1e300]),
    weights=st.sampled_from(get_args(Weights)),
)
def test_term_as_a_plug_in_agrees_bit_for_bit_with_the_built_in_rule(
    rounds: list[Reports], tilt: float, factor: float, weights: Weights
) -> None:
    ours = make_aggregator(AggregationConfig(rule="term", tilt=tilt, weights=weights))
    plugged = make_aggregator(
        AggregationConfig(rule=TERM, rule_options={"tilt": tilt}, weights=weights)
    )
    assert ours.is_streaming
    assert plugged.is_streaming
    sent = vector(0.5, -1.0, 2.0, 0.0, 1.0)
    for given_ in rounds:
        assert given_.loss_before is not None
        given_.loss_before[:] *= factor
        one, other = merged(ours, sent, 3, given_), merged(plugged, sent, 3, given_)
        np.testing.assert_array_equal(one.weights, other.weights)
        np.testing.assert_array_equal(one.vector, other.vector)
        sent = one.vector


def test_a_replay_with_term_as_a_plug_in_has_the_models_of_the_built_in_rule(
    experiment: Path, tmp_path: Path
) -> None:
    assert replay(experiment, tmp_path / "ours", "aggregation.rule=term") == 0
    plugged = ("aggregation.rule=examples.term:Term", "aggregation.weights=n")
    assert replay(experiment, tmp_path / "plugged", *plugged) == 0
    assert model(tmp_path / "ours") == model(tmp_path / "plugged")
