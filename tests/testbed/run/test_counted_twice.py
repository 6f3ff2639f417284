"""A selector that draws by n_k, with weights that contain n_k, gives a warning."""

from pathlib import Path
from typing import Any

import pytest

from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.file import parse_experiment
from fairbed.testbed.run.preflight import counted_twice, preflight_findings

EXPERIMENT = """
name = "twice"
rounds = 1
[data]
dataset = "digits"
[model]
name = "softmax"
[selection]
policy = "weighted"
per_round = 1
[[fleet]]
model = "linear"
count = 2
theta = [1.0, 0.5, 0.2]
"""
LINE = (
    "selection.policy 'weighted' draws devices in proportion to their examples n_k, and "
    'aggregation.weights "n" multiplies by n_k again, so that examples count twice; '
    'set aggregation.weights = "equal", or selection.policy = "uniform"'
)


def warning(**sections: dict[str, Any]) -> str | None:
    return counted_twice(parse_experiment({"name": "x", **sections}, "x.toml"))


def test_the_warning_names_the_remedies() -> None:
    assert warning(selection={"policy": "weighted"}) == LINE
    assert warning(selection={"policy": "weighted"}, aggregation={"weights": "equal"}) is None
    assert warning(selection={"policy": "uniform"}) is None


@pytest.mark.parametrize(
    ("selection", "aggregation", "warns"),
    [
        ({"policy": "power-of-choice"}, {}, True),
        ({"policy": "power-of-choice", "variant": "pow-d"}, {"rule": "q-fedavg"}, True),
        ({"policy": "weighted", "weights": [1.0, 2.0]}, {}, False),
        ({"policy": "weighted"}, {"weights": "n_over_pi"}, False),
        ({"policy": "weighted"}, {"rule": "corefed"}, False),
        ({"policy": "weighted"}, {"rule": "corefed", "weights": "n"}, True),
        ({"policy": "weighted"}, {"rule": "aaggff-d"}, False),
        ({"policy": "oort"}, {}, False),
    ],
)
def test_warns_only_if_both_count_examples(
    selection: dict[str, Any], aggregation: dict[str, Any], warns: bool
) -> None:
    assert (warning(selection=selection, aggregation=aggregation) is not None) == warns


def test_a_run_keeps_the_warning_as_an_event() -> None:
    experiment = parse_experiment({"name": "x", "selection": {"policy": "weighted"}}, "x.toml")
    (finding,) = preflight_findings(experiment, [], None, 1.0)
    assert (finding.kind, finding.text, finding.level) == ("counted-twice", LINE, "warning")


def replayed(tmp_path: Path, *options: str) -> list[tuple[str, str]]:
    path, out = tmp_path / "twice.toml", tmp_path / "out"
    path.write_text(EXPERIMENT, encoding="utf-8")
    assert main(["replay", str(path), "--out", str(out), *options]) == 0
    with RunReader(out) as reader:
        return [(event.kind, event.text) for _, event in reader.events()]


def test_a_replay_warns_and_keeps_the_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replayed(tmp_path) == [("counted-twice", LINE)]
    assert f"warning: {LINE}" in capsys.readouterr().err


def test_a_replay_without_training_has_no_weights_to_warn_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replayed(tmp_path, "--no-training") == []
    assert "warning" not in capsys.readouterr().err
