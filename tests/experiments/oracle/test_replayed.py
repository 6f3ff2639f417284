"""What could have been known of a replay: beside the instant, the seconds before it."""

from pathlib import Path

from experiments.oracle.errors import KNOWN, KNOWN_THEN, errors_of_run
from fairbed.coordinator.algorithms.estimation.prequential import NOISE_FLOOR, Errors
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.replay.run import replay_experiment

EXAMPLES = Path(__file__).parents[3] / "examples"


def errors_of(name: str, folder: Path, *settings: str) -> dict[str, Errors]:
    """Return the errors of a replay of an example without training."""
    experiment = load_experiment(EXAMPLES / name, ["replay.training=false", *settings])
    replay_experiment(experiment, folder, folder.name, lambda replayed: None)
    return errors_of_run(folder)


def median(errors: Errors) -> float:
    assert errors.median_ape is not None
    return errors.median_ape


def test_older_seconds_of_links_that_move_say_less(tmp_path: Path) -> None:
    found = errors_of("estimators-traces.toml", tmp_path / "run", "rounds=120")
    known, then, floor = (median(found[name]) for name in (KNOWN, KNOWN_THEN, NOISE_FLOOR))
    assert known < then
    assert abs(known - floor) > 1e-3, "five seconds are not the instant"
    assert found[KNOWN].count == found[KNOWN_THEN].count == found["phases"].count


def test_links_that_never_move_have_nothing_older(tmp_path: Path) -> None:
    found = errors_of("estimators-constant.toml", tmp_path / "run", "rounds=8")
    assert KNOWN_THEN not in found
    assert found[KNOWN].mape == found[NOISE_FLOOR].mape


def test_a_linear_world_has_no_links_to_look_at(tmp_path: Path) -> None:
    found = errors_of("rbcs-f-paper.toml", tmp_path / "run", "rounds=20")
    assert KNOWN_THEN not in found
    assert found[KNOWN].mape == found[NOISE_FLOOR].mape
