"""The benchmark of intervals: Student's are the widest, and equal arms rarely have a verdict."""

import json

import pytest

from benchmarks import intervals
from fairbed.testbed.errors import UsageError


def test_intervals_and_verdicts_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervals, "DRAWN_GRIDS", 60)
    arguments = ["--draws", "300", "--runs", "80", "--set", "rounds=4", "--json"]
    assert intervals.main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["distribution"], row["seeds"]) for row in found["known"]][:2] == [
        ("normal", 6),
        ("normal", 10),
    ]
    for row in found["known"]:
        assert row["percentile"] < row["expanded"] <= 0.99
        if row["seeds"] == 6:
            assert row["expanded"] < row["Student (ours)"] + 0.02
    by_metric = {row["metric"]: row for row in found["differences"]}
    assert by_metric["virtual_s"]["distinct values"] == 80
    assert "wall_s" not in by_metric
    assert all(0.85 < row["6 seeds"] <= 1.0 for row in by_metric.values())
    once, *drawn = found["grids"]
    assert (once["grids"], once["runs"]) == (6, "each once")
    assert [(row["arms"], row["seeds"]) for row in drawn] == [
        (arms, seeds) for arms in (2, 4) for seeds in (6, 10, 20)
    ]
    assert once["from"] <= once["any verdict"] <= once["to"]
    for row in drawn:
        assert row["any verdict"] < 0.15 < row["without correction"]
        assert row["primary metric"] <= row["any verdict"]


def test_too_few_runs_are_one_line() -> None:
    with pytest.raises(UsageError, match=r"--runs at least 80, got 4000, \d+ and 10; raise them"):
        intervals.main(["--runs", "10"])
