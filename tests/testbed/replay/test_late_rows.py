"""The rows of rounds count dropped and cancelled exchanges."""

from pathlib import Path

from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.replay.run import replay_experiment

PAPER = Path(__file__).parents[3] / "examples" / "rbcs-f-paper.toml"


def test_rounds_count_late_and_cancelled_devices(tmp_path: Path) -> None:
    hurried = ["rounds=60", "round.over_select=3", "round.deadline_s=4.0"]
    settings = [*hurried, "selection.policy=uniform"]
    experiment = load_experiment(PAPER, settings, 3)
    replay_experiment(experiment, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        rounds, exchanges = reader.rounds(), reader.exchanges()
        summary = summarise_run(reader).exchange
    for row in rounds:
        outcomes = [x.outcome for x in exchanges if x.round == row.round]
        assert (row.dropped_late, row.cancelled) == (
            outcomes.count("late"),
            outcomes.count("cancelled"),
        )
    assert sum(row.dropped_late for row in rounds) == summary.late > 0
    assert sum(row.cancelled for row in rounds) == summary.cancelled > 0
    assert {
        (x.outcome == "done", x.staleness, x.aggregated_round == x.round) for x in exchanges
    } == {
        (True, 0, True),
        (False, None, False),
    }
    assert (summary.aggregated_late, summary.staleness_mean) == (0, 0.0)
