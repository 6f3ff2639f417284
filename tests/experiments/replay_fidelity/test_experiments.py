"""What is shared between the runs of a comparison, and what is not."""

from pathlib import Path

import pytest

from experiments.replay_fidelity.comparison import compare_live_replay
from experiments.replay_fidelity.recorded import predicted, recorded
from fairbed.testbed.experiment.file import (
    Experiment,
    ExperimentError,
    load_experiment,
    parse_experiment,
)

RAW = {
    "name": "cars",
    "seed": 5,
    "rounds": 9,
    "selection": {"per_round": 2, "policy": "oort", "beta": 0.2},
    "seeds": {"traces": 8, "selection": 3},
    "fleet": [{"profile": "raspberry-pi-4b", "count": 4}],
}


def runs() -> tuple[Experiment, Experiment, Experiment]:
    experiment = parse_experiment(RAW, "test")
    return experiment, recorded(experiment), predicted(experiment)


def test_devices_data_and_traces_are_those_of_the_experiment() -> None:
    experiment, *both = runs()
    for run in both:
        for purpose in ("data", "init", "fleet", "traces"):
            assert run.seed_for(purpose) == experiment.seed_for(purpose)
        assert run.fleet == experiment.fleet
        assert run.rounds == experiment.rounds


def test_policies_and_chance_differ() -> None:
    _, a, b = runs()
    assert (a.selection.policy, b.selection.policy) == ("uniform", "rbcs-f")
    assert a.selection.beta == b.selection.beta == 0.2
    assert (a.seed_for("selection"), b.seed_for("selection")) == (1, 2)
    assert (a.seed_for("training"), b.seed_for("training")) == (1, 2)


def test_no_evaluation_moves_devices_along_their_traces() -> None:
    assert {run.evaluation.every for run in runs()[1:]} == {0}


def test_both_can_be_written_down_and_read(tmp_path: Path) -> None:
    for run in runs()[1:]:
        file = tmp_path / f"{run.name}.toml"
        file.write_text(run.resolved_toml(), encoding="utf-8")
        assert load_experiment(file).hash() == run.hash()


@pytest.mark.parametrize(("key", "value"), [("late", "merge"), ("mode", "async")])
def test_rounds_that_do_not_end_their_exchanges_are_refused_before_anything_runs(
    tmp_path: Path, key: str, value: str
) -> None:
    experiment = parse_experiment(RAW | {"round": {key: value}}, "test")
    with pytest.raises(ExperimentError, match=f"round.{key}: must be left out of a comparison"):
        compare_live_replay(experiment, tmp_path / "all", print)
    assert not (tmp_path / "all").exists()
