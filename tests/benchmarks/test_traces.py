"""The benchmarks of traces, small enough to be quick; what they find has to hold."""

import json
import os
from pathlib import Path

import anyio
import pytest

from benchmarks import trace_driver, trace_replay
from benchmarks.trace_replay import Row, measure, recorded, synthetic
from fairbed.profiles.series import Series

SECONDS = 12


def check(rows: list[Row]) -> None:
    """Every quantity that was measured while this machine was free is within its limit."""
    measured = [row for row in rows if row.achieved is not None]
    if not measured:
        pytest.skip("this machine was never free")
    for row in measured:
        assert row.ok, row


@pytest.mark.alone
def test_a_link_carries_its_synthetic_trace() -> None:
    check(anyio.run(measure, synthetic(hole_every_s=6.0), SECONDS))


@pytest.mark.alone
@pytest.mark.parametrize("name", ["ATT-LTE-driving.down", "TMobile-UMTS-driving.down"])
def test_a_link_carries_a_recorded_trace(name: str) -> None:
    root = os.environ.get("FAIRBED_DATA", "")
    if not root or not (Path(root) / "traces" / "mahimahi_raw.tar.xz").is_file():
        pytest.skip("FAIRBED_DATA names no folder with traces/mahimahi_raw.tar.xz")
    check(anyio.run(measure, recorded(f"data:mahimahi/{name}"), SECONDS))


def test_the_synthetic_trace_is_the_same_every_time_and_has_holes() -> None:
    first, second = synthetic(), synthetic()
    assert first == second
    assert first["down"] != first["up"]
    assert first["down"].at(18.0) == 0.0
    assert first["down"].mean > first["up"].mean > 1e6


def test_a_second_in_which_somebody_was_contended_does_not_count() -> None:
    late = [(1.0, 0.0), (2.5, 0.3), (3.0, 0.0)]
    assert trace_replay._free(late, 6).tolist() == [True, False, False, False, True, True]


def test_a_hole_is_as_long_as_its_trace_says() -> None:
    rate = Series((0.0, 2.0, 3.5), (1e6, 0.0, 1e6), 10.0)
    assert trace_replay._holes(rate, 10) == [(2.0, 3.5)]
    holes = trace_replay._holes(synthetic()["down"], 600)
    assert len(holes) == 30 - 1  # the last one ends with the time
    assert all(end - start == pytest.approx(3.0) for start, end in holes)


def test_trace_replay_prints_one_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert trace_replay.main(["--seconds", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["quantity"] for row in rows} >= {"volume down, MB", "volume up, MB"}
    assert all(row["backend"] == "process" for row in rows)


@pytest.mark.parametrize("backend", ["none", "process"])
def test_trace_driver_tells_what_following_costs(
    backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--devices", "10", "--seconds", "1", "--backend", backend, "--json"]
    assert trace_driver.main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["devices"] == 10
    assert 0.0 < result["changes_per_s"] <= 110.0
    assert 0.0 < result["driver_cores"] < 1.0
    assert (result["helper_cores"] > 0.0) == (backend != "none")


@pytest.mark.alone  # changes that are late are fewer
def test_trace_driver_takes_traces_with_shorter_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert trace_driver.main(["--devices", "5", "--seconds", "1", "--step", "0.02", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 40.0 < result["changes_per_s"] <= 55.0  # the means of ten ticks a second
    with pytest.raises(SystemExit):
        trace_driver.main(["--step", "0"])
    assert "--step: must be from 0.001 to 60, got 0" in capsys.readouterr().err
