"""Virtual queues of a selection history are equal to those of the policy."""

from pathlib import Path

import numpy as np

from fairbed.coordinator.report.facts import virtual_queues, virtual_queues_of
from fairbed.coordinator.store import RunReader
from fairbed.testbed.compare.measures import measure
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.replay.run import replay_experiment

PAPER = Path(__file__).parents[3] / "examples" / "rbcs-f-paper.toml"


def test_the_worked_example() -> None:
    x = np.array([0, 0, 1, 0, 0, 0, 0, 1], dtype=np.bool_)[:, None]
    found = virtual_queues(x, np.array([0]), 0.15)
    wanted = [0.15, 0.30, 0.0, 0.15, 0.30, 0.45, 0.60, 0.0]
    np.testing.assert_allclose(found.total, wanted, atol=1e-12)
    np.testing.assert_array_equal(found.total, found.largest)


def test_a_queue_is_empty_before_its_device_joins() -> None:
    found = virtual_queues(np.zeros((4, 2), dtype=np.bool_), np.array([0, 2]), 0.25)
    assert found.total.tolist() == [0.25, 0.5, 1.0, 1.5]
    assert found.largest.tolist() == [0.25, 0.5, 0.75, 1.0]


def test_the_queues_are_those_of_rbcs_f(tmp_path: Path) -> None:
    experiment = load_experiment(PAPER, ["rounds=30"])
    replay_experiment(experiment, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        rounds = reader.rounds()
        found = virtual_queues_of(
            reader, [r.round for r in rounds], reader.selection_counts(), 0.15
        )
    assert found is not None
    np.testing.assert_allclose(found.total, [row.queue_total for row in rounds])
    np.testing.assert_allclose(found.largest, [row.queue_max for row in rounds])


LARGE = """
name = "large"
rounds = 2
[selection]
policy = "uniform"
per_round = 3
beta = 0.01
[[fleet]]
model = "linear"
theta = [1.0, 1.0, 0.2]
count = 1001
"""


def test_a_fleet_without_rows_per_device_has_the_rate_of_those_never_selected(
    tmp_path: Path,
) -> None:
    """The lowest rate was 0.5, that of the selected devices, and their queues were all queues."""
    path = tmp_path / "large.toml"
    path.write_text(LARGE, encoding="utf-8")
    replay_experiment(load_experiment(path), tmp_path / "run", "run", lambda replayed: None)
    found = measure(tmp_path / "run")
    assert found.values["min_rate_selected"] == 0.0
    assert found.values["queue_mean_total"] is found.values["queue_max"] is None
    assert "no selections of all devices" in found.missing["queue_max"]
