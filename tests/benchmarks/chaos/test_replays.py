"""A replay that is stopped equals one that is not."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks._chaos import replays


def test_a_trace_has_links_that_die_and_return(tmp_path: Path) -> None:
    replays._write_trace(tmp_path / "dying.csv", np.random.default_rng(1))
    rows = [line.split(",") for line in (tmp_path / "dying.csv").read_text().splitlines()[2:]]
    at_s = [float(row[0]) for row in rows]
    assert at_s == sorted(at_s)
    assert at_s[-1] < replays.DAY_S
    assert 0.2 < sum(row[1] == "0" for row in rows) / len(rows) < 0.5


def test_the_processor_time_of_a_round_is_that_of_each_tenth() -> None:
    grows = [(r, 0.5 + 0.01 * r + 0.01 * max(0, r - 500)) for r in range(0, 1001, 7)]
    found = replays._cpu_ms([*grows, (1000, 0.5 + 10.0 + 5.0)])
    np.testing.assert_allclose(found, [10.0] * 5 + [20.0] * 5, rtol=0.05)
    assert all(type(ms) is float for ms in found)  # they are encoded


@pytest.mark.full
@pytest.mark.slow
def test_a_disturbed_replay_equals_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "LIFE_S", (20.0, 30.0))  # a start takes long beside other load
    monkeypatch.setattr(replays, "SAMPLE_S", 0.1)
    monkeypatch.setattr(replays, "GROWTH", 10.0)  # it has just started
    found = replays.replay_under_chaos(tmp_path, 0.02, seed=2)
    assert found.violations == []
    assert found.rounds > 3
    assert found.days >= 0.02
    assert found.exchanges >= found.rounds
    assert "0 violations" in found.line
