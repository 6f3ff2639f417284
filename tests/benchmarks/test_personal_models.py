"""The benchmark of personal models in a replay, small enough to be quick."""

import json

import pytest

from benchmarks import personal_models


def test_a_round_of_ditto_is_timed_beside_one_of_fedavg(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--only", "common", "--rounds", "3", "--repeats", "1", "--devices", "400", "--json"]
    assert personal_models.main(options) == 0
    found = json.loads(capsys.readouterr().out)
    job, memory = found["common"], found["memory"]
    assert job["ratio"] == pytest.approx(job["ditto_round_s"] / job["fedavg_round_s"])
    assert min(job["ditto_round_s"], job["fedavg_round_s"], job["cpu_ratio"]) > 0.0
    # 400 models of 40 kB are 16 MB, in blocks of 16 MiB; memory that a test freed is used first.
    assert (memory["devices"], memory["values"]) == (400, 10_000)
    assert memory["gigabytes"] < 0.06


def test_a_wrong_option_is_one_line() -> None:
    with pytest.raises(SystemExit, match=r"no job 'rare'; there are common, cnn, large"):
        personal_models.main(["--only", "rare"])
    with pytest.raises(SystemExit, match="at least 3 rounds and one repeat"):
        personal_models.main(["--rounds", "2"])
