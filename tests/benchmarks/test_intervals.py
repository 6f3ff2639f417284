"""The benchmark of intervals tells that ours are the widest bootstrap, and about as wide as t."""

import json

import pytest

from benchmarks import intervals


def test_intervals_are_held_against_known_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert intervals.main(["--draws", "300", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["distribution"], row["n"]) for row in rows][:2] == [("normal", 5), ("normal", 10)]
    for row in rows:
        assert row["percentile"] < row["expanded"] <= 0.99
        assert abs(row["expanded"] - row["Student"]) < 0.06
