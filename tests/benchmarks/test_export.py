"""The benchmark of exports runs on a small scale."""

import json

import pytest

from benchmarks import export
from fairbed.coordinator.report.export import FORMATS


def test_a_small_benchmark_prints_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rounds", "3", "--devices", "4", "--per-round", "2", "--repeats", "1"]
    assert export.main([*sizes, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [cost["format"] for cost in found["exports"]] == list(FORMATS)
    assert len({cost["rows"] for cost in found["exports"]}) == 1
    assert all(cost["elapsed_s"] > 0.1 and cost["peak_mb"] > 20 for cost in found["exports"])
    assert sorted(found["selection_s"]) == ["arrow", "numpy", "pandas", "polars"]
    export._print([export.Cost(**cost) for cost in found["exports"]], found["selection_s"])
    assert "selection as polars" in capsys.readouterr().out
