"""The benchmark of the report runs on a small scale."""

import json

import pytest

from benchmarks import report


def test_a_small_benchmark_measures_every_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ["--rounds", "3", "--devices", "4", "--per-round", "2", "--repeats", "1"]
    monkeypatch.setattr(report, "LIMIT_S", 100.0)
    assert report.main([*sizes, "--json"]) == 0
    whole, text = json.loads(capsys.readouterr().out)
    assert [whole["page"], text["page"]] == ["whole", "no figures"]
    assert whole["size_mb"] > text["size_mb"] > 0.01
    assert whole["cpu_s"] > text["cpu_s"] > 0.1
    monkeypatch.setattr(report, "LIMIT_MB", 0.01)
    assert report.main(sizes) == 1
    assert "no figures" in capsys.readouterr().out
