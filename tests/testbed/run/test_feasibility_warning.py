"""A guarantee that cannot hold for a fleet gives a warning with the k that fails."""

from pathlib import Path

import pytest

from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.file import Experiment, FleetConfig, load_experiment
from fairbed.testbed.run.preflight import infeasible_rate

LINEAR = """
name = "promised"
rounds = 2
[selection]
per_round = 1
beta = {beta}
[[fleet]]
model = "linear"
count = 2
theta = [1.0, 0.5, 0.2]
availability = 0.6
"""


def plan(folder: Path, beta: float) -> Path:
    path = folder / "promised.toml"
    path.write_text(LINEAR.format(beta=beta), encoding="utf-8")
    return path


def test_the_example_of_the_specification(tmp_path: Path) -> None:
    """N = 2, m = 1, availability .6: beta = .5 passes N beta <= m, and diverges at rate .42."""
    assert infeasible_rate(load_experiment(plan(tmp_path, 0.42))) is None
    line = infeasible_rate(load_experiment(plan(tmp_path, 0.5)))
    assert line is not None
    assert line == (
        "selection.beta 0.5 cannot be guaranteed: the 2 least available of 2 devices need "
        "2 x 0.5 = 1 selections per round, but 1.2 of them are available on average and 1 devices "
        "are selected per round; set beta to at most 0.420, or raise selection.per_round"
    )


def test_the_least_available_device_may_be_the_first_that_fails() -> None:
    experiment = Experiment(
        name="x",
        fleet=(
            FleetConfig(model="linear", theta=(1.0, 1.0, 1.0), count=20, availability=1.0),
            FleetConfig(model="linear", theta=(1.0, 1.0, 1.0), count=1, availability=0.1),
        ),
    )
    assert "the 1 least available of 21" in (infeasible_rate(experiment) or "")


@pytest.mark.parametrize("policy", ["uniform", "fedcs"])
def test_a_policy_without_guarantee_has_no_warning(tmp_path: Path, policy: str) -> None:
    experiment = load_experiment(plan(tmp_path, 0.5), [f"selection.policy={policy}"])
    assert infeasible_rate(experiment) is None


def test_a_replay_warns_and_keeps_the_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["replay", str(plan(tmp_path, 0.5)), "--out", str(out)]) == 0
    err = capsys.readouterr().err
    assert "warning: selection.beta 0.5 cannot be guaranteed: the 2 least available" in err
    with RunReader(out) as reader:
        assert [(e.kind, e.level) for _, e in reader.events()] == [("infeasible", "warning")]
