"""Cases of issue 31: settings that exclude or cancel each other, and a model that diverges."""

import json
from pathlib import Path
from shutil import copy

import pytest

from fairbed.coordinator.policy.config import RULES
from fairbed.coordinator.report.findings import findings, read_round_time
from fairbed.coordinator.report.result import result_lines, result_of
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from tests.testbed.cli.test_mistakes import error_of

GRIDS = Path(__file__).parent / "grids"
FB, MEDIAN = str(GRIDS / "fb.toml"), str(GRIDS / "median.toml")
SCAFFOLD, FEDDYN = "examples.scaffold:Scaffold", "examples.feddyn:FedDyn"


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def test_scaffold_with_momentum_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was accepted, and ended at accuracy 0.000 with a loss of 2.9e16."""
    line = (
        f"training.momentum must be 0 with local rule {SCAFFOLD}, got 0.9: the rule does not "
        "declare that its formulas hold for other values; change the setting, or add 'momentum' "
        "to defined_for of the rule if they do"
    )
    given = settings(f"training.rule={SCAFFOLD}", "training.momentum=0.9")
    out = tmp_path / "run"
    for command in (["replay"], ["run", "--headless"], ["coordinator", "--headless"]):
        assert main([*command, FB, "--out", str(out), *given]) == 2
        assert error_of(capsys).endswith(line)
        assert not out.exists()
    grid = tmp_path / "momentum.toml"
    copy(FB, tmp_path / "fb.toml")
    grid.write_text(
        f'experiment = "fb.toml"\nseeds = 2\nset = {{ "training.rule" = "{SCAFFOLD}" }}\n'
        '[axes]\n"training.momentum" = [0.0, 0.9]\n'
    )
    assert main(["compare", str(grid), "--out", str(out)]) == 2
    assert error_of(capsys).endswith(f"arm 'momentum-0.9': {line}")
    assert not out.exists()


@pytest.mark.parametrize(
    ("rule", "pair", "line"),
    [
        (SCAFFOLD, "training.weight_decay=0.01", "training.weight_decay must be 0 with local rule"),
        (SCAFFOLD, "training.proximal=0.1", "training.proximal must be 0 with local rule"),
        (SCAFFOLD, "training.clip_norm=1", "training.clip_norm must be unset with local rule"),
        (SCAFFOLD, "aggregation.rule=afl", 'aggregation.rule must be "fedavg" with local rule'),
        (FEDDYN, "training.proximal=0.1", "training.proximal must be 0 with local rule"),
        (FEDDYN, "aggregation.server=momentum", 'aggregation.server must be "plain" with local'),
        ("sgd", "training.proximal=7", "training.proximal times training.learning_rate must be"),
    ],
)
def test_further_settings_whose_formulas_do_not_hold_are_refused(
    rule: str, pair: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = settings(f"training.rule={rule}", pair)
    assert main(["replay", FB, "--out", str(tmp_path / "run"), *given]) == 2
    assert line in error_of(capsys)


@pytest.mark.parametrize("rule", sorted({*RULES, "examples.term:Term"} - {"fedavg"}))
def test_a_fair_rule_with_the_median_is_refused(
    rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every rule had the same bits."""
    for key in ("pseudo_gradient=median", "pseudo_gradient=trimmed-mean", "defence=krum"):
        given = settings(
            f"aggregation.rule={rule}",
            "aggregation.pseudo_gradient=average",
            f"aggregation.{key}",
            "aggregation.malicious_share=0.2",
            *(["training.max_steps=1"] if rule == "q-fedsgd" else []),
        )
        assert main(["replay", MEDIAN, "--out", str(tmp_path / "run"), *given]) == 2
        error, (name, _, value) = error_of(capsys), key.partition("=")
        assert f"got {rule!r}: aggregation.{name} {value!r}" in error
        assert 'or set rule = "fedavg"' in error


def test_fedavg_with_the_median_starts_with_what_has_no_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = settings("aggregation.rule=fedavg", "aggregation.tilt=2.0")
    assert main(["replay", MEDIAN, "--out", str(tmp_path / "run"), *given]) == 0
    printed = capsys.readouterr()
    line = (
        "aggregation.weights 'n' has no effect: aggregation.pseudo_gradient 'median' ignores the "
        'weights of updates; to weight updates, set pseudo_gradient = "geometric-median", which '
        "counts them"
    )
    assert f"warning: {line}\n" in printed.err
    assert "fedavg with weights n (no effect), pseudo-gradient median" in printed.out
    with RunReader(tmp_path / "run") as reader:
        found = {event.kind: (event.level, event.text) for _, event in reader.events()}
    assert found["no effect"] == ("warning", line)
    assert found["not read"][0] == "info", "many grids change the rule alone"
    assert found["not read"][1].startswith("aggregation.tilt 2.0 has no effect")


def test_the_geometric_median_counts_weights(tmp_path: Path) -> None:
    models = []
    for rule in ("fedavg", "term", "aaggff-d"):
        given = settings(
            f"aggregation.rule={rule}", "aggregation.pseudo_gradient=geometric-median", "rounds=1"
        )
        assert main(["replay", MEDIAN, "--out", str(tmp_path / rule), *given]) == 0
        (model,) = (tmp_path / rule / "models").iterdir()
        models.append(model.read_bytes())
    assert len(set(models)) == 3


def test_a_model_that_diverges_is_an_alert_and_a_line_of_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    given = settings("aggregation.server=momentum", "aggregation.server_learning_rate=900")
    assert main(["replay", FB, "--out", str(folder), *given]) == 0
    text = "the loss of the global model is "
    assert f"\ndiverged   {text}" in capsys.readouterr().out
    assert main(["show", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["divergence"]["text"].startswith(text)
    assert not shown["divergence"]["is_over"]
    assert [alert["kind"] for alert in shown["alerts"]] == ["diverged"]
    with RunReader(folder) as reader:
        assert [(e.kind, e.level) for _, e in reader.events()][-1] == ("diverged", "warning")
        assert [alert.kind for alert in reader.standing_alerts()] == ["diverged"]
        assert result_lines(result_of(reader))[-1] == ("alerts", "at the end: diverged")
        report = findings(summarise_run(reader), reader.plan, read_round_time(reader), [])
    (problems,) = [finding for finding in report if finding.topic == "Problems"]
    assert problems.is_bad
    assert f"{text[0].upper()}{text[1:]}" in problems.text


def test_a_model_that_learns_has_no_such_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", FB, "--out", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["divergence"] is None
