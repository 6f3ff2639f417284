"""examples/private.toml: local noise on a real broker, and replayed."""

from pathlib import Path

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.report.summary import RunSummary, summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main

PRIVATE = Path(__file__).parents[2] / "examples" / "private.toml"


def result_of(folder: Path, command: str, *settings: str) -> tuple[RunSummary, Vector]:
    """Return the summary and the final model."""
    options = [part for setting in settings for part in ("--set", setting)]
    options += ["--headless"] if command == "run" else []
    assert main([command, str(PRIVATE), "--out", str(folder), *options]) == 0
    with RunReader(folder) as reader:
        final = reader.final_model()
        assert final is not None
        return summarise_run(reader), final[1]


def test_a_replay_states_epsilon_by_the_updates_of_each_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, _ = result_of(tmp_path, "replay", "rounds=6", "evaluation.every=0")
    p = summary.privacy
    assert p is not None
    assert p.releases == 6 * 50 == sum(summary.selected.values())
    assert p.epsilon_max == max(device.epsilon or 0.0 for device in summary.fleet)
    assert {device.releases for device in summary.fleet} == set(summary.selected.values())
    capsys.readouterr()
    assert main(["show", str(tmp_path)]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.strip().startswith("privacy")]
    assert f"epsilon at most {p.epsilon_max:.3g} for delta 1e-05" in line
    assert "noise 1 x clip 0.2; not covered: counts, times, contexts" in line


@pytest.mark.full
def test_a_live_run_has_the_model_and_the_epsilon_of_its_replay(tmp_path: Path) -> None:
    settings = ("rounds=4", "fleet.0.count=3", "selection.per_round=3", "exchange.up=int8")
    live, model = result_of(tmp_path / "live", "run", *settings)
    replayed, same = result_of(tmp_path / "replay", "replay", *settings)
    assert live.privacy is not None
    assert live.privacy == replayed.privacy
    assert [d.releases for d in live.fleet] == [4, 4, 4]
    # The noise of 4 rounds is about 0.2 in each value; both have the same.
    assert np.abs(model - same).max() < 1e-3
    with RunReader(tmp_path / "live") as reader:
        losses = {(x.loss_before, x.loss_train) for x in reader.exchanges()}
    assert losses == {(None, None)}
