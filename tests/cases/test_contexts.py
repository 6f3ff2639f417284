"""The context check on fleets that it suspected wrongly, and on the liars of the shipped grid."""

from pathlib import Path

import pytest

from fairbed.coordinator.report.summary import summarise_run, summary_table
from fairbed.coordinator.store import RunReader
from fairbed.testbed.compare.grid import load_grid
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.replay.engine.engine import ReplayEngine
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import setup_of

CASES = Path(__file__).parent / "grids"
LIARS = Path(__file__).parents[2] / "examples" / "grids" / "lying-contexts.toml"


def test_fast_devices_beside_slow_ones_are_not_suspected(tmp_path: Path) -> None:
    experiment = load_experiment(CASES / "ctx.toml", ["replay.training=false"])
    replay_experiment(experiment, tmp_path, "ctx", lambda _: None)
    with RunReader(tmp_path) as reader:
        assert [e.text for _, e in reader.events() if e.kind == "context check"] == []
        summary = summarise_run(reader)
    found = summary.context_check
    assert found is not None
    assert found.judged + found.unjudged == 300
    assert found.judged >= 150
    assert f"contexts   {found.judged} of 300 exchanges judged" in summary_table(summary, None)


@pytest.mark.parametrize("arm", ["rbcs-f-ridge-checked_speed-10.0", "rbcs-f-phases-later-checked"])
def test_the_liars_of_the_grid_are_found_in_three_exchanges(arm: str) -> None:
    [experiment] = [a.experiment for a in load_grid(LIARS).arms if a.name == arm]
    setup = setup_of(experiment)
    engine = ReplayEngine(setup.decisions, setup.world, attacks=setup.attacks)
    honest = {one: attack.honest_exchanges for one, attack in setup.attacks.items()}
    trained, found = dict.fromkeys(honest, 0), dict[int, int]()
    for replayed in engine.replay(experiment.rounds):
        for x in replayed.over:
            if x.row in trained:
                trained[x.row] += x.has_trained
        for change in replayed.context_changes:
            assert change.row in honest
            found.setdefault(change.row, trained[change.row] - honest[change.row])
    assert len(honest) == 4
    assert found == dict.fromkeys(honest, 3)
