"""The benchmark of predicted memory, on the smallest task."""

import json

import pytest

from benchmarks import memory


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.broker
def test_the_prediction_is_compared_with_an_agent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "CASES", [memory.Case("cnn", (1, 28, 28), 64)])
    assert memory.main(["--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row["part"] == 64
    assert 50.0 < row["measured_mib"] < 200.0
