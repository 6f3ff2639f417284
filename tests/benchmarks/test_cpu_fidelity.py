"""The benchmark of processor fidelity, small enough to be quick."""

import json

import anyio
import pytest

from benchmarks import cpu_fidelity
from testbed.backends.choice import problem_with


@pytest.mark.slow
def test_tells_of_every_quantity_what_it_should_be_and_what_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = anyio.run(problem_with, "namespace")
    if problem is not None:
        pytest.skip(problem)
    monkeypatch.setattr(cpu_fidelity, "SHARES", (0.5, 1.5))
    monkeypatch.setattr(cpu_fidelity, "STEPS_S", (0.02,))
    monkeypatch.setattr(cpu_fidelity, "SHARE_S", 0.5)
    monkeypatch.setattr(cpu_fidelity, "STEPS_FOR_S", 0.5)
    assert cpu_fidelity.main(["--repeats", "1", "--patience", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["backend"], row["quantity"]) for row in rows] == [
        ("namespace", "share 0.5"),
        ("namespace", "share 1.5"),
        ("namespace", "steady step of 20 ms at 0.5"),
        ("namespace", "first step of 20 ms at 0.5"),
        ("process", "steady step of 20 ms at 0.5"),
        ("process", "first step of 20 ms at 0.5"),
    ]
    for row in rows:
        if row["repeats"]:
            assert row["achieved"] == pytest.approx(row["target"] * (1.0 + row["error"]))
            assert row["ok"] == (abs(row["error"]) <= row["limit"])
        else:  # this machine was never free
            assert row["achieved"] is None
            assert not row["ok"]
