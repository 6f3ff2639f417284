"""The benchmark of replays that train, small enough to be quick."""

import json

import pytest

from benchmarks import replay_training


@pytest.mark.alone
def test_it_times_rounds_beside_their_bare_products(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--only", "common", "--rounds", "2", "--threads", "1", "--json"]
    assert replay_training.main(options) == 0
    found = json.loads(capsys.readouterr().out)["common"]
    assert (found["rounds"], found["threads"]) == (2, 1)
    assert found["round_s"] * found["rounds_per_s"] == pytest.approx(1.0)
    assert found["over_bare"] == pytest.approx(found["round_s"] / found["bare_s"])
    assert found["cpu_over_bare"] > 1.0
    assert found["times_flower"] == pytest.approx(0.41 / found["round_s"])
    assert found["whole_s"] > found["round_s"] > found["bare_s"] > 0.0


@pytest.mark.alone
@pytest.mark.full
def test_it_times_the_engine_of_devices_on_one_core_and_on_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay_training, "free_cores", lambda: 2)
    assert replay_training.main(["--cores", "2", "--turns", "1", "--rounds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["speedup"] == pytest.approx(found["round_s_on_one"] / found["round_s"])
    assert found["least"] == found["speedup"] == found["most"]
    assert 0.5 < found["cpu_ratio"] < 2.0, "both compute the same steps"
    with pytest.raises(SystemExit, match=r"--cores must be 2 to the 2 free cores .* got 3"):
        replay_training.main(["--cores", "3"])


def test_an_unknown_job_and_a_python_without_flower_are_said() -> None:
    with pytest.raises(SystemExit, match=r"no job 'rare'; there are common, cnn, large"):
        replay_training.main(["--only", "rare"])
    with pytest.raises(SystemExit, match="Flower failed with exit code 1"):
        replay_training.main(["--only", "common", "--rounds", "2", "--flower", "/bin/false"])
