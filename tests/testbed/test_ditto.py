"""examples/ditto.toml: personal models, live and replayed."""

from pathlib import Path

import pytest

from fairbed.coordinator.report.summary import RunSummary, summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import PersonalScoreRow
from fairbed.testbed.cli.main import main

DITTO = Path(__file__).parents[2] / "examples" / "ditto.toml"

Scores = dict[tuple[int, str], tuple[float, float | None]]


def result_of(folder: Path, command: str, *settings: str) -> tuple[RunSummary, Scores]:
    """Return the summary, and accuracy and loss of every score by round and device."""
    options = [part for setting in settings for part in ("--set", setting)]
    options += ["--headless"] if command == "run" else []
    assert main([command, str(DITTO), "--out", str(folder), *options]) == 0
    with RunReader(folder) as reader:
        rows = reader.columns(PersonalScoreRow, ("round", "device", "accuracy", "loss"))
        return summarise_run(reader), {(r, device): (a, loss) for r, device, a, loss in rows}


def test_a_replay_shows_personal_models_beside_the_global_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, scores = result_of(tmp_path, "replay")
    personal, shared = summary.personal, summary.accuracy.mean
    assert personal is not None
    assert shared is not None
    assert (personal.devices, len(scores)) == (10, 160)
    assert (personal.accuracy_mean or 0.0) > shared > 0.8
    assert personal.global_mean == pytest.approx(shared)
    capsys.readouterr()
    assert main(["show", str(tmp_path)]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.strip().startswith("personal")]
    assert f"mean {personal.accuracy_mean:.3f}" in line


@pytest.mark.full
@pytest.mark.parametrize("choice", ["fixed", "dynamic"])
def test_a_live_run_has_the_scores_of_its_replay(choice: str, tmp_path: Path) -> None:
    settings = ("rounds=4", f'personalisation.lambda_choice="{choice}"')
    live, scores = result_of(tmp_path / "live", "run", *settings)
    _, replayed = result_of(tmp_path / "replay", "replay", *settings)
    assert live.personal is not None
    with RunReader(tmp_path / "live") as reader:
        assert all(x.personal_s is not None and x.personal_s > 0.0 for x in reader.exchanges())
    assert len(scores) == 16
    assert scores.keys() == replayed.keys()
    for key, (accuracy, loss) in scores.items():
        assert accuracy == replayed[key][0]
        assert loss == pytest.approx(replayed[key][1], rel=1e-4)
