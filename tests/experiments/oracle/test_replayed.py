"""What could have been known of a run: beside the instant, the seconds before it."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from experiments.oracle.errors import KNOWN, KNOWN_THEN, errors_of_run
from fairbed.coordinator.algorithms.estimation.prequential import NOISE_FLOOR, Errors
from fairbed.coordinator.state.memory import TaskMemory
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.replay.run import replay_experiment
from tests.testbed.recording.rows import COSTS, EXPERIMENT, World, make_run

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


class EveryOtherRoundIsHalf(World):
    """A device that trains for half of the steps in every other round."""

    def exchange(self, index: int) -> ExchangeRow:
        """Return the exchange of one round."""
        x = super().exchange(index)
        if index % 2:
            return x
        saved_s = (x.train_s or 0.0) / 2.0
        tau_s, train_s = (x.tau_s or 0.0) - saved_s, (x.train_s or 0.0) - saved_s
        return replace(x, steps=x.steps // 2, train_s=train_s, tau_s=tau_s, tau_wall_s=tau_s)


def test_the_work_of_a_device_is_that_of_the_micro_batches_it_chose(tmp_path: Path) -> None:
    """The device has 3 GiB for an agent: five examples at once."""
    memory = TaskMemory(fixed_bytes=2.0**30, example_bytes=0.39 * 2.0**30)
    text = EXPERIMENT.replace("epochs = 2", 'epochs = 2\nmicro_batch = "auto"')
    costs = structs.replace(COSTS, memory=memory)
    world = EveryOtherRoundIsHalf(part_size=5, cold_s=0.0)
    known = errors_of_run(make_run(tmp_path, world, text, costs=costs))[KNOWN]
    assert known.mape == pytest.approx(0.0, abs=1e-6)
